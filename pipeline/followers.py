"""News for whoever follows: a bounded queue for each follower, nothing while there is none."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, Self, TypeVar
from weakref import WeakSet

from ..actors import LoopPort, Signal

T = TypeVar("T")


class Follower(Generic[T]):
    """An async iterator of news from the moment it was made; ends with the engine.

    Args:
        limit: news that a slow follower may leave unread; beyond them the oldest are dropped.
        lost: makes, of the first and the last news that were dropped, what is given in their
            place; None: they are only counted.
    """

    def __init__(self, port: LoopPort, limit: int, lost: Callable[[T, T], T] | None = None) -> None:
        self._port = port
        self._limit, self._make_lost = limit, lost
        self._unread: deque[T] = deque()
        self._lost: tuple[T, T] | None = None  # the first and the last, not told yet
        self._news = Signal()
        self._closed = False
        self._error: BaseException | None = None
        self.num_dropped = 0  # news lost because this follower was too slow

    def add(self, news: Iterable[T]) -> None:
        """News for the follower."""
        for one in news:
            if len(self._unread) == self._limit:
                self._drop(self._unread.popleft())
            self._unread.append(one)
        self._news.set()

    def close(self, error: BaseException | None = None) -> None:
        """Nothing more will come; the follower gets the error, if there is one, after what is unread."""
        self._closed, self._error = True, error
        self._news.set()

    def __repr__(self) -> str:
        state = "ended" if self._closed else "following"
        return f"<{type(self).__name__} {state}: {len(self._unread)} unread, {self.num_dropped} dropped>"

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        self._port.check_owner()  # elsewhere the wake-up would not arrive
        while not self._unread:
            if self._closed:
                self._raise_error()
                raise StopAsyncIteration
            await self._news.wait()
        if self._lost is not None and self._make_lost is not None:
            (first, last), self._lost = self._lost, None
            return self._make_lost(first, last)
        return self._unread.popleft()

    def _drop(self, one: T) -> None:
        self.num_dropped += 1
        self._lost = (self._lost[0] if self._lost else one, one)

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error


class Followers(Generic[T]):
    """All who follow one kind of news; who drops its iterator follows no more."""

    def __init__(self, port: LoopPort, limit: int, lost: Callable[[T, T], T] | None = None) -> None:
        self._port, self._limit, self._lost = port, limit, lost
        self._followers: WeakSet[Follower[T]] = WeakSet()
        self._closed = False

    def __bool__(self) -> bool:
        """Whether anybody follows."""
        return bool(self._followers)

    def follow(self, first: Iterable[T] = ()) -> Follower[T]:
        """A new follower, who gets ``first`` before all news."""
        follower = Follower[T](self._port, self._limit, self._lost)
        follower.add(first)
        self._followers.add(follower)
        return follower

    def add(self, news: list[T]) -> None:
        """News for all followers; none are taken once it is closed."""
        if news and not self._closed:
            for follower in self._followers:
                follower.add(news)

    def close(self, make_error: Callable[[], BaseException] | None = None) -> None:
        """Nothing more will come; each follower gets an error of its own, if there is one."""
        self._closed = True
        for follower in list(self._followers):
            follower.close(make_error() if make_error else None)
