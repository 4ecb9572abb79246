"""The callboard itself: every unfinished request's stream, by its key."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

import msgspec

from ..scheduler.errors import (
    BooksError,
    CallboardError,
    InvalidRequestError,
    PolicyError,
    RequestFailedError,
    RunnerError,
)
from ..scheduler.messages import EngineCoreOutputs, Fault, Finished
from ..scheduler.request import FinishReason
from .prompt_load import PromptLoad
from .stream import StreamState

ABORTED = Finished(reason=FinishReason.ABORT)
ERROR_OF_FAULT: dict[Fault, type[CallboardError]] = {
    "request": InvalidRequestError,
    "policy": PolicyError,
    "rule": RequestFailedError,
    "runner": RunnerError,
}
# Ends the public part of a key; no request id holds it.
MARK = "\0"


def public_id(key: str) -> str:
    """The request id behind a key."""
    return key.partition(MARK)[0]


class BoardStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of a board."""

    num_streams: int  # completions that have not ended
    num_leaving: int  # completions that ended here and not yet in the rest of the engine
    num_waiting_tokens: int  # prompt tokens of requests without an output yet
    num_finished: int  # completions that have ended since the start


class Board:
    """Holds the streams of unfinished requests and brings them their news.

    A request leaves the board at its one end, whoever ends it. Where it ends here (an abort, a
    stop string) the rest of the engine still has it on its way, so its key stays taken until the
    scheduler or the intake says that it is gone: a new request of the same id gets another key,
    and never the old one's tokens.

    Args:
        abort: tells the scheduler to forget requests, by their keys.
        tell_unsent: lets the scheduler say of a request that it never gets that it is gone.
    """

    def __init__(self, abort: Callable[[list[str]], None], tell_unsent: Callable[[str], None]) -> None:
        self._abort, self._tell_unsent = abort, tell_unsent
        self._streams: dict[str, StreamState] = {}
        self._keys: dict[str, list[str]] = {}  # request id -> keys of its completions that are on the board
        self._leaving: set[str] = set()  # keys of requests that ended here and not yet elsewhere
        self._numbers = itertools.count()
        self.load = PromptLoad()
        self.num_finished = 0

    def __len__(self) -> int:
        """Completions that have not ended."""
        return len(self._streams)

    def statistics(self) -> BoardStatistics:
        """Counts as they are now."""
        return BoardStatistics(
            num_streams=len(self._streams),
            num_leaving=len(self._leaving),
            num_waiting_tokens=self.load.total,
            num_finished=self.num_finished,
        )

    @property
    def num_places(self) -> int:
        """Completions that may still stand in a lane, those included that have ended here."""
        return len(self._streams) + len(self._leaving)

    def add(self, states: Sequence[StreamState]) -> None:
        """Put up a request by its completions, under keys of its own; InvalidRequestError if its id is in use."""
        request_id = states[0].request_id
        if request_id in self._keys:
            raise InvalidRequestError(f"request id {request_id!r} is in use by a request that is alive")
        plain = len(states) == 1 and request_id not in self._leaving
        for state in states:
            state.key = request_id if plain else f"{request_id}{MARK}{next(self._numbers)}"
            self._streams[state.key] = state
        self._keys[request_id] = [state.key for state in states]

    def has_id(self, request_id: str) -> bool:
        """Whether an unfinished request has this id."""
        return request_id in self._keys

    def get(self, key: str) -> StreamState | None:
        """The stream of an unfinished request."""
        return self._streams.get(key)

    def gone(self, key: str) -> None:
        """A request that ended here has left the rest of the engine too."""
        self._leaving.discard(key)

    def unsent(self, key: str) -> None:
        """The intake drops a request that ended here.

        The abort of that may be under way, so the scheduler says when it is gone.
        """
        if key in self._leaving:
            self._tell_unsent(key)

    def deliver(self, outputs: EngineCoreOutputs, now: float) -> None:
        """Bring one step's tokens and ends to their streams; requests that have left are passed over."""
        streams = self._streams
        self._bring_news(outputs)
        stopped: list[str] = []
        for key, token in zip(outputs.req_ids, outputs.token_ids.tolist(), strict=True):
            if (state := streams.get(key)) is None:
                continue
            state.push(token, now)
            if state.searches and self._search(state, now):
                stopped.append(key)
        for key, end in outputs.finished.items():
            self._end_elsewhere(key, end, now)
        if stopped:
            self._abort(stopped)

    def _bring_news(self, outputs: EngineCoreOutputs) -> None:
        """All that a stream must know before its tokens come."""
        streams = self._streams
        for event in outputs.events:
            if state := streams.get(event.request_id):
                state.note(event)
        for key, columns in outputs.prompt_logprobs.items():
            if state := streams.get(key):
                state.add_prompt_logprobs(columns)
        for key, columns in outputs.logprobs.items():
            if state := streams.get(key):
                state.add_logprobs(columns)
        for key, prefill in outputs.prefill.items():
            if state := streams.get(key):
                state.prefill = prefill
                self.load.leave(key)
        for key, end in outputs.finished.items():
            if state := streams.get(key):
                state.announce(end)

    def abort(self, keys: Iterable[str], now: float) -> None:
        """End requests at once; unknown keys are ignored."""
        states = [state for key in keys if (state := self._leave(key))]
        for state in states:
            state.finish(ABORTED, now)
        # Whoever nobody else had is gone by now, and its key may come again: no abort may be under way for it.
        if elsewhere := [state.key for state in states if state.key in self._leaving]:
            self._abort(elsewhere)

    def abort_id(self, request_id: str, now: float) -> None:
        """End the request of this id, if it is alive."""
        self.abort(list(self._keys.get(request_id, ())), now)

    def abort_all(self, now: float) -> list[str]:
        """End every request; returns the keys of all whose end the scheduler has not told yet."""
        self.abort(list(self._streams), now)
        return sorted(self._leaving)

    def fail(self, key: str, error: BaseException) -> None:
        """End a request that the intake drops, by an error."""
        if key in self._leaving:
            self.unsent(key)
            return
        self._fail(key, error)
        self.gone(key)

    def fail_all(self, make_error: Callable[[], BaseException]) -> None:
        """End every request by an error of its own."""
        for key in list(self._streams):
            if state := self._leave(key):
                state.fail(make_error())
        self._leaving.clear()

    def _leave(self, key: str) -> StreamState | None:
        """Take a stream down; its key stays taken."""
        state = self._streams.pop(key, None)
        if state is not None:
            keys = self._keys[state.request_id]
            keys.remove(key)
            if not keys:
                del self._keys[state.request_id]
            self._leaving.add(key)
            self.load.leave(key)
            self.num_finished += 1
        return state

    def _fail(self, key: str, error: BaseException) -> None:
        """End a request by an error; if it has several completions, they fail together."""
        if not (state := self._leave(key)):
            return
        state.fail(error)
        others = list(self._keys.get(state.request_id, ()))
        for other in others:
            if sibling := self._leave(other):
                sibling.fail(error)
        if others:
            self._abort(others)

    def _search(self, state: StreamState, now: float) -> bool:
        """Look for stop strings; whether one ended the request here."""
        try:
            stop = state.search()
        except Exception as error:  # noqa: BLE001 - what one text does to the tokenizer ends one request
            self._fail(state.key, error)
            return True
        if stop is None:
            return False
        self._leave(state.key)
        state.finish(Finished(reason=FinishReason.STOP, stop_reason=stop), now)
        return True

    def _end_elsewhere(self, key: str, end: Finished, now: float) -> None:
        if end.reason is FinishReason.ERROR:
            error = end.error or f"the request failed (request {key})"
            self._fail(key, ERROR_OF_FAULT[end.fault](error.replace(key, public_id(key))))
        elif state := self._leave(key):
            state.finish(end, now)
        self.gone(key)

    def check(self) -> None:
        """Raise BooksError unless ids and streams agree and nobody who has ended is still here."""
        ended = [state.request_id for state in self._streams.values() if state.ended]
        if ended:
            raise BooksError(f"requests that have ended are still on the board: {ended}")
        keys = [key for keys in self._keys.values() for key in keys]
        if sorted(keys) != sorted(self._streams):
            raise BooksError(f"{len(keys)} keys are in use, {len(self._streams)} requests are on the board")
        if both := self._leaving.intersection(self._streams):
            raise BooksError(f"requests are on the board and leaving it: {sorted(both)}")
