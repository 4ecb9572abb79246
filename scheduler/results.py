"""From a runner's result to rows and tokens: the one place where late results are dropped."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .errors import BooksError
from .plan import IntArray, ModelRunnerOutput, SchedulerOutput
from .running_table import RunningTable

Wave = tuple[IntArray, IntArray]


def waves_of_tokens(plan: SchedulerOutput, output: ModelRunnerOutput, table: RunningTable) -> Iterator[Wave]:
    """Parallel rows and tokens of a result: first each row's first token, then the second, and so on.

    Nearly always there is one wave. What belongs to requests that were aborted, preempted or
    finished since the plan was made, or since the wave before, is dropped. The promise that the
    plan made for each row is taken back.
    """
    rows, epochs = plan.rows[plan.samples], plan.epochs[plan.samples]
    live = table.live(rows, epochs)
    table.promised[rows[live]] -= 1
    if output.token_ids is not None:
        yield _one_wave(plan, output.token_ids, rows, live)
        return
    lists = _lists(plan, output, table, rows, live)
    for index in range(max(map(len, lists), default=0)):
        has = table.live(rows, epochs) & np.array([len(tokens) > index for tokens in lists], np.bool_)
        tokens = [tokens[index] for tokens, one in zip(lists, has.tolist(), strict=True) if one]
        yield rows[has], np.array(tokens, np.int64)


def _one_wave(plan: SchedulerOutput, token_ids: IntArray, rows: IntArray, live: np.ndarray) -> Wave:
    if len(token_ids) != len(rows):
        raise BooksError(f"step {plan.step} gave {len(token_ids)} tokens, {len(rows)} requests sample")
    return rows[live], token_ids[live]


def _lists(
    plan: SchedulerOutput, output: ModelRunnerOutput, table: RunningTable, rows: IntArray, live: np.ndarray
) -> list[list[int]]:
    """Each row's tokens; a row that got none computes its last token again."""
    given = output.sampled_token_ids or {}
    ids = [req_id for req_id, samples in zip(plan.req_ids, plan.samples.tolist(), strict=True) if samples]
    lists = [given.get(req_id, []) for req_id in ids]
    empty = live & np.array([not tokens for tokens in lists], np.bool_)
    table.computed[rows[empty]] -= 1
    table.settled[rows[empty]] = np.maximum(table.settled[rows[empty]] - 1, table.told[rows[empty]])
    return lists
