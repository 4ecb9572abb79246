"""What happened to requests, for whoever wants to follow it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from weakref import WeakSet

from ..actors import Signal
from ..scheduler.messages import EngineCoreEvent

# Events that a slow follower may leave unread; beyond them the oldest are dropped and counted.
UNREAD_LIMIT = 100_000


class EventStream:
    """An async iterator of events from the moment it was made; ends with the engine."""

    def __init__(self) -> None:
        self._unread: deque[EngineCoreEvent] = deque(maxlen=UNREAD_LIMIT)
        self._news = Signal()
        self._closed = False
        self.num_dropped = 0  # events lost because this follower was too slow

    def add(self, events: Iterable[EngineCoreEvent]) -> None:
        """News for the follower."""
        for event in events:
            self.num_dropped += len(self._unread) == UNREAD_LIMIT
            self._unread.append(event)
        self._news.set()

    def close(self) -> None:
        """Nothing more will come."""
        self._closed = True
        self._news.set()

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> EngineCoreEvent:
        while not self._unread:
            if self._closed:
                raise StopAsyncIteration
            await self._news.wait()
        return self._unread.popleft()


class EventLog:
    """Hands events to all followers; without any it costs nothing."""

    def __init__(self) -> None:
        self._followers: WeakSet[EventStream] = WeakSet()

    def follow(self) -> EventStream:
        """A new follower."""
        stream = EventStream()
        self._followers.add(stream)
        return stream

    def add(self, events: list[EngineCoreEvent]) -> None:
        """News for all followers."""
        if events:
            for follower in self._followers:
                follower.add(events)

    def close(self) -> None:
        """Nothing more will come."""
        for follower in self._followers:
            follower.close()
