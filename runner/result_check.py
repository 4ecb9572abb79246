"""What a runner gives back is looked at once, where it comes in."""

from __future__ import annotations

import numpy as np

from ..scheduler.errors import RunnerError
from ..scheduler.plan import ModelRunnerOutput, SchedulerOutput
from ..scheduler.result_fields import check_fields


def check_result(plan: SchedulerOutput, output: ModelRunnerOutput, vocab_size: int) -> None:
    """Raise RunnerError for a result that does not belong to the plan, or holds tokens that do not exist."""
    if output.step != plan.step:
        raise RunnerError(f"the runner gave the result of step {output.step} for step {plan.step}")
    check_fields(plan, output)
    _check_logprobs(plan, output)
    wanted = int(plan.samples.sum())
    token_ids = output.token_ids
    if token_ids is None:
        token_ids = np.array([t for tokens in (output.sampled_token_ids or {}).values() for t in tokens], np.int64)
        if wanted and not len(token_ids):
            raise RunnerError(f"the runner gave no token in step {plan.step}, {wanted} requests sample")
    elif token_ids.dtype.kind != "i" or token_ids.ndim != 1:
        kind = f"{token_ids.ndim}-dimensional {token_ids.dtype}"
        raise RunnerError(f"the runner gave a {kind} array in step {plan.step}, needed are whole numbers in a row")
    elif len(token_ids) != wanted:
        raise RunnerError(f"the runner gave {len(token_ids)} tokens in step {plan.step}, {wanted} requests sample")
    if len(token_ids) and not 0 <= int(token_ids.min()) <= int(token_ids.max()) < vocab_size:
        raise RunnerError(
            f"the runner gave tokens from {token_ids.min()} to {token_ids.max()} in step {plan.step}, "
            f"limits are 0 and {vocab_size - 1}"
        )


def _check_logprobs(plan: SchedulerOutput, output: ModelRunnerOutput) -> None:
    for name, given in (("logprobs", output.logprobs), ("prompt_logprobs", output.prompt_logprobs)):
        if unknown := set(given).difference(plan.req_ids):
            raise RunnerError(f"the runner gave {name} for {sorted(unknown)} in step {plan.step}, not in the plan")
    for req_id, columns in output.logprobs.items():
        tokens = 1 if output.token_ids is not None else len((output.sampled_token_ids or {}).get(req_id, ()))
        if len(columns) != tokens:
            raise RunnerError(
                f"the runner gave {len(columns)} places of logprobs in step {plan.step}, "
                f"{tokens} tokens were sampled (request {req_id})"
            )
