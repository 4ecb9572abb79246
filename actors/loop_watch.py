"""How late the event loop is: what a task that is ready must wait until it runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic

import anyio
import msgspec

from .actor import Actor

# Seconds between two looks. A look costs some 30 us. No part of 0.1 s: anyio's ``wait_all_tasks_blocked`` looks at that
# pace on asyncio, and would find this timer's task due each time.
INTERVAL = 0.043
# Newest looks that percentiles are made of: about a minute of work.
KEPT = 1400


class LatenessStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """How late a sleeper was woken, in seconds; all 0 before the first look."""

    count: int  # looks so far
    median: float  # of the newest ones, ``KEPT`` of them at most
    p99: float  # of these, what 99 of 100 stay at or below
    longest: float  # of all


class Lateness:
    """Keeps how late wake-ups were."""

    def __init__(self, kept: int = KEPT) -> None:
        self._newest: deque[float] = deque(maxlen=kept)
        self._count, self._longest = 0, 0.0

    def add(self, seconds: float) -> None:
        """One more wake-up was so late; one that came early counts as in time."""
        late = max(seconds, 0.0)
        self._newest.append(late)
        self._count += 1
        self._longest = max(self._longest, late)

    def statistics(self) -> LatenessStatistics:
        """Counts as they are now."""
        ordered = sorted(self._newest) or [0.0]
        return LatenessStatistics(
            count=self._count,
            median=ordered[(len(ordered) - 1) // 2],
            p99=ordered[-1 - len(ordered) // 100],
            longest=self._longest,
        )


class LoopWatch(Actor):
    """Sleeps for short times while there is work, and notes how late each wake-up is.

    Without work it has no timer at all, so an idle program stays idle and a virtual clock can jump.
    asyncio's own timers are up to a millisecond late. On a virtual clock nothing is ever late: there
    it looks once.

    Args:
        busy: whether there is work; whoever brings some wakes the mailbox.
    """

    def __init__(self, busy: Callable[[], bool], interval: float = INTERVAL) -> None:
        super().__init__("loop_watch")
        self._busy, self._interval = busy, interval
        self.lateness = Lateness()

    async def run(self) -> None:
        on_real_clock = True
        while True:
            while not (on_real_clock and self._busy()):
                await self.wait()
            slept = await self._sleep()
            on_real_clock = slept > self._interval / 10
            self.lateness.add(slept - self._interval)

    async def _sleep(self) -> float:
        """Sleep for the interval; returns the seconds that it took."""
        self._begins("timer")
        began = monotonic()  # not the loop's clock: uvloop's counts whole milliseconds of its turns' beginnings
        await anyio.sleep(self._interval)
        self._begins("")
        return monotonic() - began
