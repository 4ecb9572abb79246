"""From the queue to a row: who is asked for, and what a request gets when it is let in."""

from __future__ import annotations

from bisect import bisect_right

from .books import Books
from .departures import Departures
from .ends import Ends
from .limits import token_limit
from .messages import Admit, Admitted, Victim
from .plan import NewRequestData
from .request import RequestStatus
from .request_state import RequestState
from .victims import displaced_by


class Admission:
    """Lets waiting requests in, in the policy's order."""

    def __init__(self, books: Books, departures: Departures, ends: Ends) -> None:
        self._books, self._departures, self._ends = books, departures, ends
        self._asked: list[str] = []  # whom this step asks for, in order

    # --- what waiting requests want

    def candidates(self, budget: int, now: float) -> tuple[list[Admit], list[Victim]]:
        """Waiting requests in the policy's order, as rows and budget could take them; who gives way to the first."""
        waiting, most = self._books.waiting, min(self._most(), budget)
        if not len(waiting):
            return [], []
        states = waiting.candidates(most, now, blocks_come_back=self._departures.owed)
        self._asked = [state.request_id for state in states]
        if not states:
            return [], []
        displaced = displaced_by(self._books, states[0]) if self._is_tight(states[0]) else []
        return [self._ask(state) for state in states], displaced

    def _most(self) -> int:
        """Requests that could get a row; without a free one, whether one could be made free."""
        table = self._books.table
        if not table.num_free:
            return int(self._books.waiting.displaces or table.num_out_of_turn > 0)
        return table.num_free + self._books.config.max_backfill - table.num_out_of_turn

    def _is_tight(self, head: RequestState) -> bool:
        books = self._books
        room = books.sizes.total_room(head.num_tokens) + books.keep_free
        return not books.table.num_free or room > books.free_blocks

    def _ask(self, state: RequestState) -> Admit:
        """Nothing changes for most of those who wait: they are asked for in the same words in each step."""
        changes = state.num_preemptions > 0 or state.request.session is not None
        if changes or state.asks is None:
            state.asks = self._words_for(state)
        return state.asks

    def _words_for(self, state: RequestState) -> Admit:
        kept_as, num_held = self._books.waiting.kept_for(state)
        return Admit(
            req_id=state.request_id,
            num_tokens=state.num_tokens,
            digests=state.digests,
            read_cache=state.request.sampling_params.reads_prefix_cache,
            resumed=state.num_preemptions > 0,
            num_held=num_held,
            kept_as=kept_as,
        )

    # --- what an admitted request gets

    def admit(self, admitted: Admitted, now: float) -> NewRequestData:
        """Give a request a row; returns what the runner must know of it."""
        books = self._books
        state = books.requests[admitted.req_id]
        resumed = state.status is RequestStatus.PREEMPTED
        books.waiting.admit(state)
        token_ids = state.token_ids()
        state.row = self._take_row(state, token_ids, admitted)
        state.status = RequestStatus.RUNNING
        books.turns.left_queue(state.request_id)
        if admitted.out_of_turn:
            ahead = self._asked[: self._asked.index(state.request_id)]
            overtaken = [req_id for req_id in ahead if books.requests[req_id].row < 0]
            books.turns.overtake(state.request_id, state.row, overtaken)
        books.reports.admitted(state, admitted)
        books.note("SCHEDULED", state.request_id, now)
        return NewRequestData(
            req_id=state.request_id,
            row=state.row,
            token_ids=token_ids,
            num_prompt_tokens=len(state.request.prompt_token_ids),
            block_ids=admitted.block_ids,
            more_block_ids=admitted.more_block_ids,
            num_computed_tokens=admitted.num_cached_tokens,
            write_from=admitted.write_from,
            sampling_params=state.request.sampling_params,
            adapter=state.request.adapter,
            resumed=resumed,
        )

    def _take_row(self, state: RequestState, token_ids: list[int], admitted: Admitted) -> int:
        books, request, table = self._books, state.request, self._books.table
        row = table.admit(
            state.request_id,
            token_ids,
            len(request.prompt_token_ids),
            token_limit(request, books.config, books.sizes, books.pool_blocks),
            priority=request.priority,
            place=self._place(state),
            out_of_turn=admitted.out_of_turn,
        )
        table.ignores_eos[row] = request.sampling_params.ignore_eos
        if self._ends.watches(state):
            table.watch(row)
        table.stop_at(row, request.sampling_params.stop_token_ids or ())
        cached = admitted.num_cached_tokens
        table.computed[row] = table.settled[row] = table.told[row] = cached
        size, covered = books.config.block_size, cached + admitted.num_scheduled_tokens
        table.room[row] = min(map(len, (admitted.block_ids, *admitted.more_block_ids))) * size
        table.published[row] = covered - covered % size
        return row

    def _place(self, state: RequestState) -> int | None:
        """The place of a request among those that run: the last, or the one that its priority gives."""
        if not self._books.waiting.displaces:
            return None
        priorities = [running.request.priority for running in self._books.running()]
        return bisect_right(priorities, state.request.priority)
