"""More blocks for those who run, and who gives way where there are too few."""

from __future__ import annotations

from itertools import islice

from .block_table import BlockTable
from .kv_grants import Grants
from .kv_ledger import Ledger
from .messages import Grow


class Growth:
    """Grants a step's growth in order, to each request all or nothing."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._pool, self._groups = ledger.pool, ledger.groups
        self._tables, self._holders, self._fences = ledger.tables, ledger.holders, ledger.fences

    def grow_all(self, grows: list[Grow], grants: Grants) -> None:
        """Give blocks to those who need some; who finds none stalls, or is preempted."""
        most = sum([grow.num_blocks for grow in grows]) * len(self._groups)
        if most <= self._pool.num_free:  # nobody has to give way
            self._extend_all(grows, most, grants)
            return
        for grow in grows:
            if grow.req_id not in grants.preempted:
                table = self._tables[grow.req_id]
                missing = table.missing(grow.num_blocks)
                if self._make_room(grow, sum(missing), grants):
                    self._extend(grow.req_id, table, missing, grants)

    def _extend_all(self, grows: list[Grow], most: int, grants: Grants) -> None:
        """Every step of a full batch comes here: with one group of layers the blocks are taken all at once."""
        tables = self._tables
        if len(self._groups) > 1:
            for grow in grows:
                table = tables[grow.req_id]
                self._extend(grow.req_id, table, table.missing(grow.num_blocks), grants)
            return
        new = iter(self._pool.take(most))
        for grow in grows:
            grants.grown[grow.req_id] = blocks = list(islice(new, grow.num_blocks))
            tables[grow.req_id].groups[0].extend(blocks)

    def _extend(self, req_id: str, table: BlockTable, missing: list[int], grants: Grants) -> None:
        first, *more = [self._pool.take(count) for count in missing]
        table.extend([first, *more])
        grants.grown[req_id] = first
        if more:
            grants.grown_more[req_id] = more

    def _make_room(self, grow: Grow, need: int, grants: Grants) -> bool:
        """Take from holders, then preempt, until there is room; no more than needed, counting what is free soon."""
        while (lack := need - self._pool.num_free) > 0:
            lack -= self._fences.num_on_their_way() + grants.soon_passed
            if lack > 0 and grow.takes and self._holders.give(grants.holders, lack):
                continue
            victim = next(grants.victims, None) if lack > 0 and grow.takes else None
            # Whoever must give way itself waits for what steps under way bring it, which would be lost.
            if victim is None or (victim.req_id == grow.req_id and not self._fences.has_ended(victim.fence)):
                grants.stalled.add(grow.req_id)
                grants.lacks_blocks |= grow.takes
                return False
            self._ledger.preempt(victim, grants)
            if victim.req_id == grow.req_id:
                return False
        return True
