"""A step in the making: what the running requests want, computed on columns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .arrays import NO_BOOLS, BoolArray, IntArray
from .kv_groups import GroupSizes
from .messages import Grow
from .running_table import RunningTable


class Head(NamedTuple):
    """The first of the queue, as far as running requests must know of it.

    Args:
        num_tokens: that a step may have to compute of it.
        priority: running requests with a greater number come after it.
    """

    num_tokens: int
    priority: int


class Draft:
    """Who wants how many tokens, in order of admission, and how many blocks that takes.

    ``short[i]`` is what request i lacks; up to 0 it has room in its last block. ``holds_prompts``
    says that this step only decodes.
    """

    __slots__ = ("holds_prompts", "num_tokens", "rows", "short")

    def __init__(self, rows: IntArray, num_tokens: IntArray, short: IntArray, holds_prompts: bool) -> None:
        self.rows = rows
        self.num_tokens = num_tokens
        self.short = short
        self.holds_prompts = holds_prompts


def want_running(
    table: RunningTable,
    *,
    budget: int,
    cap: int,
    block_size: int,
    hold_prompts: bool = False,
    head: Head | None = None,
) -> Draft:
    """Tokens that running requests lack, at most ``cap`` each (0: all), while the budget lasts.

    Those that a waiting ``head`` of the queue comes before leave it the tokens that it may want.
    With ``hold_prompts`` only those that decode get any, if there are some.
    """
    rows = table.order
    target = table.known[rows] + table.promised[rows]
    missing = target - table.computed[rows]
    behind = _behind(table, head) if head else NO_BOOLS
    if hold_prompts:
        decodes = missing <= 1
        hold_prompts = bool((decodes & ~behind if head else decodes).any())
    if hold_prompts:
        missing[missing > 1] = 0
    # The last permitted token needs no step of its own: nothing is planned past a known end.
    missing[target >= table.limit[rows]] = 0
    if cap:
        np.minimum(missing, cap, out=missing)
    if head:
        rows, missing = (np.concatenate([column[~behind], column[behind]]) for column in (rows, missing))
        behind.sort()
    before = np.cumsum(missing) - missing + (head.num_tokens * behind if head else 0)
    wanted = np.minimum(missing, np.maximum(budget - before, 0))
    rows, wanted = rows[wanted > 0], wanted[wanted > 0]
    need = -(-(table.computed[rows] + wanted) // block_size)
    return Draft(rows, wanted, need - table.blocks[rows], hold_prompts)


def _behind(table: RunningTable, head: Head) -> BoolArray:
    """Which running requests the head of the queue comes before."""
    rows = table.order
    return table.out_of_turn[rows] | (table.priority[rows] > head.priority)


def blocks_wanted(table: RunningTable, draft: Draft) -> list[Grow]:
    """The requests that have no room left."""
    (short,) = np.nonzero(draft.short > 0)
    rows = draft.rows[short]
    columns = zip(table.ids[rows].tolist(), draft.short[short].tolist(), table.out_of_turn[rows].tolist(), strict=True)
    return [Grow(req_id=req_id, num_blocks=n, takes=not out_of_turn) for req_id, n, out_of_turn in columns]


def newly_passed(table: RunningTable, sizes: GroupSizes) -> dict[str, int]:
    """Requests of which a window has passed a block since the KV cache was told, with what is settled of them."""
    if not sizes.has_windows:
        return {}
    order = table.order
    due = order[sizes.num_passed(table.settled[order]) > sizes.num_passed(table.told[order])]
    table.told[due] = table.settled[due]
    return dict(zip(table.ids[due].tolist(), table.settled[due].tolist(), strict=True))


def soon_passed(table: RunningTable, sizes: GroupSizes) -> int:
    """Blocks that windows will have passed when the steps under way have ended."""
    if not sizes.has_windows:
        return 0
    order = table.order
    return int((sizes.num_passed(table.computed[order]) - sizes.num_passed(table.settled[order])).sum())


def newly_full(table: RunningTable, draft: Draft, block_size: int) -> list[tuple[int, int, bool]]:
    """(row, full blocks, in this step) where this step or those before have filled blocks with known tokens.

    The last says that the row has a token in this step, if it gets its blocks.
    """
    order = table.order
    computed = table.computed.copy()
    # A request that still waits for blocks may get none: its new tokens do not count yet.
    sure = draft.short <= 0
    computed[draft.rows[sure]] += draft.num_tokens[sure]
    full = np.minimum(computed[order], table.known[order]) // block_size
    (due,) = np.nonzero(full > table.published[order])
    in_step = np.isin(order[due], draft.rows)
    return list(zip(order[due].tolist(), full[due].tolist(), in_step.tolist(), strict=True))
