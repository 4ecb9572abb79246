"""What happened to requests, for whoever wants to follow it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from weakref import WeakSet

import msgspec

from ..actors import LoopPort, Signal
from ..scheduler.messages import EngineCoreEvent
from .board import public_id

# Events that a slow follower may leave unread; beyond them the oldest are dropped and counted.
UNREAD_LIMIT = 100_000


class EventStream:
    """An async iterator of events from the moment it was made; ends with the engine."""

    def __init__(self, port: LoopPort) -> None:
        self._port = port
        self._unread: deque[EngineCoreEvent] = deque(maxlen=UNREAD_LIMIT)
        self._news = Signal()
        self._closed = False
        self._error: BaseException | None = None
        self.num_dropped = 0  # events lost because this follower was too slow

    def add(self, events: Iterable[EngineCoreEvent]) -> None:
        """News for the follower."""
        for event in events:
            self.num_dropped += len(self._unread) == UNREAD_LIMIT
            self._unread.append(event)
        self._news.set()

    def close(self, error: BaseException | None = None) -> None:
        """Nothing more will come; the follower gets the error, if there is one, after what is unread."""
        self._closed, self._error = True, error
        self._news.set()

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> EngineCoreEvent:
        self._port.check_owner()  # elsewhere the wake-up would not arrive
        while not self._unread:
            if self._closed:
                self._raise_error()
                raise StopAsyncIteration
            await self._news.wait()
        return self._unread.popleft()

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error


class EventLog:
    """Hands events to all followers; without any it costs nothing."""

    def __init__(self, port: LoopPort) -> None:
        self._port = port
        self._followers: WeakSet[EventStream] = WeakSet()

    def follow(self) -> EventStream:
        """A new follower."""
        stream = EventStream(self._port)
        self._followers.add(stream)
        return stream

    def add(self, events: list[EngineCoreEvent]) -> None:
        """News for all followers."""
        if events and self._followers:
            named = [_by_public_id(event) for event in events]
            for follower in self._followers:
                follower.add(named)

    def close(self, make_error: Callable[[], BaseException] | None = None) -> None:
        """Nothing more will come; each follower gets an error of its own, if there is one."""
        for follower in list(self._followers):
            follower.close(make_error() if make_error else None)


def _by_public_id(event: EngineCoreEvent) -> EngineCoreEvent:
    request_id = public_id(event.request_id)
    return event if request_id == event.request_id else msgspec.structs.replace(event, request_id=request_id)
