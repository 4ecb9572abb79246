"""Where requests wait while their grammars are prepared: outside the queue, so they cost a step nothing."""

from __future__ import annotations

from collections.abc import Iterator

from .messages import PrepareGrammars
from .params import StructuredOutput
from .request import RequestStatus
from .request_state import RequestState


class GrammarRoom:
    """Parks constrained requests, and collects what the grammars must hear of them.

    A request parks when it comes and leaves when its grammar is ready, or when it ends. It holds
    no row, no block and no place in the queue meanwhile.
    """

    def __init__(self) -> None:
        self._parked: dict[str, RequestState] = {}
        self._wanted: dict[str, StructuredOutput] = {}
        self._ended: list[str] = []

    def __len__(self) -> int:
        return len(self._parked)

    def __iter__(self) -> Iterator[RequestState]:
        return iter(self._parked.values())

    def park(self, state: RequestState) -> bool:
        """Keep a request that has a constraint, and ask for its grammar; False for any other."""
        structured = state.request.sampling_params.structured_output
        if structured is None:
            return False
        state.status = RequestStatus.WAITING_FOR_GRAMMAR
        self._parked[state.request_id] = state
        self._wanted[state.request_id] = structured
        return True

    def release(self, request_id: str) -> RequestState | None:
        """A grammar is ready: its request goes to the queue; None if it has ended meanwhile."""
        state = self._parked.pop(request_id, None)
        if state is not None:
            state.status = RequestStatus.WAITING
        return state

    def take_back(self, state: RequestState) -> None:
        """The queue did not take a request that was released."""
        state.status = RequestStatus.WAITING_FOR_GRAMMAR
        self._parked[state.request_id] = state

    def end(self, state: RequestState) -> bool:
        """A request ends; whether it was parked here."""
        if state.request.sampling_params.structured_output is None:
            return False
        if self._wanted.pop(state.request_id, None) is None:  # told already
            self._ended.append(state.request_id)
        return self._parked.pop(state.request_id, None) is not None

    @property
    def has_news(self) -> bool:
        """Whether the grammars have something to hear."""
        return bool(self._wanted or self._ended)

    def take_news(self) -> PrepareGrammars:
        """What they have to hear since the last time; the ends come before the new ones."""
        numbers = {req_id: self._parked[req_id].number for req_id in self._wanted}
        news = PrepareGrammars(wanted=self._wanted, ended=self._ended, numbers=numbers)
        self._wanted, self._ended = {}, []
        return news
