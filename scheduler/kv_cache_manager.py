"""The KV cache's ledger: block tables, prefix look-up, and fences on what is given back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import msgspec

from .block_pool import NULL_BLOCK, BlockPool
from .errors import BooksError, ConfigError
from .kv_groups import ONE_GROUP, GroupSizes, KVGroup, longest_hit
from .messages import Admit, Admitted, Granted, Grow, Release, Reserve, Victim


class KVGroupStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one group of layers."""

    window: int | None  # tokens that its layers see; None: all
    num_blocks: int  # in tables; one that two requests share counts twice
    num_returned: int  # so far given back by requests that went on running


class KVCacheStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of the KV cache."""

    num_blocks: int  # usable blocks, the null block not counted
    num_free_blocks: int  # held by nobody, cached ones included
    num_cached_blocks: int  # found by their key, held ones included
    num_fenced_blocks: int  # given up, but a step under way may touch them
    num_tables: int  # requests that hold a block table
    prefix_queries: int  # tokens looked up at admissions, preempted requests' not counted
    prefix_hits: int  # tokens of these that were found
    preempted_queries: int  # the same for requests that come back after a preemption
    preempted_hits: int
    evictions: int  # cached blocks that were handed out anew
    groups: tuple[KVGroupStatistics, ...]

    @property
    def usage(self) -> float:
        """Share of the pool that is held, 0 to 1."""
        return 1.0 - self.num_free_blocks / self.num_blocks


class _Table:
    """A request's blocks in each group, the keys of its full ones, and how many of them are published.

    Of ``groups[g]`` the first ``passed[g]`` are the null block.
    """

    __slots__ = ("groups", "keys", "passed", "published")

    def __init__(self, groups: list[list[int]], passed: list[int], keys: list[bytes], published: int) -> None:
        self.groups = groups
        self.passed = passed
        self.keys = keys
        self.published = published

    def held(self) -> list[list[int]]:
        """The blocks of each group without the null block."""
        return [blocks[passed:] for blocks, passed in zip(self.groups, self.passed, strict=True)]

    def missing(self, num_blocks: int) -> list[int]:
        """What each group lacks for ``num_blocks`` more than all of them have."""
        lengths = [len(blocks) for blocks in self.groups]
        target = min(lengths) + num_blocks
        return [max(0, target - length) for length in lengths]


class _Grants:
    """A ``Granted`` in the making."""

    def __init__(self, wants: Reserve) -> None:
        self.victims: Iterator[Victim] = iter(wants.victims)
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
        groups: of layers, each with block tables of its own; all share the blocks.
        max_in_flight_tokens: most tokens of a request in steps under way; bounds what groups with a window
            need at an admission.
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
        self._pool = BlockPool(num_blocks)
        self._groups = range(len(groups))
        self._sizes = GroupSizes(groups, block_size, max_in_flight_tokens)
        self._returned = [0] * len(groups)
        self._tables: dict[str, _Table] = {}
        self._fenced: list[tuple[int, list[int]]] = []
        self._completed = 0
        self._queries = self._hits = self._again_queries = self._again_hits = 0

    def reserve(self, wants: Reserve) -> Granted:
        """Grant one step's wants, in order."""
        self._open_fences(wants.completed)
        for release in wants.release:
            self._release(release)
        for req_id, num_tokens in wants.settled.items():
            self._give_back_passed(self._tables[req_id], num_tokens)
        grants = _Grants(wants)
        for grow in wants.grow:
            self._grow(grow, grants)
        gone = set(grants.preempted)
        for publish in wants.publish:
            if publish.req_id not in gone:
                self._publish(self._tables[publish.req_id], publish.num_full_blocks, publish.digests)
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
        )

    # --- giving back

    def _release(self, release: Release) -> None:
        table = self._tables.pop(release.req_id, None)
        if table is None:  # a preempted request that ended while it waited holds nothing
            return
        self._publish(table, release.num_full_blocks, release.digests)
        self._give_back_all(table, release.fence)

    def _give_back_all(self, table: _Table, fence: int) -> None:
        for blocks in table.held():
            self._give_back(blocks, fence)

    def _give_back_passed(self, table: _Table, num_tokens: int) -> None:
        """Free what windows have passed. Steps under way are past ``num_tokens``, so none of them reads it."""
        for group in self._groups:
            old, new = table.passed[group], self._sizes.passed(group, num_tokens)
            if new > old:
                blocks = table.groups[group]
                self._pool.release(blocks[old:new])
                blocks[old:new] = [NULL_BLOCK] * (new - old)
                table.passed[group] = new
                self._returned[group] += new - old

    def _give_back(self, blocks: list[int], fence: int) -> None:
        if fence <= self._completed:
            self._pool.release(blocks)
        else:
            self._fenced.append((fence, blocks))

    def _open_fences(self, completed: int) -> None:
        self._completed = completed
        if not self._fenced:
            return
        for fence, blocks in self._fenced:
            if fence <= completed:
                self._pool.release(blocks)
        self._fenced = [entry for entry in self._fenced if entry[0] > completed]

    def _on_their_way(self) -> int:
        return sum(self._pool.last_hold(blocks) for _, blocks in self._fenced)

    # --- running requests

    def _grow(self, grow: Grow, grants: _Grants) -> None:
        if grow.req_id in grants.preempted:
            return
        table = self._tables[grow.req_id]
        missing = table.missing(grow.num_blocks)
        if not self._make_room(grow, sum(missing), grants):
            return
        grown = [self._pool.take(count) for count in missing]
        for blocks, new in zip(table.groups, grown, strict=True):
            blocks.extend(new)
        grants.grown[grow.req_id] = grown[0]
        if len(grown) > 1:
            grants.grown_more[grow.req_id] = grown[1:]

    def _make_room(self, grow: Grow, num_blocks: int, grants: _Grants) -> bool:
        """Preempt until there is room; no more than needed, counting what will be free soon."""
        while self._pool.num_free < num_blocks:
            if self._pool.num_free + self._on_their_way() >= num_blocks:
                grants.stalled.add(grow.req_id)
                return False
            victim = next(grants.victims, None)
            if victim is None:
                grants.stalled.add(grow.req_id)
                return False
            self._preempt(victim, grants)
            if victim.req_id == grow.req_id:
                return False
        return True

    def _preempt(self, victim: Victim, grants: _Grants) -> None:
        self._give_back_all(self._tables.pop(victim.req_id), victim.fence)
        grants.preempted.append(victim.req_id)

    def _publish(self, table: _Table, num_full_blocks: int, digests: list[bytes]) -> None:
        if not self.enable_prefix_caching:
            return
        table.keys.extend(digests)
        # Whoever makes no keys has nothing to publish.
        for index in range(table.published, min(num_full_blocks, len(table.keys))):
            for group in self._groups:
                if index >= table.passed[group]:
                    self._pool.publish(table.groups[group][index], _key(table.keys[index], group))
        table.published = max(table.published, num_full_blocks)

    # --- waiting requests

    def _admit_all(self, wants: Reserve, grants: _Grants) -> None:
        budget = wants.token_budget
        for admit in wants.admit:
            hit = self._longest_hit(admit)
            missing = admit.num_tokens - hit * self.block_size
            chunk = min(missing, budget, wants.prefill_cap or missing)
            if chunk < 1 or (chunk < missing and not wants.split_prompts):
                return
            if not self._fits(admit, hit, wants, grants):
                grants.refused = True
                return
            budget -= chunk
            self._admit(admit, hit, chunk, grants)

    def _longest_hit(self, admit: Admit) -> int:
        """Cached blocks of the prefix; at least one token is left, so that there is a result."""
        if not (self.enable_prefix_caching and admit.read_cache):
            return 0
        keys, find = admit.digests, self._pool.find
        limit = min(len(keys), (admit.num_tokens - 1) // self.block_size)
        if self._sizes.one_whole:
            return next((i for i in range(limit) if find(keys[i]) == NULL_BLOCK), limit)
        return longest_hit(self._sizes, limit, lambda group, i: find(_key(keys[i], group)) != NULL_BLOCK)

    def _hit_blocks(self, admit: Admit, hit: int) -> list[list[int]]:
        """For each group the blocks of a hit that are needed to go on from it, the hit's last ones."""
        firsts = [hit - self._sizes.seen(group, hit) for group in self._groups]
        keys = [[_key(key, group) for key in admit.digests[firsts[group] : hit]] for group in self._groups]
        return [[self._pool.find(key) for key in own] for own in keys]

    def _fits(self, admit: Admit, hit: int, wants: Reserve, grants: _Grants) -> bool:
        found = self._hit_blocks(admit, hit)
        need = sum(self._sizes.room(group, admit.num_tokens, hit) for group in self._groups)
        # A hit that nobody holds leaves the free order too: it costs room as a new block does.
        need -= sum(not self._pool.is_free(block) for block in chain(*found))
        alone = not self._tables and not grants.admitted
        return need + (0 if alone else wants.keep_free) <= self._pool.num_free

    def _admit(self, admit: Admit, hit: int, chunk: int, grants: _Grants) -> None:
        cached, found = hit * self.block_size, self._hit_blocks(admit, hit)
        self._pool.share(chain(*found))
        passed = [hit - len(blocks) for blocks in found]
        new = [self._sizes.room(group, admit.num_tokens, hit) - len(found[group]) for group in self._groups]
        blocks = [[NULL_BLOCK] * passed[g] + found[g] + self._pool.take(new[g]) for g in self._groups]
        table = self._tables[admit.req_id] = _Table(blocks, passed, list(admit.digests), hit)
        self._publish(table, (cached + chunk) // self.block_size, [])
        self._count_lookup(admit, cached)
        grants.admitted.append(
            Admitted(
                req_id=admit.req_id,
                block_ids=list(blocks[0]),
                more_block_ids=[list(own) for own in blocks[1:]],
                num_cached_tokens=cached,
                num_scheduled_tokens=chunk,
            )
        )

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
        """A copy of a request's block table; empty if it holds none."""
        table = self._tables.get(req_id)
        return list(table.groups[group]) if table else []

    def statistics(self) -> KVCacheStatistics:
        """Counts as they are now."""
        return KVCacheStatistics(
            num_blocks=self.num_blocks,
            num_free_blocks=self._pool.num_free,
            num_cached_blocks=self._pool.num_cached,
            num_fenced_blocks=sum(len(blocks) for _, blocks in self._fenced),
            num_tables=len(self._tables),
            prefix_queries=self._queries,
            prefix_hits=self._hits,
            preempted_queries=self._again_queries,
            preempted_hits=self._again_hits,
            evictions=self._pool.num_evictions,
            groups=tuple(map(self._group_statistics, self._groups)),
        )

    def _group_statistics(self, group: int) -> KVGroupStatistics:
        tables = self._tables.values()
        return KVGroupStatistics(
            window=self._sizes.windows[group],
            num_blocks=sum(len(table.groups[group]) - table.passed[group] for table in tables),
            num_returned=self._returned[group],
        )

    def check(self) -> None:
        """Raise BooksError unless every block is held as often as tables and fences say."""
        holds = [0] * (self.num_blocks + 1)
        in_tables = chain.from_iterable(table.held() for table in self._tables.values())
        for blocks in chain(in_tables, (blocks for _, blocks in self._fenced)):
            for block in blocks:
                holds[block] += 1
        if holds[NULL_BLOCK]:
            raise BooksError(f"the null block is held {holds[NULL_BLOCK]} times")
        self._pool.check(holds)
        for fence, blocks in self._fenced:
            if fence <= self._completed:
                raise BooksError(f"{len(blocks)} blocks wait for step {fence}, step {self._completed} has ended")
        for req_id, table in self._tables.items():
            for blocks, passed in zip(table.groups, table.passed, strict=True):
                if any(blocks[:passed]):
                    raise BooksError(f"{req_id!r} still has blocks among the {passed} that its window has passed")


def _key(digest: bytes, group: int) -> bytes:
    """What a group's block is found by; the tag keeps groups apart."""
    return digest + group.to_bytes(4, "little") if group else digest
