"""Who gives blocks and rows up when they do not suffice, first to last."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .books import Books
from .messages import Grow, Victim
from .request_state import RequestState


def victims_of_growth(books: Books, grow: Sequence[Grow]) -> list[Victim]:
    """Who gives way to running requests that need blocks; nobody where the free blocks suffice for sure."""
    if sum(want.num_blocks for want in grow) * len(books.config.kv_groups) <= books.free_blocks:
        return []
    return _as_victims(books, _last_first(books))


def displaced_by(books: Books, head: RequestState) -> list[Victim]:
    """Who gives way to the head of the queue: those that run out of turn, and less urgent ones if that is wanted."""
    out_of_turn, urgent = books.table.out_of_turn, books.waiting.displaces
    if not (urgent or books.table.num_out_of_turn):
        return []
    return _as_victims(
        books,
        (
            state
            for state in _last_first(books)
            if out_of_turn[state.row] or (urgent and state.request.priority > head.request.priority)
        ),
    )


def _last_first(books: Books) -> list[RequestState]:
    """All that run, the first to give way first: those admitted out of their turn, then as the policy says."""
    victims, table = [*books.waiting.policy.victims(books.running())], books.table
    if table.num_out_of_turn:
        victims.sort(key=lambda state: not table.out_of_turn[state.row])
    return victims


def _as_victims(books: Books, states: Iterable[RequestState]) -> list[Victim]:
    last_step = books.table.last_step
    return [Victim(req_id=state.request_id, fence=int(last_step[state.row])) for state in states]
