"""The KV cache's ledger: what each request holds, and who gets what in a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from .block_pool import NULL_BLOCK, BlockPool
from .block_table import BlockTable
from .errors import BooksError, ConfigError
from .fences import Fences
from .kv_groups import ONE_GROUP, GroupSizes, KVGroup
from .messages import Admit, Admitted, Granted, Grow, Publish, Release, Reserve, Victim
from .prefix_hit import Hit, find_hit
from .statistics import KVCacheStatistics, KVGroupStatistics


class _Grants:
    """A ``Granted`` in the making."""

    def __init__(self, wants: Reserve) -> None:
        self.victims: Iterator[Victim] = iter(wants.victims)
        self.soon_passed = wants.soon_passed
        self.grown: dict[str, list[int]] = {}
        self.grown_more: dict[str, list[list[int]]] = {}
        self.stalled: set[str] = set()
        self.preempted: list[str] = []
        self.admitted: list[Admitted] = []
        self.refused = False


class KVCacheManager:
    """Grants blocks to requests, all or nothing, and finds prefixes that are there already.

    Args:
        num_blocks: usable blocks; the null block is extra.
        block_size: tokens in a block.
        enable_prefix_caching: without it nothing is published or found.
        groups: of layers, each with block tables of its own; their blocks come from one pool.
        max_in_flight_tokens: most tokens of a request in steps under way; bounds what groups with a
            window need at an admission. None: no limit.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        enable_prefix_caching: bool = True,
        *,
        groups: Sequence[KVGroup] = ONE_GROUP,
        max_in_flight_tokens: int | None = None,
    ) -> None:
        for name, value in (("num_blocks", num_blocks), ("block_size", block_size)):
            if value < 1:
                raise ConfigError(f"{name} is {value}, the least is 1")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self._sizes = GroupSizes(groups, block_size, max_in_flight_tokens)
        self._groups = range(len(groups))
        self._pool = BlockPool(num_blocks, len(groups))
        self._fences = Fences(self._pool)
        self._tables: dict[str, BlockTable] = {}
        self._returned = [0] * len(groups)
        self._queries = self._hits = self._again_queries = self._again_hits = 0

    def reserve(self, wants: Reserve) -> Granted:
        """Grant one step's wants, in order."""
        journal = self._pool.journal
        journal.open(wants.report)
        self._fences.open(wants.completed)
        for release in wants.release:
            self._release(release)
        for req_id, num_tokens in wants.settled.items():
            self._pass_windows(self._tables[req_id], num_tokens)
        grants = _Grants(wants)
        for grow in wants.grow:
            self._grow(grow, grants)
        gone = set(grants.preempted)
        for publish in wants.publish:
            if publish.req_id not in gone:
                self._publish(publish, self._tables[publish.req_id])
        if not grants.preempted:
            self._admit_all(wants, grants)
        return Granted(
            grown={req_id: blocks for req_id, blocks in grants.grown.items() if req_id not in gone},
            grown_more={req_id: blocks for req_id, blocks in grants.grown_more.items() if req_id not in gone},
            stalled=grants.stalled,
            preempted=grants.preempted,
            admitted=grants.admitted,
            refused=grants.refused,
            num_free_blocks=self._pool.num_free,
            changes=journal.take(),
        )

    # --- giving back

    def _release(self, release: Release) -> None:
        table = self._tables.pop(release.req_id, None)
        if table is None:  # a preempted request that ended while it waited holds nothing
            return
        self._publish(release, table)
        self._give_back(table, release.fence)

    def _give_back(self, table: BlockTable, fence: int) -> None:
        for blocks in table.held():
            self._fences.give_back(blocks, fence)

    def _pass_windows(self, table: BlockTable, num_tokens: int) -> None:
        """Free what windows have passed. Steps under way are past ``num_tokens``, so none of them reads it."""
        for group in self._groups:
            passed = table.pass_by(group, self._sizes.passed(group, num_tokens))
            self._pool.release(passed)
            self._returned[group] += len(passed)

    # --- running requests

    def _grow(self, grow: Grow, grants: _Grants) -> None:
        if grow.req_id in grants.preempted:
            return
        table = self._tables[grow.req_id]
        missing = table.missing(grow.num_blocks)
        if not self._make_room(grow.req_id, sum(missing), grants):
            return
        new = [self._pool.take(count) for count in missing]
        table.extend(new)
        grants.grown[grow.req_id] = new[0]
        if more := new[1:]:
            grants.grown_more[grow.req_id] = more

    def _make_room(self, req_id: str, need: int, grants: _Grants) -> bool:
        """Preempt until there is room; no more than needed, counting what will be free soon."""
        while self._pool.num_free < need:
            soon = self._pool.num_free + self._fences.num_on_their_way() + grants.soon_passed
            victim = None if soon >= need else next(grants.victims, None)
            if victim is None:
                grants.stalled.add(req_id)
                return False
            self._preempt(victim, grants)
            if victim.req_id == req_id:
                return False
        return True

    def _preempt(self, victim: Victim, grants: _Grants) -> None:
        self._give_back(self._tables.pop(victim.req_id), victim.fence)
        grants.preempted.append(victim.req_id)

    def _publish(self, full: Publish | Release, table: BlockTable) -> None:
        if not self.enable_prefix_caching:
            return
        table.keys.extend(full.digests)
        # Whoever makes no keys has nothing to publish.
        pool, end = self._pool, min(full.num_full_blocks, len(table.keys))
        for group, blocks in enumerate(table.groups):
            for index in range(max(table.published, table.passed[group]), end):
                if pool.publish(blocks[index], table.keys[index], group):
                    pool.journal.stored(full.req_id, index, isinstance(full, Release), group)
        table.published = max(table.published, full.num_full_blocks)

    # --- waiting requests

    def _admit_all(self, wants: Reserve, grants: _Grants) -> None:
        budget = wants.token_budget
        for admit in wants.admit:
            hit = self._find(admit)
            missing = admit.num_tokens - hit.num_blocks * self.block_size
            chunk = min(missing, budget, wants.prefill_cap or missing)
            if chunk < 1 or (chunk < missing and not wants.split_prompts):
                return
            if not self._fits(admit, hit, wants, grants):
                grants.refused = True
                return
            budget -= chunk
            self._admit(admit, hit, chunk, grants)

    def _find(self, admit: Admit) -> Hit:
        """The cached prefix; at least one token is left, so that there is a result."""
        reads = self.enable_prefix_caching and admit.read_cache
        most = (admit.num_tokens - 1) // self.block_size if reads else 0
        return find_hit(self._pool, self._sizes, admit.digests, most)

    def _fits(self, admit: Admit, hit: Hit, wants: Reserve, grants: _Grants) -> bool:
        need = sum(self._sizes.room(group, admit.num_tokens, hit.num_blocks) for group in self._groups)
        # A hit that nobody holds leaves the free order too: it costs room as a new block does.
        need -= sum(not self._pool.is_free(block) for block in hit.blocks())
        alone = not self._tables and not grants.admitted
        return need + (0 if alone else wants.keep_free) <= self._pool.num_free

    def _admit(self, admit: Admit, hit: Hit, chunk: int, grants: _Grants) -> None:
        cached = hit.num_blocks * self.block_size
        table = self._tables[admit.req_id] = self._new_table(admit, hit)
        full = (cached + chunk) // self.block_size
        self._publish(Publish(req_id=admit.req_id, num_full_blocks=full), table)
        self._count_lookup(admit, cached)
        first, *more = table.groups
        grants.admitted.append(
            Admitted(
                req_id=admit.req_id,
                block_ids=list(first),
                more_block_ids=[list(blocks) for blocks in more],
                num_cached_tokens=cached,
                num_scheduled_tokens=chunk,
            )
        )

    def _new_table(self, admit: Admit, hit: Hit) -> BlockTable:
        self._pool.share(hit.blocks())
        groups: list[list[int]] = []
        for group, found in enumerate(hit.found):
            new = self._sizes.room(group, admit.num_tokens, hit.num_blocks) - len(found)
            groups.append([NULL_BLOCK] * (hit.num_blocks - len(found)) + found + self._pool.take(new))
        passed = [hit.num_blocks - len(found) for found in hit.found]
        return BlockTable(groups, passed, list(admit.digests), hit.num_blocks)

    def _count_lookup(self, admit: Admit, cached: int) -> None:
        if not (self.enable_prefix_caching and admit.read_cache):
            return
        if admit.resumed:
            self._again_queries += admit.num_tokens
            self._again_hits += cached
        else:
            self._queries += admit.num_tokens
            self._hits += cached

    # --- the whole cache

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks; False, and nothing forgotten, while a block is held."""
        return self._pool.forget_all()

    def block_ids(self, req_id: str, group: int = 0) -> list[int]:
        """A copy of a request's block table in one group of layers; empty if it holds none."""
        table = self._tables.get(req_id)
        return list(table.groups[group]) if table else []

    def statistics(self) -> KVCacheStatistics:
        """Counts as they are now."""
        return KVCacheStatistics(
            num_blocks=self.num_blocks,
            num_free_blocks=self._pool.num_free,
            num_cached_blocks=self._pool.num_cached,
            num_fenced_blocks=self._fences.num_blocks,
            num_tables=len(self._tables),
            prefix_queries=self._queries,
            prefix_hits=self._hits,
            preempted_queries=self._again_queries,
            preempted_hits=self._again_hits,
            evictions=self._pool.num_evictions,
            groups=tuple(map(self._group_statistics, self._groups)),
        )

    def _group_statistics(self, group: int) -> KVGroupStatistics:
        return KVGroupStatistics(
            window=self._sizes.windows[group],
            num_blocks=sum(table.num_held(group) for table in self._tables.values()),
            num_returned=self._returned[group],
        )

    def check(self) -> None:
        """Raise BooksError unless every block is held as often as tables and fences say."""
        holds = [0] * (self.num_blocks + 1)
        in_tables = chain.from_iterable(table.held() for table in self._tables.values())
        for block in chain(*in_tables, *self._fences.waiting()):
            holds[block] += 1
        if holds[NULL_BLOCK]:
            raise BooksError(f"the null block is held {holds[NULL_BLOCK]} times")
        self._pool.check(holds)
        self._fences.check()
        for req_id, table in self._tables.items():
            table.check(req_id)
