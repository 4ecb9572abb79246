"""Ends and preemptions: the only places where a row is given up, and what the KV cache hears of it."""

from __future__ import annotations

from collections.abc import Iterable

from .books import Books
from .messages import Finished, Release
from .request import STATUS_OF_REASON
from .request_state import RequestState
from .sessions import holder_of

End = tuple[RequestState, Finished]


class Departures:
    """Takes rows from requests, and collects what they give back until the next reservation.

    ``finished_ids`` and ``preempted_ids`` go out with the next plan. ``fence`` is the last step
    that may touch blocks which were given up.
    """

    def __init__(self, books: Books) -> None:
        self.finished_ids: set[str] = set()
        self.preempted_ids: set[str] = set()
        self.fence = 0
        self._books = books
        self._releases: list[Release] = []
        self._told_completed = 0  # the last step of which the KV cache knows that it has ended

    # --- what the KV cache is to hear

    @property
    def has_releases(self) -> bool:
        """Whether somebody has given something up since the last reservation."""
        return bool(self._releases)

    @property
    def releasing(self) -> set[str]:
        """Who gives up blocks of which the KV cache has not heard yet."""
        return {release.req_id for release in self._releases}

    @property
    def owed(self) -> bool:
        """Whether blocks would come back if the KV cache heard of an end, or of a step's end."""
        return bool(self._releases) or self._told_completed < self.fence <= self._books.completed

    def take_releases(self) -> list[Release]:
        """What was given up since the last time."""
        releases, self._releases = self._releases, []
        return releases

    def tell_completed(self) -> int:
        """The last step that has ended; the KV cache is told now."""
        self._told_completed = self._books.completed
        return self._told_completed

    def take_ids(self) -> tuple[set[str], set[str]]:
        """Who has ended and who was preempted since the plan before."""
        taken = self.finished_ids, self.preempted_ids
        self.finished_ids, self.preempted_ids = set(), set()
        return taken

    # --- ends

    def finish(self, ends: Iterable[End], now: float) -> None:
        """End requests, wherever they are, and give back what they hold."""
        books, rows = self._books, list[int]()
        for state, end in ends:
            if state.row >= 0:
                rows.append(state.row)
            self._give_up(state, books.waiting.sessions.end(state.request, end.reason))
            # Nobody here reads it again: it is for policies and stop rules of users that still hold the state.
            state.status = STATUS_OF_REASON[end.reason]
            del books.requests[state.request_id]
            books.reports.ended[state.request_id] = end
            books.counts.finished += 1
            self.finished_ids.add(state.request_id)
            books.note("FINISHED", state.request_id, now)
        if rows:
            books.table.drop(rows)

    def _give_up(self, state: RequestState, keep_as: str | None) -> None:
        """Take an ending request out of where it is. With ``keep_as`` its blocks are kept for its session."""
        if self._books.grammars.end(state):
            return
        if state.row >= 0:
            self._leave_row(state, keep_as)
        else:
            self._leave_queue(state, keep_as)

    def _leave_queue(self, state: RequestState, keep_as: str | None) -> None:
        self._books.turns.left_queue(state.request_id)
        if self._books.waiting.end(state):
            self._release(state.request_id, keep_as=keep_as)
            if keep_as:
                self._books.waiting.sessions.park(state, state.num_held)

    def _leave_row(self, state: RequestState, keep_as: str | None) -> None:
        books, row = self._books, state.row
        table, size = books.table, books.config.block_size
        computed, known, fence = int(table.computed[row]), int(table.known[row]), int(table.last_step[row])
        release = Release(
            req_id=state.request_id,
            fence=fence,
            digests=books.keys.extend(state, table.tokens[row], known // size),
            num_full_blocks=min(computed, known) // size,
            lacks_last_token=size > 1 and computed == known - 1 and known % size == 0,
            keep_as=keep_as,
        )
        self._releases.append(release)
        self.fence = max(self.fence, fence)
        state.output_token_ids = table.outputs(row)
        state.row = -1
        books.turns.left_row(state.request_id)
        if keep_as:
            books.waiting.sessions.park(state, min(computed, known))
        if books.reports.follows_kv:
            books.reports.ending[state.request_id] = state

    def close_session(self, session: str) -> None:
        """Give back what is kept for a session, or will be when its request ends. Unknown ones are ignored."""
        if self._books.waiting.sessions.close(session):
            self._release(holder_of(session))

    def _release(self, holder: str, keep_as: str | None = None) -> None:
        self._releases.append(Release(req_id=holder, fence=self.fence, keep_as=keep_as))

    # --- preemptions

    def preempt(self, state: RequestState, now: float) -> None:
        """Take a request's row. Its tokens are kept, and its blocks as long as nobody needs them."""
        books, table, row = self._books, self._books.table, state.row
        self.fence = max(self.fence, int(table.last_step[row]))
        state.output_token_ids = table.outputs(row)
        state.num_held = self._num_kept(state)
        out_of_turn = bool(table.out_of_turn[row])
        table.drop([row])
        state.row = -1
        books.turns.left_row(state.request_id)
        books.keys.hash_known(state)
        state.num_preemptions += 1
        books.counts.preemptions += 1
        self.preempted_ids.add(state.request_id)
        books.waiting.requeue(state, out_of_turn=out_of_turn)
        books.note("PREEMPTED", state.request_id, now)

    def _num_kept(self, state: RequestState) -> int:
        """Tokens that a preempted request need not compute again while it has its blocks."""
        table, row = self._books.table, state.row
        # What is computed of tokens that steps under way promise may be of others than come again.
        kept = int(min(table.computed[row], table.known[row]))
        if state.request.sampling_params.prompt_logprobs is None or state.output_token_ids:
            return kept
        # Of what steps under way compute nothing will be told: that is computed again.
        return min(kept, state.num_prompt_logprobs)

    def preempt_all(self, now: float) -> None:
        """Take rows and blocks from all running requests, and the blocks of whoever keeps some."""
        waiting = self._books.waiting
        for state in reversed(self._books.running()):
            self.preempt(state, now)
        for state in waiting.preempted.values():
            state.num_held = 0
            self._release(state.request_id)
        for holder in waiting.sessions.take_all():
            self._release(holder)
        waiting.refused = False
