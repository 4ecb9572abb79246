"""The callboard itself: every unfinished request's stream, by id."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..scheduler.errors import BooksError, InvalidRequestError
from ..scheduler.messages import EngineCoreOutputs, Finished
from ..scheduler.request import FinishReason
from .stream import StreamState

ABORTED = Finished(reason=FinishReason.ABORT)


class Board:
    """Holds the streams of unfinished requests and brings them their news.

    A request leaves the board at its one end, whoever ends it. ``abort`` tells the scheduler
    to forget requests that ended here: aborted ones, and those that a stop string ended.
    """

    def __init__(self, abort: Callable[[list[str]], None]) -> None:
        self._abort = abort
        self._streams: dict[str, StreamState] = {}
        self.num_finished = 0

    def __len__(self) -> int:
        return len(self._streams)

    def add(self, state: StreamState) -> None:
        """Put up a request. Raises InvalidRequestError if its id is in use."""
        if state.request_id in self._streams:
            raise InvalidRequestError(f"request id {state.request_id!r} is in use by a request that is alive")
        self._streams[state.request_id] = state

    def get(self, request_id: str) -> StreamState | None:
        """The stream of an unfinished request."""
        return self._streams.get(request_id)

    def deliver(self, outputs: EngineCoreOutputs, now: float) -> None:
        """Bring one step's tokens and ends to their streams; requests that have left are passed over."""
        streams = self._streams
        for request_id, cached in outputs.cached.items():
            if state := streams.get(request_id):
                state.num_cached_tokens = cached
        for request_id, token in zip(outputs.req_ids, outputs.token_ids.tolist(), strict=True):
            state = streams.get(request_id)
            if state is not None and (stop := state.push(token, now)) is not None:
                self._stopped_by_string(state, stop, now)
        for request_id, end in outputs.finished.items():
            if state := streams.pop(request_id, None):
                self._end(state, end, now)

    def abort(self, request_ids: Iterable[str], now: float) -> None:
        """End requests at once; unknown ids are ignored."""
        states = [state for request_id in request_ids if (state := self._streams.pop(request_id, None))]
        for state in states:
            state.finish(ABORTED, now)
        self.num_finished += len(states)
        if states:
            self._abort([state.request_id for state in states])

    def abort_all(self, now: float) -> None:
        """End every request."""
        self.abort(list(self._streams), now)

    def fail(self, request_id: str, error: BaseException) -> None:
        """End a request that the scheduler does not know of, by an error."""
        if state := self._streams.pop(request_id, None):
            state.fail(error)
            self.num_finished += 1

    def fail_all(self, make_error: Callable[[], BaseException]) -> None:
        """End every request by an error of its own."""
        for request_id in list(self._streams):
            self.fail(request_id, make_error())

    def _end(self, state: StreamState, end: Finished, now: float) -> None:
        self.num_finished += 1
        if end.reason is FinishReason.ERROR:
            state.fail(InvalidRequestError(end.error or "the request failed"))
        else:
            state.finish(end, now)

    def _stopped_by_string(self, state: StreamState, stop: str, now: float) -> None:
        del self._streams[state.request_id]
        self._end(state, Finished(reason=FinishReason.STOP, stop_reason=stop), now)
        self._abort([state.request_id])

    def check(self) -> None:
        """Raise BooksError if a request that has ended is still here."""
        ended = [state.request_id for state in self._streams.values() if state.ended]
        if ended:
            raise BooksError(f"requests that have ended are still on the board: {ended}")
