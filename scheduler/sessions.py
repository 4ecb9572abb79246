"""Sessions: texts that grow by several requests, one after another, and keep their blocks in between.

Each input of a session is an ordinary request, whose prompt is the whole text so far. When it
has ended its row is free for others, and what is computed of its text is kept under the
session's name until the next input goes on from there, or until others need the blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from .errors import BooksError
from .request import FinishReason, Request
from .request_state import RequestState


class Parked(NamedTuple):
    """A session between two inputs: the text, and how many of its tokens are computed."""

    token_ids: list[int]
    num_computed: int
    made_with: tuple[str | None, str | None]  # adapter and salt

    def common(self, request: Request) -> int:
        """How many computed tokens another request begins with."""
        if (request.adapter, request.cache_salt) != self.made_with:
            return 0
        token_ids = request.prompt_token_ids
        most = min(self.num_computed, len(token_ids))
        mine = self.token_ids
        if token_ids[:most] == mine[:most]:
            return most
        return next(i for i in range(most) if token_ids[i] != mine[i])


def holder_of(session: str) -> str:
    """The name under which the KV cache keeps a session's blocks; no request has such a name."""
    return f"\0{session}"


class Sessions:
    """Which sessions are parked, and which are closed while a request of theirs is alive."""

    def __init__(self) -> None:
        self.parked: dict[str, Parked] = {}  # by name, the longest parked first
        self._alive: Counter[str] = Counter()  # requests of each session that have not ended
        self._closed: set[str] = set()  # of those that have some

    def begin(self, request: Request) -> None:
        """A request was queued."""
        if request.session is not None:
            self._alive[request.session] += 1

    def kept_for(self, state: RequestState) -> tuple[str | None, int]:
        """The holder that a waiting request may go on from, and how many tokens it has of its text."""
        session = state.request.session
        if session is None or session not in self.parked:
            return None, state.num_held
        reads = state.request.sampling_params.reads_prefix_cache
        return holder_of(session), self.parked[session].common(state.request) if reads else 0

    def resume(self, request: Request) -> None:
        """A request got a row, and with it what was kept for its session."""
        if request.session is not None:
            self.parked.pop(request.session, None)

    def end(self, request: Request, reason: FinishReason) -> str | None:
        """A request has ended; returns the name to keep its blocks under, None if they are not to be kept."""
        session = request.session
        if session is None:
            return None
        closed = session in self._closed
        self._alive[session] -= 1
        if not self._alive[session]:
            del self._alive[session]
            self._closed.discard(session)
        return None if closed or reason is FinishReason.ERROR else holder_of(session)

    def park(self, state: RequestState, num_computed: int) -> None:
        """Remember the text of an ended request whose blocks are kept."""
        session = state.request.session
        if session is not None:
            self.parked.pop(session, None)  # the last parked stands last
            made_with = state.request.adapter, state.request.cache_salt
            self.parked[session] = Parked(state.token_ids(), num_computed, made_with)

    def close(self, session: str) -> bool:
        """A session has no further input; whether the KV cache may keep blocks for it."""
        if session in self._alive:
            self._closed.add(session)
        return self.parked.pop(session, None) is not None

    def take_all(self) -> list[str]:
        """Forget what is parked; returns the holders' names."""
        holders = list(map(holder_of, self.parked))
        self.parked.clear()
        return holders

    def check(self, requests: Iterable[RequestState]) -> None:
        """Raise BooksError unless the count of each session's requests is right."""
        alive = Counter(state.request.session for state in requests if state.request.session is not None)
        if alive != self._alive:
            raise BooksError(f"sessions have {dict(alive)} requests, counted are {dict(self._alive)}")
        if strangers := self._closed.difference(alive):
            raise BooksError(f"sessions are closed and remembered: {sorted(strangers)}")
