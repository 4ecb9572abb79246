"""The KV cache's ledger: what each request holds, and who gets what in a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice

from .block_pool import NULL_BLOCK, BlockPool
from .block_table import BlockTable
from .errors import BooksError
from .fences import Fences
from .kv_groups import ONE_GROUP, GroupSizes, KVGroup
from .kv_holders import Holders
from .messages import Admit, Admitted, Granted, Grow, Publish, Release, Reserve, Victim
from .prefix_hit import Hit, Start, find_hit
from .setting_types import at_least, check_types
from .statistics import KVCacheStatistics, KVGroupStatistics

Place = tuple[int, int]  # group of layers, index in its block table


class _Grants:
    """A ``Granted`` in the making."""

    def __init__(self, wants: Reserve) -> None:
        self.victims: Iterator[Victim] = iter(wants.victims)
        self.soon_passed = wants.soon_passed
        self.step = wants.step
        self.replaced: dict[str, list[tuple[int, int, int]]] = {}
        self.grown: dict[str, list[int]] = {}
        self.grown_more: dict[str, list[list[int]]] = {}
        self.stalled: set[str] = set()
        self.lacks_blocks = False  # a running request got no blocks, and it is its turn
        self.holders = list(wants.holders)
        self.displaced = list(wants.displaced)
        self.preempted: list[str] = []
        self.admitted: list[Admitted] = []
        self.refused = False
        self.head_fits_soon = False  # when steps under way have ended: nobody is to take that room
        self.num_out_of_turn = 0


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
        self._merges = enable_prefix_caching and merge_equal_blocks
        self._sizes = GroupSizes(groups, block_size, max_in_flight_tokens)
        self._groups = range(len(groups))
        self._pool = BlockPool(num_blocks, len(groups))
        self._fences = Fences(self._pool)
        self._tables: dict[str, BlockTable] = {}
        self._holders = Holders(self._fences, whole=self._sizes.has_windows)
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
        self._grow_all(wants.grow, grants)
        # Those who may have to give way in this step may not get to compute what they would publish.
        may_give_way = {victim.req_id for victim in wants.displaced}
        self._publish_all([publish for publish in wants.publish if publish.req_id not in may_give_way], grants)
        # Whoever was admitted beside one that waits for blocks on their way might take them again.
        if not (grants.preempted or grants.lacks_blocks):
            self._admit_all(wants, grants)
        self._publish_all([publish for publish in wants.publish if publish.req_id in may_give_way], grants)
        for req_id in grants.preempted:
            for given in (grants.grown, grants.grown_more, grants.replaced):
                given.pop(req_id, None)
        return Granted(
            grown=grants.grown,
            grown_more=grants.grown_more,
            replaced=grants.replaced,
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
        if table is None and release.keep_as:
            self._holders.rename(release.req_id, release.keep_as)
        if table is None:
            self._holders.drop(release.req_id)
            return
        self._publish(release.req_id, release.digests, release.num_full_blocks, table, released=True)
        if release.keep_as:
            self._holders.keep(release.keep_as, table, release.fence)
            return
        full = release.num_full_blocks
        if release.lacks_last_token and self._sizes.one_whole and full < len(table.keys):
            self._pool.publish_incomplete(table.groups[0][full], table.keys[full])
        for blocks in table.held():
            self._fences.give_back(blocks, release.fence)

    def _pass_windows(self, table: BlockTable, num_tokens: int) -> None:
        """Free what windows have passed. Steps under way are past ``num_tokens``, so none of them reads it."""
        for group in self._groups:
            passed = table.pass_by(group, self._sizes.passed(group, num_tokens))
            self._pool.release(passed)
            self._returned[group] += len(passed)

    # --- running requests

    def _grow_all(self, grows: list[Grow], grants: _Grants) -> None:
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

    def _extend_all(self, grows: list[Grow], most: int, grants: _Grants) -> None:
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

    def _extend(self, req_id: str, table: BlockTable, missing: list[int], grants: _Grants) -> None:
        first, *more = [self._pool.take(count) for count in missing]
        table.extend([first, *more])
        grants.grown[req_id] = first
        if more:
            grants.grown_more[req_id] = more

    def _make_room(self, grow: Grow, need: int, grants: _Grants) -> bool:
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
            self._preempt(victim, grants)
            if victim.req_id == grow.req_id:
                return False
        return True

    def _preempt(self, victim: Victim, grants: _Grants) -> None:
        """Take a request's row; its blocks are kept, and the first to be given up."""
        self._holders.keep(victim.req_id, self._tables.pop(victim.req_id), victim.fence)
        grants.holders.insert(0, victim.req_id)
        grants.preempted.append(victim.req_id)

    def _publish_all(self, publishes: list[Publish], grants: _Grants) -> None:
        for publish in publishes:
            req_id = publish.req_id
            if req_id not in grants.preempted:
                table = self._tables[req_id]
                refused = self._publish(req_id, publish.digests, publish.num_full_blocks, table)
                if refused and self._merges and publish.merges and req_id not in grants.stalled:
                    self._merge(req_id, refused, table, grants)

    def _publish(
        self, req_id: str, digests: list[bytes], num_full: int, table: BlockTable, *, released: bool = False
    ) -> list[Place]:
        """Enter a table's full blocks, by its keys and ``digests`` behind them; returns what was not entered."""
        refused: list[Place] = []
        if not self.enable_prefix_caching:
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

    def _merge(self, req_id: str, places: list[Place], table: BlockTable, grants: _Grants) -> None:
        """Where an equal block can be found, it takes the place of the request's own after this step."""
        for group, place in places:
            blocks = table.groups[group]
            own, other = blocks[place], self._pool.find(table.keys[place], group)
            if other not in (own, NULL_BLOCK):
                self._pool.share([other])
                blocks[place] = other
                self._fences.give_back([own], grants.step)
                grants.replaced.setdefault(req_id, []).append((group, place, other))

    # --- waiting requests

    def _admit_all(self, wants: Reserve, grants: _Grants) -> None:
        budget = wants.token_budget
        for number, admit in enumerate(wants.admit):
            if grants.refused and grants.num_out_of_turn == wants.backfill:
                return
            if admit.kept_as:
                # The last token is computed in any case, and sees what the window of one behind it does not.
                held = min(admit.num_held, admit.num_tokens - 1)
                self._holders.fit(admit.kept_as, held, self._sizes, self._pool)
            start = self._start(admit)
            chunk = self._chunk(admit, start, budget, wants)
            if not chunk:
                return
            start = self._make_room_for(admit, start, wants, grants, takes=number == 0)
            if start is None:
                grants.refused = True
                if grants.head_fits_soon:
                    return
                continue
            if not self._row_for(wants, grants, takes=number == 0):
                return
            chunk = self._chunk(admit, start, budget, wants)
            if not chunk:
                return
            budget -= chunk
            grants.num_out_of_turn += grants.refused
            self._admit(admit, start, chunk, grants)

    def _chunk(self, admit: Admit, start: Start, budget: int, wants: Reserve) -> int:
        """How many tokens this step may compute; 0 if none, or less than a prompt that may not be split."""
        missing = admit.num_tokens - start.num_tokens
        chunk = min(missing, budget, wants.prefill_cap or missing)
        return chunk if chunk == missing or wants.split_prompts else 0

    def _start(self, admit: Admit) -> Start:
        """Where a request can go on: behind what is kept for it, or behind what is cached of its text."""
        own = self._holders.find(admit.holder)
        held = min(admit.num_held, own.length * self.block_size) if own else 0
        reads = self.enable_prefix_caching and admit.read_cache
        # In a window the last token sees one token more than the one behind it: it must be computed with others.
        most = (admit.num_tokens - self._sizes.has_windows) // self.block_size if reads else 0
        hit = find_hit(self._pool, self._sizes, admit.digests, most)
        if own and held >= hit.num_tokens(self.block_size):
            return Start.behind(held, admit.num_tokens, own=own)
        return Start.behind(hit.num_tokens(self.block_size), admit.num_tokens, hit=hit)

    def _make_room_for(
        self, admit: Admit, start: Start, wants: Reserve, grants: _Grants, *, takes: bool
    ) -> Start | None:
        """A start for which there is room, or None; the first candidate (``takes``) may take it from others."""
        while True:
            # Who would give way to this request is no company for which blocks must stay free.
            keep_free = wants.keep_free if len(self._tables) > len(grants.displaced) * takes else 0
            lack = self._need(admit, start) + keep_free - self._pool.num_free
            if lack <= 0:
                return start
            lack -= self._fences.num_on_their_way()
            grants.head_fits_soon = takes and lack <= 0
            if not takes or not 0 < lack <= self._could_give(admit, grants):
                return None
            others = (req_id for req_id in grants.holders if req_id != admit.holder)
            gave = self._holders.give(others, lack) or (start.own is None and self._holders.give([admit.holder], lack))
            if not gave:
                if not grants.displaced:
                    return None
                self._preempt(grants.displaced.pop(0), grants)
            start = self._start(admit)  # what was given up may have been a part of it

    def _could_give(self, admit: Admit, grants: _Grants) -> int:
        """Blocks that others would give to the first candidate: nobody is to lose some where that helps nobody."""
        kept = self._holders.num_blocks_of(req_id for req_id in grants.holders if req_id != admit.holder)
        own = self._holders.num_blocks_of([admit.holder])
        return kept + own + sum(self._tables[victim.req_id].num_blocks for victim in grants.displaced)

    def _row_for(self, wants: Reserve, grants: _Grants, *, takes: bool) -> bool:
        """Whether there is a row; the first candidate may take one from a running request."""
        if wants.num_rows + len(grants.preempted) > len(grants.admitted):
            return True
        if not takes or not grants.displaced:
            return False
        self._preempt(grants.displaced.pop(0), grants)
        return True

    def _need(self, admit: Admit, start: Start) -> int:
        """Blocks that must be free."""
        if start.own is not None:
            return sum(self._missing(admit, start.own))
        need = sum(self._sizes.room(group, admit.num_tokens, start.hit.num_blocks) for group in self._groups)
        # A hit that nobody holds leaves the free order too: it costs room as a new block does.
        return need - self._pool.num_held_of(start.hit.blocks())

    def _missing(self, admit: Admit, table: BlockTable) -> list[int]:
        """What a table that was kept lacks in each group."""
        lengths = [self._sizes.length(group, admit.num_tokens, table.passed[group]) for group in self._groups]
        return [max(0, length - table.num_held(group)) for group, length in enumerate(lengths)]

    def _admit(self, admit: Admit, start: Start, chunk: int, grants: _Grants) -> None:
        table = self._tables[admit.req_id] = self._kept_table(admit) if start.own else self._new_table(admit, start.hit)
        self._publish(admit.req_id, [], (start.num_tokens + chunk) // self.block_size, table)
        self._count_lookup(admit, start.num_tokens)
        first, *more = table.groups
        grants.admitted.append(
            Admitted(
                req_id=admit.req_id,
                block_ids=list(first),
                more_block_ids=[list(blocks) for blocks in more],
                num_cached_tokens=start.num_tokens,
                num_scheduled_tokens=chunk,
                write_from=start.write_from,
                out_of_turn=grants.refused,
            )
        )

    def _kept_table(self, admit: Admit) -> BlockTable:
        table = self._holders.take(admit.holder)
        table.extend([self._pool.take(count) for count in self._missing(admit, table)])
        table.keys = list(admit.digests)
        return table

    def _new_table(self, admit: Admit, hit: Hit) -> BlockTable:
        self._pool.share(hit.blocks())
        begun = [hit.incomplete] if hit.incomplete else []
        for block in begun:
            self._pool.claim(block)
        self._holders.drop(admit.holder)
        groups: list[list[int]] = []
        for group, found in enumerate(hit.found):
            new = self._sizes.room(group, admit.num_tokens, hit.num_blocks) - len(found) - len(begun)
            groups.append([NULL_BLOCK] * (hit.num_blocks - len(found)) + found + begun + self._pool.take(new))
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

    @property
    def table_ids(self) -> set[str]:
        """The requests that have a block table; those that only keep blocks are not among them."""
        return set(self._tables)

    def statistics(self) -> KVCacheStatistics:
        """Counts as they are now."""
        return KVCacheStatistics(
            num_blocks=self.num_blocks,
            num_free_blocks=self._pool.num_free,
            num_cached_blocks=self._pool.num_cached,
            num_fenced_blocks=self._fences.num_blocks,
            num_tables=len(self._tables),
            num_kept_blocks=self._holders.num_blocks,
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
        tables = chain(self._tables.values(), self._holders.tables())
        in_tables = chain.from_iterable(table.held() for table in tables)
        for block in chain(*in_tables, *self._fences.waiting()):
            holds[block] += 1
        if holds[NULL_BLOCK]:
            raise BooksError(f"the null block is held {holds[NULL_BLOCK]} times")
        self._pool.check(holds)
        self._fences.check()
        for req_id, table in chain(self._tables.items(), self._holders.items()):
            table.check(req_id)
