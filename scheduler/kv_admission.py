"""Blocks for those who wait: where each can go on, whether there is room, and what it gets."""

from __future__ import annotations

from .block_pool import NULL_BLOCK
from .block_table import BlockTable
from .kv_grants import Grants
from .kv_ledger import Ledger
from .kv_publishing import Publishing
from .messages import Admit, Admitted, Reserve
from .prefix_hit import Hit, Start, find_hit


class Lookups:
    """Tokens that were looked for in the prefix cache, and found; of those who come again apart."""

    def __init__(self) -> None:
        self.queries = self.hits = self.again_queries = self.again_hits = 0

    def count(self, admit: Admit, cached: int) -> None:
        """One request was let in."""
        if admit.resumed:
            self.again_queries += admit.num_tokens
            self.again_hits += cached
        else:
            self.queries += admit.num_tokens
            self.hits += cached


class KVAdmission:
    """Lets candidates in, in order, as far as blocks, rows and the token budget go.

    Args:
        reads_cache: without it nothing is found.
    """

    def __init__(self, ledger: Ledger, publishing: Publishing, *, reads_cache: bool) -> None:
        self._ledger = ledger
        self._pool, self._sizes, self._groups = ledger.pool, ledger.sizes, ledger.groups
        self._tables, self._holders, self._fences = ledger.tables, ledger.holders, ledger.fences
        self._publishing = publishing
        self._reads_cache = reads_cache
        self.lookups = Lookups()

    def admit_all(self, wants: Reserve, grants: Grants) -> None:
        """Ask for each candidate in turn, to the first that must wait and whoever may go in its place."""
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
        held = min(admit.num_held, own.length * self._sizes.block_size) if own else 0
        reads = self._reads_cache and admit.read_cache
        # In a window the last token sees one token more than the one behind it: it must be computed with others.
        most = (admit.num_tokens - self._sizes.has_windows) // self._sizes.block_size if reads else 0
        hit = find_hit(self._pool, self._sizes, admit.digests, most)
        if own and held >= hit.num_tokens(self._sizes.block_size):
            return Start.behind(held, admit.num_tokens, own=own)
        return Start.behind(hit.num_tokens(self._sizes.block_size), admit.num_tokens, hit=hit)

    def _make_room_for(
        self, admit: Admit, start: Start, wants: Reserve, grants: Grants, *, takes: bool
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
                self._ledger.preempt(grants.displaced.pop(0), grants)
            start = self._start(admit)  # what was given up may have been a part of it

    def _could_give(self, admit: Admit, grants: Grants) -> int:
        """Blocks that others would give to the first candidate: nobody is to lose some where that helps nobody."""
        kept = self._holders.num_blocks_of(req_id for req_id in grants.holders if req_id != admit.holder)
        own = self._holders.num_blocks_of([admit.holder])
        return kept + own + sum(self._tables[victim.req_id].num_blocks for victim in grants.displaced)

    def _row_for(self, wants: Reserve, grants: Grants, *, takes: bool) -> bool:
        """Whether there is a row; the first candidate may take one from a running request."""
        if wants.num_rows + len(grants.preempted) > len(grants.admitted):
            return True
        if not takes or not grants.displaced:
            return False
        self._ledger.preempt(grants.displaced.pop(0), grants)
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

    def _admit(self, admit: Admit, start: Start, chunk: int, grants: Grants) -> None:
        table = self._tables[admit.req_id] = self._kept_table(admit) if start.own else self._new_table(admit, start.hit)
        self._publishing.publish(admit.req_id, [], (start.num_tokens + chunk) // self._sizes.block_size, table)
        if self._reads_cache and admit.read_cache:
            self.lookups.count(admit, start.num_tokens)
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
