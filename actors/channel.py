"""Bounded, named, typed queues between actors: many senders, one receiver."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Generic, TypeVar

import anyio
import msgspec

from .errors import BusyError, ChannelClosedError, ChannelEmptyError, ChannelFullError
from .reply import Ask
from .signal import Signal

T = TypeVar("T")


class ChannelStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of a channel."""

    name: str
    capacity: int  # most items in it at once, leased ones included
    depth: int  # items in it now
    leased: int  # items taken out whose place is still occupied
    peak_depth: int  # most items in it at once so far, leased ones included
    sent: int  # items sent so far
    received: int  # items taken out so far
    senders_waiting: int  # senders waiting for room
    receiver_waiting: bool  # whether the receiver sleeps
    closed: bool  # whether nothing more may be sent


class Channel(Generic[T]):
    """A first-in-first-out lane with room for ``capacity`` items.

    Receiving waits for a wake-up and then takes the item without an await in between, so a
    cancelled receive takes nothing. A sender that is cancelled while it waits for room has sent
    nothing. A leased item is out of the queue but keeps its place until ``settle``.
    """

    def __init__(self, capacity: int, *, name: str, receiver: str = "", news: Signal | None = None) -> None:
        if capacity < 1:
            raise ValueError(f"channel {name!r} has capacity {capacity}, the least is 1")
        self.capacity = capacity
        self.name = name
        self.receiver = receiver  # the actor whose lane this is
        self._news = news or Signal()
        self._room_watchers: list[Signal] = []
        self._senders: deque[anyio.Event] = deque()
        self._items: deque[T] = deque()
        self._leased = self._peak = self._sent = self._received = 0
        self._closed = self._receiving = False
        self.sleeping_since: float | None = None  # on the loop's clock; None: the receiver is not asleep

    def __len__(self) -> int:
        return len(self._items)

    @property
    def has_room(self) -> bool:
        """Whether an item could be sent now."""
        return len(self._items) + self._leased < self.capacity

    @property
    def closed(self) -> bool:
        """Whether nothing more may be sent."""
        return self._closed

    # --- sending

    def send_nowait(self, item: T) -> None:
        """Send an item. Raises ChannelFullError, or ChannelClosedError after the end."""
        if self._closed:
            raise ChannelClosedError(self.name)
        if not self.has_room:
            raise ChannelFullError(self.name, self.capacity)
        self._items.append(item)
        self._sent += 1
        self._peak = max(self._peak, len(self._items) + self._leased)
        self._news.set()

    async def send(self, item: T) -> None:
        """Send an item, waiting for room behind those who wait already."""
        while self._senders or (not self.has_room and not self._closed):
            turn = anyio.Event()
            self._senders.append(turn)
            try:
                await turn.wait()
            except BaseException:
                if turn.is_set():
                    self._wake_sender()  # the turn was ours: pass it on
                else:
                    self._senders.remove(turn)
                raise
            if self.has_room or self._closed:
                break
        try:
            self.send_nowait(item)
        finally:
            if self.has_room or self._closed:
                self._wake_sender()

    def watch_room(self, watcher: Signal) -> None:
        """Set a signal whenever a place becomes free, and at the end."""
        self._room_watchers.append(watcher)

    # --- receiving

    def receive_nowait(self) -> T:
        """Take the oldest item. Raises ChannelEmptyError, or ChannelClosedError behind the last."""
        item = self.lease_nowait()
        self.settle()
        return item

    def lease_nowait(self) -> T:
        """Take the oldest item and keep its place occupied until ``settle``."""
        if not self._items:
            raise ChannelClosedError(self.name) if self._closed else ChannelEmptyError(self.name)
        self._leased += 1
        self._received += 1
        return self._items.popleft()

    def settle(self) -> None:
        """Give back the place of a leased item."""
        if not self._leased:
            raise BusyError(f"channel {self.name!r} has no leased item to settle")
        self._leased -= 1
        self._room()

    async def receive(self) -> T:
        """Take the oldest item, waiting for one. Raises ChannelClosedError behind the last."""
        await self._wait_for_item()
        return self.receive_nowait()

    async def lease(self) -> T:
        """Lease the oldest item, waiting for one. Raises ChannelClosedError behind the last."""
        await self._wait_for_item()
        return self.lease_nowait()

    def __aiter__(self) -> AsyncIterator[T]:
        # An iterator of its own and not a generator: an actor that is cancelled leaves none behind.
        return _Items(self.receive)

    def leases(self) -> AsyncIterator[T]:
        """Lease items until the end."""
        return _Items(self.lease)

    def close(self) -> None:
        """The end: senders are refused, the receiver drains what is there. May be called twice."""
        self._closed = True
        self._news.set()
        self._room()

    async def _wait_for_item(self) -> bool:
        if self._receiving:
            raise BusyError(f"channel {self.name!r} has a receiver already, one is allowed")
        self._receiving = True
        try:
            while not self._items and not self._closed:
                self.sleeping_since = anyio.current_time()
                await self._news.wait()
        finally:
            self._receiving = False
            self.sleeping_since = None
        return bool(self._items)

    # --- inside

    def _room(self) -> None:
        for watcher in self._room_watchers:
            watcher.set()
        self._wake_sender()

    def _wake_sender(self) -> None:
        if self._senders:
            self._senders.popleft().set()

    def unanswered(self) -> list[Ask[Any, Any]]:
        """Take out the questions that nobody will answer any more."""
        items: list[Any] = list(self._items)
        asks: list[Ask[Any, Any]] = [item for item in items if isinstance(item, Ask)]
        self._items.clear()
        return asks

    def statistics(self) -> ChannelStatistics:
        """Counts as they are now."""
        return ChannelStatistics(
            name=self.name,
            capacity=self.capacity,
            depth=len(self._items),
            leased=self._leased,
            peak_depth=self._peak,
            sent=self._sent,
            received=self._received,
            senders_waiting=len(self._senders),
            receiver_waiting=self._receiving,
            closed=self._closed,
        )


class _Items(Generic[T]):
    """Items of a channel until its end."""

    def __init__(self, take: Callable[[], Awaitable[T]]) -> None:
        self._take = take

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        try:
            return await self._take()
        except ChannelClosedError:
            raise StopAsyncIteration from None
