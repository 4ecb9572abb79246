"""The loop's lateness is measured while there is work, and not otherwise."""

import time
from typing import Any

import anyio
import pytest
import trio.testing
from anyio.lowlevel import checkpoint

from callboard.actors import LoopWatch, Supervisor
from callboard.actors.loop_watch import Lateness

VIRTUAL = [("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)})]
virtual = pytest.mark.parametrize("anyio_backend", VIRTUAL, ids=["virtual"])


def test_percentiles_are_of_the_newest_wake_ups_and_the_longest_is_of_all():
    lateness = Lateness(kept=200)
    lateness.add(9.0)
    for number in range(200):
        lateness.add(number / 1000)
    told = lateness.statistics()
    assert (told.count, told.median, told.p99, told.longest) == (201, 0.099, 0.197, 9.0)


def test_before_the_first_look_all_is_zero_and_an_early_wake_up_is_in_time():
    lateness = Lateness()
    assert (lateness.statistics().count, lateness.statistics().p99) == (0, 0.0)
    lateness.add(-0.001)
    assert (lateness.statistics().count, lateness.statistics().longest) == (1, 0.0)


class Work:
    """Whether there is some, as a test says."""

    def __init__(self) -> None:
        self.there = False


@virtual
async def test_a_virtual_clock_is_looked_at_once_and_is_never_late(anyio_backend: Any):
    work = Work()
    watch = LoopWatch(lambda: work.there, interval=60.0)
    async with Supervisor([watch]):
        await anyio.sleep(1000.0)
        assert watch.lateness.statistics().count == 0
        work.there = True
        watch.mailbox.wake()
        await anyio.sleep(80_000.0)
    assert (watch.lateness.statistics().count, watch.lateness.statistics().longest) == (1, 0.0)


async def test_without_work_there_is_no_timer_and_the_work_s_end_is_seen_at_the_next_look(anyio_backend: Any):
    work = Work()
    watch = LoopWatch(lambda: work.there, interval=0.005)
    async with Supervisor([watch]):
        for _ in range(2):
            before = watch.lateness.statistics().count
            work.there = True
            watch.mailbox.wake()
            while watch.lateness.statistics().count < before + 3:
                await checkpoint()
            work.there = False
            while watch.status().waiting_for != "mailbox":
                await checkpoint()


async def test_a_host_that_blocks_the_loop_is_seen(anyio_backend: Any):
    watch = LoopWatch(lambda: True, interval=0.005)
    async with Supervisor([watch]):
        while not watch.lateness.statistics().count:
            await checkpoint()
        before = watch.lateness.statistics().count
        time.sleep(0.02)  # noqa: ASYNC251 - the host's fault that is to be seen
        while watch.lateness.statistics().count == before:
            await checkpoint()
    assert watch.lateness.statistics().longest > 0.01
