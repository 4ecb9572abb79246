"""From a runner's result to rows and tokens: late results are dropped here.

The scheduler asks the same columns (``RunningTable.live``) where it counts what a step has settled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from .arrays import BoolArray, IntArray
from .errors import BooksError
from .logprobs import LogprobColumns
from .messages import Finished
from .plan import ModelRunnerOutput, SchedulerOutput
from .request_state import RequestState
from .running_table import RunningTable

Wave = tuple[IntArray, IntArray]


def waves_of_tokens(plan: SchedulerOutput, output: ModelRunnerOutput, table: RunningTable) -> Iterator[Wave]:
    """Parallel rows and tokens of a result: first each row's first token, then the second, and so on.

    Nearly always there is one wave. What belongs to requests that were aborted, preempted or
    finished since the plan was made, or since the wave before, is dropped. A plan counts on one
    token of each row; where there are more or none, the row's target is put right.
    """
    rows, epochs = plan.rows, plan.epochs
    if np.count_nonzero(plan.samples) < len(rows):
        rows, epochs = rows[plan.samples], epochs[plan.samples]
    live = table.live(rows, epochs)
    if output.token_ids is not None:
        yield _one_wave(plan, output.token_ids, rows, live)
        return
    lists = _lists(plan, output, table, rows, live)
    for index in range(max(map(len, lists), default=0)):
        has = table.live(rows, epochs) & np.array([len(tokens) > index for tokens in lists], np.bool_)
        tokens = [tokens[index] for tokens, one in zip(lists, has.tolist(), strict=True) if one]
        yield rows[has], np.array(tokens, np.int64)


def _one_wave(plan: SchedulerOutput, token_ids: IntArray, rows: IntArray, live: BoolArray) -> Wave:
    if len(token_ids) != len(rows):
        raise BooksError(f"step {plan.step} gave {len(token_ids)} tokens, {len(rows)} requests sample")
    if np.count_nonzero(live) == len(rows):
        return rows, token_ids
    return rows[live], token_ids[live]


def _lists(
    plan: SchedulerOutput, output: ModelRunnerOutput, table: RunningTable, rows: IntArray, live: BoolArray
) -> list[list[int]]:
    """Each row's tokens; a row that got none computes its last token again."""
    given = output.sampled_token_ids or {}
    lists = [given.get(req_id, []) for req_id in plan.sampled_req_ids]
    table.target[rows[live]] += np.array([len(tokens) - 1 for tokens in lists], np.int64)[live]
    empty = live & np.array([not tokens for tokens in lists], np.bool_)
    table.computed[rows[empty]] -= 1
    table.settled[rows[empty]] = np.maximum(table.settled[rows[empty]] - 1, table.told[rows[empty]])
    return lists


def failures(
    plan: SchedulerOutput, output: ModelRunnerOutput, table: RunningTable, states: Mapping[str, RequestState]
) -> list[tuple[RequestState, Finished]]:
    """The ends of requests for which the runner could choose nothing. Entered before the result's tokens."""
    found: list[tuple[RequestState, Finished]] = []
    for req_id, live in zip(plan.req_ids, table.live(plan.rows, plan.epochs).tolist(), strict=True):
        if live and req_id in output.failed:
            text = f"step {plan.step} failed for it: {output.failed[req_id]} (request {req_id})"
            found.append((states[req_id], Finished.by_error(text, "runner")))
    return found


def new_prompt_logprobs(
    plan: SchedulerOutput, output: ModelRunnerOutput, table: RunningTable, states: Mapping[str, RequestState]
) -> dict[str, LogprobColumns]:
    """What a result tells of prompts that was not told before: a preempted prompt is computed again from its start.

    Asked before the result's tokens are entered, which may end requests.
    """
    if not output.prompt_logprobs:
        return {}
    live = dict(zip(plan.req_ids, table.live(plan.rows, plan.epochs).tolist(), strict=True))
    first = dict(zip(plan.req_ids, plan.num_computed.tolist(), strict=True))
    found: dict[str, LogprobColumns] = {}
    for req_id, columns in output.prompt_logprobs.items():
        if not live[req_id]:
            continue
        state, begin = states[req_id], first[req_id]
        told, end = state.num_prompt_logprobs, begin + len(columns)
        if begin > told:
            raise BooksError(f"step {plan.step} tells of the prompt of {req_id} from {begin} on, {told} are told")
        if end > told:
            found[req_id] = columns.part(told - begin, len(columns))
            state.num_prompt_logprobs = end
    return found
