"""Streaming input: a session is a text that its user and the model extend by turns."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from ..scheduler.errors import EngineDeadError, InvalidRequestError
from ..scheduler.messages import Finished
from ..scheduler.params import SamplingParams
from ..scheduler.request import FinishReason
from .board import public_id
from .door import Door
from .intake import Prompted
from .stream import RequestStream, StreamState
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    from .wiring import Parts


def check_chunk_params(door: Door, params: Any, name: str) -> SamplingParams:
    """The parameters of an input, if a session can be continued with them."""
    params = door.check_params(params, name)
    if params.n != 1:
        raise InvalidRequestError(f"n is {params.n}, needed is 1: a session has one text (request {name})")
    return params


class ChunkState(StreamState):
    """One input of a session and its completion; tells the session when it has ended."""

    __slots__ = ("_before", "_tell_end")

    def __init__(
        self,
        request_id: str,
        params: SamplingParams,
        tokenizer: Tokenizer | None,
        arrived: float,
        ended: Callable[[ChunkState], None],
    ) -> None:
        super().__init__(request_id, params, tokenizer, arrived)
        self._tell_end = ended
        self._before: list[int] | None = None  # the session's text up to here, this input included

    def begin(self, prompt_token_ids: list[int]) -> None:
        """Remember the prompt: the reader may write to the other one."""
        super().begin(prompt_token_ids)
        self._before = list(prompt_token_ids)

    def finish(self, end: Finished, now: float) -> None:
        super().finish(end, now)
        self._tell_end(self)

    def fail(self, error: BaseException) -> None:
        super().fail(error)
        self._tell_end(self)

    def whole_text(self) -> list[int] | None:
        """The text with this input and what was given out for it, without a token that ended it.

        None for an input that has not reached the scheduler.
        """
        if self._before is None:
            return None
        end = self.end
        by_token = end is not None and end.reason is FinishReason.STOP and not isinstance(end.stop_reason, str)
        return self._before + self._tokens[: len(self._tokens) - by_token]


class Session:
    """What ``Engine.open_session`` returns: inputs go in one after another, each has a stream of its own.

    Between two inputs the text's keys and values are kept as long as nobody else needs the room,
    so an input computes little more than its own tokens. Leaving the session as a context
    manager, closing it or dropping it gives them back; inputs that have not ended are aborted
    then. It belongs to the engine's event loop.
    """

    def __init__(
        self,
        parts: Callable[[], Parts],
        name: str,
        params: SamplingParams,
        options: dict[str, Any],
        tokenizer: Tokenizer | None,
    ) -> None:
        self._owned, self._parts = parts, parts()
        self._name = name  # inside the engine
        self._params, self._options, self._tokenizer = params, options, tokenizer
        self._numbers = itertools.count()
        self._token_ids: list[int] = []
        self._waiting: deque[tuple[ChunkState, Prompted]] = deque()
        self._current: ChunkState | None = None  # submitted and not ended
        self._closed = False

    @property
    def session_id(self) -> str:
        """The session's id."""
        return public_id(self._name)

    @property
    def token_ids(self) -> list[int]:
        """The whole text so far: inputs, and what was given out for them."""
        current = self._current.whole_text() if self._current else None
        return list(self._token_ids) if current is None else current

    def send(self, prompt_chunk: str | Sequence[int], params: SamplingParams | None = None) -> RequestStream:
        """Extend the text by an input; returns the stream of what the model adds to it, at once.

        An input that is sent while one before it has not ended waits for that. An end or stop
        token that ended a completion does not stay in the text, all else that was given out does,
        also by an input that was aborted; one that was aborted before its turn leaves no trace.

        Raises InvalidRequestError for what can never be served and when the session is closed,
        EngineOverloadedError, EngineDeadError. An input that makes the text too long ends its
        stream with InvalidRequestError, and the text stays as it was.
        """
        parts = self._owned()
        if self._closed:
            raise InvalidRequestError(f"session {self.session_id!r} is closed")
        request_id = self._make_id(parts)
        params = self._params if params is None else check_chunk_params(parts.door, params, request_id)
        prompted = parts.door.check(prompt_chunk, params, request_id=request_id, **self._options)
        parts.room.refuse(request_id, 1)
        now = parts.port.time()
        state = ChunkState(request_id, params, self._tokenizer, now, self._chunk_ended)
        parts.board.add([state])
        parts.board.load.enter(state.key, len(prompted.token_ids or ()))
        prompted = msgspec.structs.replace(prompted, keys=[state.key], arrived=now, session=self._name)
        self._waiting.append((state, prompted))
        self._submit_next()
        return RequestStream(state, parts.abort_from_anywhere, parts.port)

    def _make_id(self, parts: Parts) -> str:
        made = (f"{self.session_id}/{number}" for number in self._numbers)
        return next(name for name in made if not parts.board.has_id(name))

    def _submit_next(self) -> None:
        if self._current is not None or self._closed or not self._waiting:
            return
        self._current, prompted = self._waiting.popleft()
        context = list(self._token_ids)
        prompted = msgspec.structs.replace(prompted, context=context, add_special_tokens=not context)
        # There is a place: each holder of one is on the board, or leaving it.
        self._parts.watch.mailbox.wake()
        self._parts.intake.prompts.send_nowait(prompted)

    def _chunk_ended(self, state: ChunkState) -> None:
        if isinstance(state.error, EngineDeadError) or self._parts.stopped:
            self._closed = True
            return
        if state is self._current:
            self._current = None
            self._token_ids = state.whole_text() or self._token_ids
            self._submit_next()
        else:  # nobody but the board has it
            self._waiting = deque(entry for entry in self._waiting if entry[0] is not state)
            self._parts.board.gone(state.key)

    # --- the end

    async def aclose(self) -> None:
        """Abort what has not ended and give everything back. May be called twice; the text can still be read."""
        if not self._closed:
            self._parts.port.check_owner()
            self._close()

    def _close(self) -> None:
        self._closed = True
        unfinished = [state.key for state, _ in self._waiting] + ([self._current.key] if self._current else [])
        self._parts.board.abort(unfinished, self._parts.port.time())
        self._parts.close_session(self._name)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        # An input that has not ended holds the session, so only its blocks and its id are left.
        if not getattr(self, "_closed", True):
            self._parts.close_session_from_anywhere(self._name)
