"""The KV cache's ledger: what each request holds, and who gets what in a step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from .block_pool import NULL_BLOCK
from .block_table import BlockTable
from .errors import BooksError
from .kv_admission import KVAdmission
from .kv_grants import Grants
from .kv_groups import ONE_GROUP, KVGroup
from .kv_growth import Growth
from .kv_ledger import Ledger
from .kv_publishing import Publishing
from .messages import Granted, Publish, Release, Reserve
from .setting_types import at_least, check_types
from .statistics import KVCacheStatistics, KVGroupStatistics


class KVCacheManager:
    """Grants blocks to requests, all or nothing, and finds prefixes that are there already.

    Args:
        num_blocks: usable blocks; the null block is extra.
        block_size: tokens in a block.
        enable_prefix_caching: without it nothing is published or found.
        groups: of layers, each with block tables of its own; their blocks come from one pool.
        max_in_flight_tokens: most tokens of a request in steps under way; bounds what groups with a
            window need at an admission. None: no limit.
        merge_equal_blocks: whether an equal block takes the place of a request's own when that is
            full. Only for a runner that honours ``SchedulerOutput.replaced``.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        enable_prefix_caching: bool = True,
        *,
        groups: Sequence[KVGroup] = ONE_GROUP,
        max_in_flight_tokens: int | None = None,
        merge_equal_blocks: bool = False,
    ) -> None:
        for name, value in (("num_blocks", num_blocks), ("block_size", block_size)):
            at_least(name, value, 1)
        if max_in_flight_tokens is not None:
            at_least("max_in_flight_tokens", max_in_flight_tokens, 1)
        flags = {"enable_prefix_caching": enable_prefix_caching, "merge_equal_blocks": merge_equal_blocks}
        check_types(flags.items())
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self._ledger = Ledger(num_blocks, block_size, groups, max_in_flight_tokens)
        self._growth = Growth(self._ledger)
        self._publishing = Publishing(self._ledger, enabled=enable_prefix_caching, merges=merge_equal_blocks)
        self._admission = KVAdmission(self._ledger, self._publishing, reads_cache=enable_prefix_caching)
        self._returned = [0] * len(groups)

    def reserve(self, wants: Reserve) -> Granted:
        """Grant one step's wants, in order."""
        journal = self._ledger.pool.journal
        journal.open(wants.report)
        self._ledger.fences.open(wants.completed)
        for release in wants.release:
            self._release(release)
        for req_id, num_tokens in wants.settled.items():
            self._pass_windows(self._ledger.tables[req_id], num_tokens)
        grants = Grants(wants)
        self._growth.grow_all(wants.grow, grants)
        # Those who may have to give way in this step may not get to compute what they would publish.
        first, last = _split(wants.publish, {victim.req_id for victim in wants.displaced})
        self._publishing.publish_all(first, grants)
        # Whoever was admitted beside one that waits for blocks on their way might take them again.
        if not (grants.preempted or grants.lacks_blocks):
            self._admission.admit_all(wants, grants)
        self._publishing.publish_all(last, grants)
        grants.take_back()
        return grants.answer(self._ledger.pool.num_free, journal.take())

    # --- giving back

    def _release(self, release: Release) -> None:
        table = self._ledger.tables.pop(release.req_id, None)
        if table is None and release.keep_as:
            self._ledger.holders.rename(release.req_id, release.keep_as)
        if table is None:
            self._ledger.holders.drop(release.req_id)
            return
        self._publishing.publish(release.req_id, release.digests, release.num_full_blocks, table, released=True)
        if release.keep_as:
            self._ledger.holders.keep(release.keep_as, table, release.fence)
            return
        full = release.num_full_blocks
        if release.lacks_last_token and self._ledger.sizes.one_whole and full < len(table.keys):
            self._ledger.pool.publish_incomplete(table.groups[0][full], table.keys[full])
        for blocks in table.held():
            self._ledger.fences.give_back(blocks, release.fence)

    def _pass_windows(self, table: BlockTable, num_tokens: int) -> None:
        """Free what windows have passed. Steps under way are past ``num_tokens``, so none of them reads it."""
        for group in self._ledger.groups:
            passed = table.pass_by(group, self._ledger.sizes.passed(group, num_tokens))
            self._ledger.pool.release(passed)
            self._returned[group] += len(passed)

    # --- the whole cache

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks; False, and nothing forgotten, while a block is held."""
        return self._ledger.pool.forget_all()

    def block_ids(self, req_id: str, group: int = 0) -> list[int]:
        """A copy of a request's block table in one group of layers; empty if it holds none."""
        table = self._ledger.tables.get(req_id)
        return list(table.groups[group]) if table else []

    @property
    def table_ids(self) -> set[str]:
        """The requests that have a block table; those that only keep blocks are not among them."""
        return set(self._ledger.tables)

    def statistics(self) -> KVCacheStatistics:
        """Counts as they are now."""
        lookups = self._admission.lookups
        return KVCacheStatistics(
            num_blocks=self.num_blocks,
            num_free_blocks=self._ledger.pool.num_free,
            num_cached_blocks=self._ledger.pool.num_cached,
            num_fenced_blocks=self._ledger.fences.num_blocks,
            num_tables=len(self._ledger.tables),
            num_kept_blocks=self._ledger.holders.num_blocks,
            prefix_queries=lookups.queries,
            prefix_hits=lookups.hits,
            preempted_queries=lookups.again_queries,
            preempted_hits=lookups.again_hits,
            evictions=self._ledger.pool.num_evictions,
            groups=tuple(map(self._group_statistics, self._ledger.groups)),
        )

    def _group_statistics(self, group: int) -> KVGroupStatistics:
        return KVGroupStatistics(
            window=self._ledger.sizes.windows[group],
            num_blocks=sum(table.num_held(group) for table in self._ledger.tables.values()),
            num_returned=self._returned[group],
        )

    def check(self) -> None:
        """Raise BooksError unless every block is held as often as tables and fences say."""
        holds = [0] * (self.num_blocks + 1)
        tables = chain(self._ledger.tables.values(), self._ledger.holders.tables())
        in_tables = chain.from_iterable(table.held() for table in tables)
        for block in chain(*in_tables, *self._ledger.fences.waiting()):
            holds[block] += 1
        if holds[NULL_BLOCK]:
            raise BooksError(f"the null block is held {holds[NULL_BLOCK]} times")
        self._ledger.pool.check(holds)
        self._ledger.fences.check()
        for req_id, table in chain(self._ledger.tables.items(), self._ledger.holders.items()):
            table.check(req_id)


def _split(publish: list[Publish], later: set[str]) -> tuple[list[Publish], list[Publish]]:
    if not later:
        return publish, []
    return [one for one in publish if one.req_id not in later], [one for one in publish if one.req_id in later]
