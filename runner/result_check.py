"""What a runner gives back is looked at once, where it comes in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from ..scheduler.errors import RunnerError
from ..scheduler.plan import IntArray, ModelRunnerOutput, SchedulerOutput
from ..scheduler.result_fields import check_fields
from ..scheduler.setting_types import shown
from .runner import RunnerInfo


class ResultCheck:
    """What was asked of each row, learnt from the plans that admit requests, against what results give."""

    def __init__(self, info: RunnerInfo) -> None:
        self._vocab_size = info.vocab_size
        self._logprobs = np.zeros(info.max_num_running_reqs, np.bool_)
        # How many tokens of its prompt a row wants to be told of, the first one included; 0: of none.
        self._prompts = np.zeros(info.max_num_running_reqs, np.int64)
        self._any = False  # whether anybody has ever asked

    def checked(self, plan: SchedulerOutput, output: ModelRunnerOutput) -> ModelRunnerOutput:
        """A step's result; who was not given log-probabilities that it asked for has failed in it.

        Once for each plan, in order.

        Raises:
            RunnerError: the result cannot be right, or holds what is not supported yet.
        """
        check_result(plan, output, self._vocab_size)
        self._learn(plan)
        if not self._any:
            return output
        missing = self._without_logprobs(plan, output) | self._without_prompt_logprobs(plan, output)
        return msgspec.structs.replace(output, failed=missing | output.failed) if missing else output

    def _learn(self, plan: SchedulerOutput) -> None:
        for new in plan.scheduled_new_reqs:
            params, first = new.sampling_params, len(new.token_ids) == new.num_prompt_tokens
            self._logprobs[new.row] = params.logprobs is not None
            # Who comes back with outputs has been told of its prompt.
            asks = params.prompt_logprobs is not None and first
            self._prompts[new.row] = new.num_prompt_tokens if asks else 0
            self._any |= asks or params.logprobs is not None

    def _without_logprobs(self, plan: SchedulerOutput, output: ModelRunnerOutput) -> dict[str, str]:
        asking = np.flatnonzero(self._logprobs[plan.rows] & plan.samples)
        ids = [plan.req_ids[place] for place in asking.tolist()]
        given = output.sampled_token_ids or {}
        return {
            req_id: "the runner gave no logprobs for its token"
            for req_id in ids
            if req_id not in output.logprobs and (output.token_ids is not None or given.get(req_id))
        }

    def _without_prompt_logprobs(self, plan: SchedulerOutput, output: ModelRunnerOutput) -> dict[str, str]:
        wanted = np.minimum(plan.num_tokens, self._prompts[plan.rows] - 1 - plan.num_computed)
        missing: dict[str, str] = {}
        for place in np.flatnonzero(wanted > 0).tolist():
            req_id, count = plan.req_ids[place], int(wanted[place])
            columns = output.prompt_logprobs.get(req_id)
            if (got := 0 if columns is None else len(columns)) != count:
                missing[req_id] = f"the runner gave {got} places of prompt_logprobs, needed are {count}"
        return missing


def check_result(plan: SchedulerOutput, output: ModelRunnerOutput, vocab_size: int) -> None:
    """Raise RunnerError for a result that does not belong to the plan, or holds tokens that do not exist."""
    _check_types(plan, output)
    if output.step != plan.step:
        raise RunnerError(f"the runner gave the result of step {output.step} for step {plan.step}")
    check_fields(plan, output)
    _refuse_strangers(plan, output)
    _check_logprobs(plan, output)
    wanted, token_ids = int(plan.samples.sum()), output.token_ids
    if token_ids is None:
        token_ids = _tokens_of_lists(plan, output, wanted)
    elif len(token_ids) != wanted:
        raise RunnerError(f"the runner gave {len(token_ids)} tokens in step {plan.step}, {wanted} requests sample")
    if len(token_ids) and not 0 <= int(token_ids.min()) <= int(token_ids.max()) < vocab_size:
        raise RunnerError(
            f"the runner gave tokens from {token_ids.min()} to {token_ids.max()} in step {plan.step}, "
            f"limits are 0 and {vocab_size - 1}"
        )


def _check_types(plan: SchedulerOutput, output: object) -> None:
    """A runner of a user's own may give anything."""
    if not isinstance(output, ModelRunnerOutput):
        raise RunnerError(f"the runner gave {shown(output)} in step {plan.step}, needed is a ModelRunnerOutput")
    for name in ("sampled_token_ids", "logprobs", "prompt_logprobs", "failed"):
        given: object = getattr(output, name)
        if not isinstance(given, Mapping) and not (name == "sampled_token_ids" and given is None):
            raise RunnerError(f"the runner gave {name}={shown(given)} in step {plan.step}, needed is a dict by request")
    token_ids: object = output.token_ids
    if token_ids is None:
        return
    if not isinstance(token_ids, np.ndarray):
        raise RunnerError(f"the runner gave {shown(token_ids)} as token_ids in step {plan.step}, needed is an array")
    if token_ids.dtype.kind != "i" or token_ids.ndim != 1:
        kind = f"{token_ids.ndim}-dimensional {token_ids.dtype}"
        raise RunnerError(f"the runner gave a {kind} array in step {plan.step}, needed are whole numbers in a row")


