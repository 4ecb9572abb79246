"""Blocks of requests that hold no row: kept for their return, and given up piece by piece as others need them."""

from __future__ import annotations

from collections.abc import Iterable

from .block_table import BlockTable
from .fences import Fences


class Holders:
    """Tables of requests that were preempted or rest between two inputs.

    A preempted request would have to compute again what it gives up, so it gives from its
    tail, and no more than is needed.

    Args:
        whole: a table is given up as a whole, since windows have passed blocks at its head
            which a shorter text would need again.
    """

    def __init__(self, fences: Fences, *, whole: bool) -> None:
        self._fences, self._whole = fences, whole
        self._kept: dict[str, tuple[BlockTable, int]] = {}

    @property
    def num_blocks(self) -> int:
        """Blocks that are kept; one that two requests share counts twice."""
        return sum(table.num_blocks for table in self.tables())

    def num_blocks_of(self, req_ids: Iterable[str]) -> int:
        """Blocks that are kept for some requests."""
        return sum(self._kept[req_id][0].num_blocks for req_id in req_ids if req_id in self._kept)

    def keep(self, req_id: str, table: BlockTable, fence: int) -> None:
        """Keep a table; ``fence`` is the last step that may touch its blocks."""
        self._kept[req_id] = (table, fence)

    def find(self, req_id: str) -> BlockTable | None:
        """What is left of a request's table; None if nothing is."""
        kept = self._kept.get(req_id)
        return kept[0] if kept else None

    def take(self, req_id: str) -> BlockTable:
        """Hand a table back to its request."""
        return self._kept.pop(req_id)[0]

    def drop(self, req_id: str) -> None:
        """Give up all that is kept for a request."""
        if req_id in self._kept:
            table, fence = self._kept.pop(req_id)
            for blocks in table.held():
                self._fences.give_back(blocks, fence)

    def give(self, req_ids: Iterable[str], num_blocks: int) -> bool:
        """Give up to ``num_blocks`` back from the first of these requests that has some; whether one had.

        A block that somebody else holds too does not become free: callers look again.
        """
        for req_id in req_ids:
            if req_id not in self._kept:
                continue
            table, fence = self._kept[req_id]
            if self._whole or num_blocks >= table.num_blocks:
                self.drop(req_id)
            else:
                for blocks in table.cut(num_blocks):
                    self._fences.give_back(blocks, fence)
            return True
        return False

    def tables(self) -> Iterable[BlockTable]:
        """All tables that are kept."""
        return (table for table, _ in self._kept.values())
