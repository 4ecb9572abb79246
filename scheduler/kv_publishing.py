"""Full blocks become known by their keys, and equal ones are merged."""

from __future__ import annotations

from .block_pool import NULL_BLOCK
from .block_table import BlockTable
from .kv_grants import Grants
from .kv_ledger import Ledger
from .messages import Publish

Place = tuple[int, int]  # group of layers, index in its block table


class Publishing:
    """Enters blocks in the prefix cache.

    Args:
        enabled: without it nothing is entered.
        merges: whether an equal block takes the place of a request's own.
    """

    def __init__(self, ledger: Ledger, *, enabled: bool, merges: bool) -> None:
        self._pool, self._fences, self._tables = ledger.pool, ledger.fences, ledger.tables
        self._enabled, self._merges = enabled, enabled and merges

    def publish_all(self, publishes: list[Publish], grants: Grants) -> None:
        """Enter what running requests have filled, and merge what is there already."""
        for publish in publishes:
            req_id = publish.req_id
            if req_id not in grants.preempted:
                table = self._tables[req_id]
                refused = self.publish(req_id, publish.digests, publish.num_full_blocks, table)
                if refused and self._merges and publish.merges and req_id not in grants.stalled:
                    self._merge(req_id, refused, table, grants)

    def publish(
        self, req_id: str, digests: list[bytes], num_full: int, table: BlockTable, *, released: bool = False
    ) -> list[Place]:
        """Enter a table's full blocks, by its keys and ``digests`` behind them; returns what was not entered."""
        refused: list[Place] = []
        if not self._enabled:
            return refused
        keys, journal = table.keys, self._pool.journal
        keys += digests
        # Whoever makes no keys has nothing to publish.
        begin, end = table.published, min(num_full, len(keys))
        for group, blocks in enumerate(table.groups):
            places = range(max(begin, table.passed[group]), end)
            lost = self._pool.publish(blocks, keys, places, group)
            if lost:
                refused += [(group, place) for place in lost]
            if journal.is_open:
                for place in sorted(set(places).difference(lost)):
                    journal.stored(req_id, place, released, group)
        table.published = max(begin, num_full)
        return refused

    def _merge(self, req_id: str, places: list[Place], table: BlockTable, grants: Grants) -> None:
        """Where an equal block can be found, it takes the place of the request's own after this step."""
        for group, place in places:
            blocks = table.groups[group]
            own, other = blocks[place], self._pool.find(table.keys[place], group)
            if other not in (own, NULL_BLOCK):
                self._pool.share([other])
                blocks[place] = other
                self._fences.give_back([own], grants.step)
                grants.replaced.setdefault(req_id, []).append((group, place, other))
