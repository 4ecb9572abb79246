"""Cancels that race with sends: every item arrives exactly once, in order, and nobody is stuck."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial

import anyio
import pytest
from anyio.lowlevel import checkpoint
from loops import native

from callboard.actors import Channel, ChannelEmptyError

Receive = Callable[[], Awaitable[int]]


def after(turns: int, call: Callable[[], object]) -> None:
    """Call a function after so many turns of the asyncio loop."""
    loop = asyncio.get_running_loop()
    loop.call_soon(call) if turns == 0 else loop.call_soon(after, turns - 1, call)


async def in_a_timeout(receive: Receive, chosen: random.Random) -> int:
    async with asyncio.timeout(chosen.choice([0, 0, None])):
        return await receive()


async def in_wait_for(receive: Receive, chosen: random.Random) -> int:
    return await asyncio.wait_for(receive(), chosen.choice([1e-9, 1e-9, None]))


async def in_a_task(receive: Receive, chosen: random.Random) -> int:
    task = asyncio.ensure_future(receive())
    after(chosen.randrange(4), task.cancel)
    return await task


@native
@pytest.mark.parametrize("way", [in_a_timeout, in_wait_for, in_a_task])
@pytest.mark.parametrize("capacity", [1, 2])
async def test_an_item_sent_while_its_receive_is_cancelled_natively_arrives_once(way, capacity: int):
    chosen, channel, got, misses = random.Random(7), Channel[int](capacity, name="plans"), [], 0
    for number in range(1000):
        after(chosen.randrange(5), lambda number=number: channel.send_nowait(number))
        while len(got) <= number:
            try:
                got.append(await way(channel.receive, chosen))
            except (TimeoutError, asyncio.CancelledError):
                misses += 1
    assert got == list(range(1000))
    assert misses > 100


async def test_an_item_sent_while_the_scope_of_its_receive_is_cancelled_arrives_once():
    chosen, channel, got, misses = random.Random(7), Channel[int](1, name="plans"), [], 0

    async def later(turns: int, call: Callable[[], object]) -> None:
        for _ in range(turns):
            await checkpoint()
        call()

    async with anyio.create_task_group() as tasks:
        for number in range(1000):
            tasks.start_soon(later, chosen.randrange(4), lambda number=number: channel.send_nowait(number))
            while len(got) <= number:
                with anyio.move_on_after(chosen.choice([0, 60])) as scope:
                    tasks.start_soon(later, chosen.randrange(4), scope.cancel)
                    got.append(await channel.receive())
                misses += scope.cancelled_caught
    assert got == list(range(1000))
    assert misses > 100


@native
async def test_a_leased_item_is_not_lost_with_a_lease_that_is_cancelled():
    chosen, channel, got = random.Random(7), Channel[int](1, name="plans"), []
    for number in range(1000):
        after(chosen.randrange(5), lambda number=number: channel.send_nowait(number))
        while len(got) <= number:
            try:
                got.append(await in_a_task(channel.lease, chosen))
                channel.settle()
            except asyncio.CancelledError:
                assert channel.statistics().leased == 0
    assert got == list(range(1000))


@native
async def test_a_sender_told_that_it_was_cancelled_has_not_sent_and_any_other_has():
    chosen, channel, got = random.Random(7), Channel[int](1, name="plans"), []

    def take() -> None:
        if len(channel):
            got.append(channel.receive_nowait())

    senders: list[asyncio.Task[None]] = []
    for number in range(1000):
        senders.append(sender := asyncio.create_task(channel.send(number)))
        for move in chosen.sample([take, take, sender.cancel], chosen.randint(1, 3)):
            after(chosen.randrange(4), move)
        for _ in range(chosen.randrange(8)):
            await checkpoint()
    while not all(sender.done() for sender in senders):
        take()
        await checkpoint()
    take()
    told = [number for number, sender in enumerate(senders) if not sender.cancelled()]
    assert got == told
    assert 100 < len(told) < 900


async def test_a_sender_in_a_cancelled_scope_has_not_sent():
    channel = Channel[int](1, name="plans")
    channel.send_nowait(0)
    with anyio.move_on_after(0) as scope:
        await channel.send(1)
    assert scope.cancelled_caught
    assert channel.receive_nowait() == 0
    with pytest.raises(ChannelEmptyError):
        channel.receive_nowait()
    assert channel.has_room


@native
@pytest.mark.parametrize("cancelled_first", [True, False])
async def test_a_woken_sender_that_is_cancelled_passes_its_turn_on(cancelled_first: bool):
    channel = Channel[int](1, name="plans")
    channel.send_nowait(0)
    first, second = asyncio.create_task(channel.send(1)), asyncio.create_task(channel.send(2))
    await checkpoint()
    moves = [channel.receive_nowait, first.cancel]
    for move in reversed(moves) if cancelled_first else moves:
        move()
    await asyncio.wait([first, second])
    assert first.cancelled()
    assert channel.receive_nowait() == 2


async def one_schedule(seed: int) -> None:
    """Some senders wait for few places; receives and cancels fall where they may."""
    chosen = random.Random(seed)
    channel = Channel[int](chosen.randint(1, 2), name="plans")
    senders = [asyncio.create_task(channel.send(number)) for number in range(chosen.randint(3, 8))]
    doomed = set(chosen.sample(range(len(senders)), chosen.randrange(len(senders))))
    moves: list[Callable[[], object]] = [senders[number].cancel for number in doomed]
    got: list[int] = []
    moves += [lambda: got.append(channel.receive_nowait()) if len(channel) else None] * len(senders)
    for move in chosen.sample(moves, len(moves)):
        move()
        for _ in range(chosen.choice([0, 0, 1, 2])):
            await checkpoint()
    for _ in range(4 * len(senders)):
        if len(channel):
            got.append(channel.receive_nowait())
        await checkpoint()
    assert all(sender.done() for sender in senders), f"seed {seed}: {channel.statistics()}"
    assert got == [number for number, sender in enumerate(senders) if not sender.cancelled()]
    assert channel.has_room


@native
async def test_no_sender_is_stuck_or_out_of_order_in_a_thousand_random_schedules():
    for seed in range(1000):
        await one_schedule(seed)


@native
async def test_an_item_and_a_cancel_in_one_turn_always_end_the_receiver():
    channel = Channel[int](1, name="plans")

    async def live() -> None:
        while True:
            try:
                async with asyncio.timeout(3600):
                    await channel.receive()
            except TimeoutError:
                pass

    for number in range(1000):
        actor = asyncio.create_task(live())
        await checkpoint()
        moves = [partial(channel.send_nowait, number), actor.cancel]
        for move in moves if number % 2 else reversed(moves):
            move()
        await asyncio.wait([actor])
        assert actor.cancelled()
        channel.receive_nowait()
