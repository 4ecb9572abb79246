"""Bounded, named, typed queues between actors: many senders, one receiver."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from time import monotonic
from typing import Any, Generic, TypeVar

import anyio.lowlevel
import msgspec

from .errors import BusyError, ChannelClosedError, ChannelEmptyError, ChannelFullError, ConfigError
from .observation import Observer
from .reply import Ask, OpenAsks
from .signal import Signal

T = TypeVar("T")

# Items that iterating takes in one turn of the loop. A long lane must not hold up the host or outrun
# a cancel; but what arrived together is handed on together, and a turn costs more than an item.
BURST = 16


class ChannelStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of a channel."""

    name: str
    capacity: int | None  # most items in it at once, leased ones included; None: it always has room
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
    cancelled receive takes nothing. In the same way a sender waits for its turn and then puts the
    item in itself: cancelled while it waits, it has sent nothing. Senders go in order of arrival,
    and nobody overtakes those who wait. A leased item is out of the queue but keeps its place
    until ``settle``. Neither side yields to the event loop when it need not wait, but iterating
    yields after a burst of items.
    """

    def __init__(self, capacity: int, *, name: str, receiver: str = "", news: Signal | None = None) -> None:
        if capacity < 1:
            raise ConfigError(f"channel {name!r} has capacity {capacity}, the least is 1")
        self.capacity = capacity
        self.name = name
        self.receiver = receiver  # the actor whose lane this is
        self._arrived = Signal()  # the receiver's; its own, since waiting on one lane must not hide another's news
        self._news = news  # the mailbox's
        self._room_watchers: list[Signal] = []
        self._senders: deque[Signal] = deque()  # the first has its turn as soon as there is room
        self._items: deque[T] = deque()
        self._asked = OpenAsks()
        self._used = 0  # places: items in it, and leased ones
        self._leased = self._peak = self._sent = self._received = 0
        self._closed = self._receiving = False
        self.observer: Observer | None = None  # of the receiver
        self.sleeping_since: float | None = None  # by ``time.monotonic``; None: the receiver is not asleep

    def __len__(self) -> int:
        return len(self._items)

    @property
    def used(self) -> int:
        """Places that are taken: items in it, and leased ones."""
        return self._used

    @property
    def has_room(self) -> bool:
        """Whether an item could be sent now: there is a place, and nobody waits for it."""
        return not self._senders and self._used < self.capacity

    @property
    def closed(self) -> bool:
        """Whether nothing more may be sent."""
        return self._closed

    # --- sending

    def send_nowait(self, item: T) -> None:
        """Send an item. Raises ChannelFullError, or ChannelClosedError after the end."""
        if self._senders and not self._closed:
            raise ChannelFullError(self.name, self.capacity)
        self._put(item)

    async def send(self, item: T) -> None:
        """Send an item, waiting for room behind those who wait already."""
        if not self._senders and (self._used < self.capacity or self._closed):
            self._put(item)
            return
        turn = Signal()
        self._senders.append(turn)
        try:
            while self._senders[0] is not turn or not (self._used < self.capacity or self._closed):
                await turn.wait()
            self._put(item)
        finally:
            self._senders.remove(turn)
            self._tell_room()

    def watch_room(self, watcher: Signal) -> None:
        """Set a signal whenever there is room again, and at the end."""
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
        item = self._items.popleft()
        self._leased += 1
        self._received += 1
        taken: Any = item
        if isinstance(taken, Ask):
            self._asked.note(taken)  # pyright: ignore[reportUnknownArgumentType]
        return item

    def settle(self) -> None:
        """Give back the place of a leased item."""
        if not self._leased:
            raise BusyError(f"channel {self.name!r} has no leased item to settle")
        self._leased -= 1
        self._used -= 1
        if self._senders or self._room_watchers:
            self._tell_room()

    async def receive(self) -> T:
        """Take the oldest item, waiting for one. Raises ChannelClosedError behind the last."""
        if self._receiving or not self._items:
            await self._wait_for_item()
        return self.receive_nowait()

    async def lease(self) -> T:
        """Lease the oldest item, waiting for one. Raises ChannelClosedError behind the last."""
        if self._receiving or not self._items:
            await self._wait_for_item()
        return self.lease_nowait()

    def __aiter__(self) -> AsyncIterator[T]:
        # An iterator of its own and not a generator: an actor that is cancelled leaves none behind.
        return _Items(self, self.receive)

    def leases(self) -> AsyncIterator[T]:
        """Lease items until the end."""
        return _Items(self, self.lease)

    def close(self) -> None:
        """The end: senders are refused, the receiver drains what is there. May be called twice."""
        self._closed = True
        self._tell_news()
        self._tell_room()

    # --- when the receiver's actor ends or starts again

    def unanswered(self) -> list[Ask[Any, Any]]:
        """Empty the lane; returns the questions that nobody will answer any more."""
        items: list[Any] = list(self._items)
        self._items.clear()
        self._used -= len(items)
        return self.give_up_taken() + [item for item in items if isinstance(item, Ask)]

    def give_up_taken(self) -> list[Ask[Any, Any]]:
        """Free the places of leased items; returns the questions taken and not answered."""
        self._used -= self._leased
        self._leased = 0
        self._tell_room()
        return self._asked.take()

    # --- inside

    def _put(self, item: T) -> None:
        if self._closed:
            raise ChannelClosedError(self.name)
        if self._used >= self.capacity:
            raise ChannelFullError(self.name, self.capacity)
        self._items.append(item)
        self._sent += 1
        self._used += 1
        if self._used > self._peak:  # noqa: PLR1730 - a third of the time of max()
            self._peak = self._used
        self._tell_news()

    async def _wait_for_item(self) -> None:
        if self._receiving:
            raise BusyError(f"channel {self.name!r} has a receiver already, one is allowed")
        self._receiving, self.sleeping_since = True, monotonic()
        if self.observer is not None:
            self.observer.sleeps(self.receiver, self.name)
        try:
            while not self._items and not self._closed:
                await self._arrived.wait()
        finally:
            self._receiving, self.sleeping_since = False, None
            if self.observer is not None:
                self.observer.wakes(self.receiver)

    def _tell_news(self) -> None:
        self._arrived.set()
        if self._news is not None:
            self._news.set()

    def _tell_room(self) -> None:
        # A watcher takes room at some later time, so the first sender goes before; it tells again.
        if self._used >= self.capacity and not self._closed:
            return
        if self._senders:
            self._senders[0].set()
        else:
            for watcher in self._room_watchers:
                watcher.set()

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

    def __init__(self, channel: Channel[T], take: Callable[[], Awaitable[T]]) -> None:
        self._channel, self._take = channel, take
        self._burst = 0  # items taken since the last sleep

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        if not len(self._channel):
            self._burst = 0
        elif self._burst == BURST:
            await anyio.lowlevel.checkpoint()
            self._burst = 0
        self._burst += 1
        try:
            return await self._take()
        except ChannelClosedError:
            raise StopAsyncIteration from None