def _refuse_strangers(plan: SchedulerOutput, output: ModelRunnerOutput) -> None:
    for what, ids in (
        ("gave tokens for", output.sampled_token_ids or ()),
        ("gave logprobs for", output.logprobs),
        ("gave prompt_logprobs for", output.prompt_logprobs),
        ("says of a failure of", output.failed),
    ):
        if ids and (unknown := set(ids).difference(plan.req_ids)):
            raise RunnerError(f"the runner {what} {sorted(unknown)} in step {plan.step}, not in the plan")


def _tokens_of_lists(plan: SchedulerOutput, output: ModelRunnerOutput, wanted: int) -> IntArray:
    """All tokens of a result that has lists of them."""
    given: Mapping[str, object] = output.sampled_token_ids or {}
    tokens: list[int] = []
    for req_id, some in given.items():
        if not isinstance(some, Sequence) or not all(map(_is_token, some)):
            raise RunnerError(
                f"the runner gave {shown(some)} in step {plan.step}, needed is a list of token ids (request {req_id})"
            )
        tokens += some
    if wanted > len(output.failed) and not tokens:
        raise RunnerError(f"the runner gave no token in step {plan.step}, {wanted} requests sample")
    return np.array(tokens, np.int64)


WIDEST = 2**63  # what a column of whole numbers holds; the limits of the vocabulary are looked at in the column


def _is_token(given: object) -> bool:
    return isinstance(given, int | np.integer) and not isinstance(given, bool) and abs(int(given)) < WIDEST


def check_one_token_each(plan: SchedulerOutput, output: ModelRunnerOutput) -> None:
    """Raise RunnerError unless each request that samples got one token: steps planned ahead have counted on that."""
    if output.token_ids is not None:
        return
    given = output.sampled_token_ids or {}
    for req_id, samples in zip(plan.req_ids, plan.samples.tolist(), strict=True):
        if req_id not in output.failed and (count := len(given.get(req_id, ()))) != samples:
            raise RunnerError(
                f"the runner gave {count} tokens in step {plan.step}, needed is {int(samples)}: "
                f"other numbers are possible with steps_in_flight=1 only (request {req_id})"
            )


def _check_logprobs(plan: SchedulerOutput, output: ModelRunnerOutput) -> None:
    for req_id, columns in output.logprobs.items():
        tokens = 1 if output.token_ids is not None else len((output.sampled_token_ids or {}).get(req_id, ()))
        if len(columns) != tokens:
            raise RunnerError(
                f"the runner gave {len(columns)} places of logprobs in step {plan.step}, "
                f"{tokens} tokens were sampled (request {req_id})"
            )
