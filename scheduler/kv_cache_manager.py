"""The KV cache's ledger: block tables, prefix look-up, and fences on what is given back."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from .block_pool import NULL_BLOCK, BlockPool
from .errors import BooksError, ConfigError
from .messages import Admit, Admitted, Granted, Grow, Publish, Release, Reserve, Victim


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

    @property
    def usage(self) -> float:
        """Share of the pool that is held, 0 to 1."""
        return 1.0 - self.num_free_blocks / self.num_blocks


class _Table:
    """A request's blocks, the keys of its full ones, and how many of them are published."""

    __slots__ = ("blocks", "keys", "published")

    def __init__(self, blocks: list[int], keys: list[bytes], published: int) -> None:
        self.blocks = blocks
        self.keys = keys
        self.published = published


class _Grants:
    """A ``Granted`` in the making."""

    def __init__(self, wants: Reserve) -> None:
        self.victims: Iterator[Victim] = iter(wants.victims)
        self.grown: dict[str, list[int]] = {}
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
    """

    def __init__(self, num_blocks: int, block_size: int, enable_prefix_caching: bool = True) -> None:
        for name, value in (("num_blocks", num_blocks), ("block_size", block_size)):
            if value < 1:
                raise ConfigError(f"{name} is {value}, the least is 1")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self._pool = BlockPool(num_blocks)
        self._tables: dict[str, _Table] = {}
        self._fenced: list[tuple[int, list[int]]] = []
        self._completed = 0
        self._queries = self._hits = self._again_queries = self._again_hits = 0

    def reserve(self, wants: Reserve) -> Granted:
        """Grant one step's wants, in order."""
        journal = self._pool.journal
        journal.open(wants.report)
        self._open_fences(wants.completed)
        for release in wants.release:
            self._release(release)
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
        self._give_back(table.blocks, release.fence)

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
        if not self._make_room(grow, grants):
            return
        blocks = self._pool.take(grow.num_blocks)
        self._tables[grow.req_id].blocks.extend(blocks)
        grants.grown[grow.req_id] = blocks

    def _make_room(self, grow: Grow, grants: _Grants) -> bool:
        """Preempt until there is room; no more than needed, counting what will be free soon."""
        while self._pool.num_free < grow.num_blocks:
            if self._pool.num_free + self._on_their_way() >= grow.num_blocks:
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
        table = self._tables.pop(victim.req_id)
        self._give_back(table.blocks, victim.fence)
        grants.preempted.append(victim.req_id)

    def _publish(self, full: Publish | Release, table: _Table) -> None:
        if not self.enable_prefix_caching:
            return
        table.keys.extend(full.digests)
        # Whoever makes no keys has nothing to publish.
        for index in range(table.published, min(full.num_full_blocks, len(table.keys))):
            if self._pool.publish(table.blocks[index], table.keys[index]):
                self._pool.journal.stored(full.req_id, index, isinstance(full, Release))
        table.published = max(table.published, full.num_full_blocks)

    # --- waiting requests

    def _admit_all(self, wants: Reserve, grants: _Grants) -> None:
        budget = wants.token_budget
        for admit in wants.admit:
            hit = self._longest_hit(admit)
            missing = admit.num_tokens - len(hit) * self.block_size
            chunk = min(missing, budget, wants.prefill_cap or missing)
            if chunk < 1 or (chunk < missing and not wants.split_prompts):
                return
            if not self._fits(admit, hit, wants, grants):
                grants.refused = True
                return
            budget -= chunk
            self._admit(admit, hit, chunk, grants)

    def _longest_hit(self, admit: Admit) -> list[int]:
        """Cached blocks of the prefix; at least one token is left, so that there is a result."""
        if not (self.enable_prefix_caching and admit.read_cache):
            return []
        hit: list[int] = []
        for key in admit.digests[: (admit.num_tokens - 1) // self.block_size]:
            block = self._pool.find(key)
            if block == NULL_BLOCK:
                break
            hit.append(block)
        return hit

    def _fits(self, admit: Admit, hit: list[int], wants: Reserve, grants: _Grants) -> bool:
        # A hit that nobody holds leaves the free order too: it costs room as a new block does.
        need = self._blocks_for(admit.num_tokens) - len(hit) + sum(map(self._pool.is_free, hit))
        alone = not self._tables and not grants.admitted
        return need + (0 if alone else wants.keep_free) <= self._pool.num_free

    def _admit(self, admit: Admit, hit: list[int], chunk: int, grants: _Grants) -> None:
        cached = len(hit) * self.block_size
        self._pool.share(hit)
        blocks = hit + self._pool.take(self._blocks_for(admit.num_tokens) - len(hit))
        table = self._tables[admit.req_id] = _Table(blocks, list(admit.digests), len(hit))
        self._publish(Publish(req_id=admit.req_id, num_full_blocks=(cached + chunk) // self.block_size), table)
        self._count_lookup(admit, cached)
        grants.admitted.append(
            Admitted(req_id=admit.req_id, block_ids=list(blocks), num_cached_tokens=cached, num_scheduled_tokens=chunk)
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

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    # --- the whole cache

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks; False, and nothing forgotten, while a block is held."""
        return self._pool.forget_all()

    def block_ids(self, req_id: str) -> list[int]:
        """A copy of a request's block table; empty if it holds none."""
        table = self._tables.get(req_id)
        return list(table.blocks) if table else []

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
        )

    def check(self) -> None:
        """Raise BooksError unless every block is held as often as tables and fences say."""
        holds = [0] * (self.num_blocks + 1)
        for blocks in [table.blocks for table in self._tables.values()] + [blocks for _, blocks in self._fenced]:
            for block in blocks:
                holds[block] += 1
        if holds[NULL_BLOCK]:
            raise BooksError(f"the null block is held {holds[NULL_BLOCK]} times")
        self._pool.check(holds)
        for fence, blocks in self._fenced:
            if fence <= self._completed:
                raise BooksError(f"{len(blocks)} blocks wait for step {fence}, step {self._completed} has ended")
