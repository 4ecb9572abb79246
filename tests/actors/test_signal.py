"""A signal wakes one waiter, and no schedule of cancels loses the wake-up."""

import asyncio
import random

import anyio
import pytest
from anyio.lowlevel import checkpoint
from loops import native, turns

from callboard.actors import BusyError, Signal


async def test_a_wait_sleeps_until_the_signal_is_set():
    signal, woken = Signal(), []

    async def sleeper() -> None:
        await signal.wait()
        woken.append(True)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sleeper)
        await anyio.wait_all_tasks_blocked()
        assert not woken
        signal.set()
    assert woken


async def test_settings_before_a_wait_fall_together_and_are_cleared_by_it():
    signal = Signal()
    signal.set()
    signal.set()
    await signal.wait()
    assert not signal.is_set
    with anyio.move_on_after(0) as limit:
        await signal.wait()
    assert limit.cancelled_caught


async def test_a_wait_on_a_set_signal_takes_no_turn_of_the_loop():
    signal = Signal()
    signal.set()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await signal.wait()
    assert not scope.cancelled_caught


async def test_a_second_waiter_is_refused():
    signal = Signal()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(signal.wait)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(BusyError, match="this signal has a waiter already, one is allowed"):
            await signal.wait()
        signal.set()


@native
async def test_a_waiter_cancelled_after_the_set_leaves_the_signal_set():
    signal = Signal()
    waiter = asyncio.create_task(signal.wait())
    await checkpoint()
    signal.set()
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert signal.is_set


@native
async def test_a_set_after_the_cancel_of_its_waiter_is_kept_for_the_next():
    signal = Signal()
    waiter = asyncio.create_task(signal.wait())
    await checkpoint()
    waiter.cancel()
    signal.set()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    await signal.wait()


LAST = 4


class Life:
    """A reader that is cancelled and replaced at random while a number goes up to the last."""

    def __init__(self, seed: int) -> None:
        self.chosen = random.Random(seed)
        self.signal = Signal()
        self.number = self.seen = 0

    async def read(self, scope: anyio.CancelScope) -> None:
        with scope:
            while self.seen < LAST:
                await self.signal.wait()
                self.seen = self.number

    def bump(self) -> None:
        self.number += 1
        self.signal.set()

    async def live_natively(self) -> None:
        reader = asyncio.create_task(self.read(anyio.CancelScope()))
        while self.number < LAST:
            for move in self.chosen.sample([self.bump, reader.cancel, None], 2):
                if move:
                    move()
            await turns(self.chosen.randrange(3))
            while reader.cancelling() and not reader.done():
                await checkpoint()
            if reader.cancelled():
                reader = asyncio.create_task(self.read(anyio.CancelScope()))
        await turns(8)
        assert reader.done(), f"saw {self.seen} of {self.number}"

    async def live_in_scopes(self) -> None:
        async with anyio.create_task_group() as tasks:
            while self.number < LAST:
                scope = anyio.CancelScope()
                tasks.start_soon(self.read, scope)
                for move in self.chosen.choices([self.bump, scope.cancel, checkpoint], k=4):
                    await checkpoint() if move is checkpoint else move()
                scope.cancel()
                await turns(8)
            tasks.start_soon(self.read, anyio.CancelScope())
            await turns(8)
            tasks.cancel_scope.cancel()
        assert self.seen >= LAST


@native
async def test_no_wake_up_is_lost_in_a_thousand_lives_with_native_cancels():
    for seed in range(1000):
        await Life(seed).live_natively()


async def test_no_wake_up_is_lost_in_two_hundred_lives_with_cancelled_scopes():
    for seed in range(200):
        await Life(seed).live_in_scopes()


def test_a_signal_refuses_to_sleep_in_a_second_event_loop():
    signal = Signal()

    async def sleep_until_cancelled() -> None:
        with anyio.move_on_after(0):
            await signal.wait()

    asyncio.run(sleep_until_cancelled())
    with pytest.raises(RuntimeError, match="different loop"):
        asyncio.run(signal.wait())
