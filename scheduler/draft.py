"""A step in the making: what the running requests want, computed on columns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .arrays import NO_BOOLS, NO_INTS, BoolArray, IntArray
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
    """Who wants how many tokens, as columns in order of admission.

    ``computed`` and ``target`` are the table's, before this step; ``covered`` is what will be
    computed after it. Of request i ``lacks[i]`` tokens have no place in its blocks, up to 0 it has
    room; ``short`` are those that have not. ``holds_prompts`` says that this step only decodes.
    """

    __slots__ = ("computed", "covered", "holds_prompts", "lacks", "num_tokens", "rows", "short", "target", "total")

    def __init__(self, table: RunningTable, rows: IntArray, num_tokens: IntArray, holds_prompts: bool) -> None:
        self.rows = rows
        self.num_tokens = num_tokens
        self.total = int(num_tokens.sum())
        self.computed = table.computed[rows]
        self.target = table.target[rows]
        self.covered = self.computed + num_tokens
        self.lacks = self.covered - table.room[rows]
        self.short: IntArray = (self.lacks > 0).nonzero()[0]
        self.holds_prompts = holds_prompts


def want_running(
    table: RunningTable, *, budget: int, cap: int, hold_prompts: bool = False, head: Head | None = None
) -> Draft:
    """Tokens that running requests lack, at most ``cap`` each (0: all), while the budget lasts.

    Those that a waiting ``head`` of the queue comes before leave it the tokens that it may want.
    With ``hold_prompts`` only those that decode get any, if there are some.
    """
    rows = table.order
    # The last permitted token needs no step of its own: nothing is planned past a known end.
    missing = np.minimum(table.target[rows], table.limit[rows] - 1) - table.computed[rows]
    behind = _behind(table, head) if head else NO_BOOLS
    if hold_prompts:
        decodes = missing <= 1
        hold_prompts = bool((decodes & ~behind if head else decodes).any())
    if hold_prompts:
        missing[missing > 1] = 0
    if cap:
        np.minimum(missing, cap, out=missing)
    if head:
        rows, missing = (np.concatenate([column[~behind], column[behind]]) for column in (rows, missing))
        behind.sort()
    if head or missing.sum() > budget:
        before = np.cumsum(missing) - missing + (head.num_tokens * behind if head else 0)
        missing = np.minimum(missing, np.maximum(budget - before, 0))
    if np.count_nonzero(missing) < len(rows):
        wants = missing > 0
        rows, missing = rows[wants], missing[wants]
    return Draft(table, rows, missing, hold_prompts)


def _behind(table: RunningTable, head: Head) -> BoolArray:
    """Which running requests the head of the queue comes before."""
    rows = table.order
    return table.out_of_turn[rows] | (table.priority[rows] > head.priority)


def blocks_wanted(table: RunningTable, draft: Draft, block_size: int) -> list[Grow]:
    """The requests that have no room left."""
    short = draft.short
    if not len(short):
        return []
    rows = draft.rows[short]
    columns = zip(table.ids[rows].tolist(), draft.lacks[short].tolist(), table.out_of_turn[rows].tolist(), strict=True)
    return [
        Grow(req_id=req_id, num_blocks=-(-lack // block_size), takes=not out_of_turn)
        for req_id, lack, out_of_turn in columns
    ]


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


class Full(NamedTuple):
    """Rows whose full blocks have become more, how many they are, and which rows compute something in this step."""

    rows: IntArray
    num_blocks: IntArray
    in_step: BoolArray


NONE_FULL = Full(NO_INTS, NO_INTS, NO_BOOLS)


def newly_full(table: RunningTable, draft: Draft, block_size: int) -> Full:
    """Where this step or those before have filled blocks with known tokens."""
    rows, covered, planned = table.order, draft.covered, None
    if len(draft.short):
        # A request that still waits for blocks may get none: its new tokens do not count yet.
        covered = covered.copy()
        covered[draft.short] = draft.computed[draft.short]
    if draft.rows is not rows:  # somebody who runs has nothing to compute in this step, or the order is another
        everybody, planned = table.computed.copy(), np.zeros(len(table.computed), np.bool_)
        everybody[draft.rows], planned[draft.rows] = covered, True
        covered = everybody[rows]
    full = np.minimum(covered, table.known[rows])
    due = (full - table.published[rows] >= block_size).nonzero()[0]
    if not len(due):
        return NONE_FULL
    rows = rows[due]
    return Full(rows, full[due] // block_size, np.ones(len(due), np.bool_) if planned is None else planned[rows])
