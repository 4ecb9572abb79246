"""Answers: a one-shot future for any event loop, and the envelope of a question."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

from .errors import CallboardError
from .signal import Nap, end_nap, nap_maker

M = TypeVar("M")
T = TypeVar("T")

_PENDING: Any = object()


class Reply(Generic[T]):
    """A value or an error that comes once and stays; any number of tasks may await it."""

    __slots__ = ("_callbacks", "_error", "_naps", "_value")

    def __init__(self) -> None:
        self._value: T = _PENDING
        self._error: BaseException | None = None
        self._naps: list[Nap] = []  # one for each task that awaits it
        self._callbacks: list[Callable[[Reply[T]], None]] = []

    def done(self) -> bool:
        """Whether it has come."""
        return self._value is not _PENDING or self._error is not None

    @property
    def error(self) -> BaseException | None:
        """The error, if one has come."""
        return self._error

    @property
    def value(self) -> T:
        """The value, which has come."""
        if self._value is _PENDING:
            raise CallboardError("the reply has no value")
        return self._value

    def set_result(self, value: T) -> None:
        """Give the value."""
        self._check_first()
        self._value = value
        self._wake()

    def set_error(self, error: BaseException) -> None:
        """Give the error, which every awaiting task gets."""
        self._check_first()
        self._error = error
        self._wake()

    def add_done_callback(self, callback: Callable[[Reply[T]], None]) -> None:
        """Call ``callback`` with this reply when it has come; at once if it has. It must not raise."""
        if self.done():
            callback(self)
        else:
            self._callbacks.append(callback)

    async def wait(self) -> T:
        """The value, once it is there; or raises the error."""
        while self._value is _PENDING and self._error is None:
            nap = nap_maker()()
            self._naps.append(nap)
            try:
                await nap
            finally:
                self._naps.remove(nap)
        if self._error is not None:
            raise self._error
        return self._value

    def __await__(self) -> Generator[Any, Any, T]:
        return self.wait().__await__()

    def _check_first(self) -> None:
        if self.done():
            raise CallboardError("a reply was given twice")

    def _wake(self) -> None:
        for nap in self._naps:
            end_nap(nap)
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)


class Ask(Generic[M, T]):
    """A message that wants an answer. The message itself stays a plain value."""

    __slots__ = ("message", "reply")

    def __init__(self, message: M) -> None:
        self.message = message
        self.reply: Reply[T] = Reply()


class OpenAsks:
    """Questions that were taken out of a lane and may still lack their answers."""

    def __init__(self) -> None:
        self._asks: list[Ask[Any, Any]] = []

    def note(self, *asks: Ask[Any, Any]) -> None:
        """These were taken."""
        self._asks = [ask for ask in self._asks if not ask.reply.done()]
        self._asks += asks

    def take(self) -> list[Ask[Any, Any]]:
        """Those that lack their answer; they are no longer watched."""
        asks, self._asks = self._asks, []
        return [ask for ask in asks if not ask.reply.done()]
