"""Blocks of requests that hold no row: kept for their return, and given up piece by piece as others need them."""

from __future__ import annotations

from collections.abc import Iterable

from .block_pool import BlockPool
from .block_table import BlockTable
from .fences import Fences
from .kv_groups import GroupSizes


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
        """Keep a table, in the place of one of that name; ``fence`` is the last step that may touch its blocks."""
        self.drop(req_id)
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

    def rename(self, req_id: str, name: str) -> None:
        """Keep what is left of a request's table for its session, in the place of what was kept before."""
        if req_id in self._kept:
            self.keep(name, *self._kept.pop(req_id))
        else:
            self.drop(name)

    def fit(self, name: str, num_tokens: int, sizes: GroupSizes, pool: BlockPool) -> None:
        """Cut a session's table down to what another text of the session can go on from.

        ``num_tokens`` are computed of what both texts begin with. The new text writes behind them,
        and not into blocks that others read or may find: these are left out, also where the first
        of them holds a few tokens of both. What windows have passed is not there for a shorter text;
        what they pass by going on is given back, since an admission gets room for no more than a window.
        """
        if name not in self._kept:
            return
        table, fence = self._kept[name]
        end = _writable_to(table, num_tokens // sizes.block_size, pool)
        held = min(num_tokens, end * sizes.block_size)
        if not end or any(passed > sizes.passed(group, held) for group, passed in enumerate(table.passed)):
            self.drop(name)
            return
        for blocks in table.cut_at(end):
            self._fences.give_back(blocks, fence)
        for group in range(len(table.groups)):
            self._fences.give_back(table.pass_by(group, sizes.passed(group, held)), fence)
        table.published = min(table.published, held // sizes.block_size)

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

    def items(self) -> Iterable[tuple[str, BlockTable]]:
        """All that is kept, by the name under which it is kept."""
        return ((name, table) for name, (table, _) in self._kept.items())

    def tables(self) -> Iterable[BlockTable]:
        """All tables that are kept."""
        return (table for table, _ in self._kept.values())


def _writable_to(table: BlockTable, first: int, pool: BlockPool) -> int:
    """The end of the blocks from ``first`` on that only this table's holder reads, in every group."""
    end = min(first, table.length)
    while end < table.length and all(pool.is_private(blocks[end]) for blocks in table.groups):
        end += 1
    return end
