"""A channel: first in, first out, bounded, with leases and an end."""

import anyio
import pytest

from callboard.actors import (
    BusyError,
    Channel,
    ChannelClosedError,
    ChannelEmptyError,
    ChannelFullError,
    Signal,
)


def full(capacity: int = 1) -> Channel[int]:
    channel = Channel[int](capacity, name="plans")
    for number in range(capacity):
        channel.send_nowait(number)
    return channel


def test_items_come_out_in_the_order_in_which_they_went_in():
    channel = full(3)
    assert [channel.receive_nowait() for _ in range(3)] == [0, 1, 2]


def test_sending_into_a_full_channel_without_waiting_is_refused_with_the_capacity():
    with pytest.raises(ChannelFullError, match="channel 'plans' is full, its capacity is 2"):
        full(2).send_nowait(9)


def test_receiving_from_an_empty_channel_without_waiting_is_refused():
    with pytest.raises(ChannelEmptyError, match="channel 'plans' is empty"):
        Channel[int](1, name="plans").receive_nowait()


def test_a_channel_without_any_place_is_refused():
    with pytest.raises(ValueError, match="channel 'plans' has capacity 0, the least is 1"):
        Channel[int](0, name="plans")


async def test_a_receiver_sleeps_until_an_item_arrives():
    channel, got = Channel[int](1, name="plans"), []

    async def receiver() -> None:
        got.append(await channel.receive())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(receiver)
        await anyio.wait_all_tasks_blocked()
        assert channel.statistics().receiver_waiting
        assert channel.sleeping_since is not None
        channel.send_nowait(7)
    assert got == [7]
    assert channel.sleeping_since is None


async def test_a_second_receiver_is_refused_and_the_first_stays():
    channel = Channel[int](1, name="plans")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(channel.receive)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(BusyError, match="channel 'plans' has a receiver already, one is allowed"):
            await channel.receive()
        channel.send_nowait(7)


async def test_a_receiver_that_comes_between_an_item_and_the_woken_one_is_refused():
    channel, got = Channel[int](1, name="plans"), []

    async def receiver() -> None:
        got.append(await channel.receive())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(receiver)
        await anyio.wait_all_tasks_blocked()
        channel.send_nowait(7)
        with pytest.raises(BusyError):
            await channel.receive()
    assert got == [7]


async def test_a_sender_waits_for_room():
    channel = full()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(channel.send, 1)
        await anyio.wait_all_tasks_blocked()
        assert channel.statistics().senders_waiting == 1
        assert channel.receive_nowait() == 0
    assert channel.receive_nowait() == 1


async def test_waiting_senders_are_served_in_the_order_in_which_they_came():
    channel, got = full(), []
    async with anyio.create_task_group() as tasks:
        for number in range(1, 9):
            tasks.start_soon(channel.send, number)
            await anyio.wait_all_tasks_blocked()
        while len(got) < 9:
            got.append(await channel.receive())
    assert got == list(range(9))


async def test_several_places_that_become_free_at_once_serve_several_senders_in_order():
    channel = full(3)
    async with anyio.create_task_group() as tasks:
        for number in range(3, 7):
            tasks.start_soon(channel.send, number)
            await anyio.wait_all_tasks_blocked()
        for _ in range(3):
            channel.receive_nowait()
        await anyio.wait_all_tasks_blocked()
        assert [channel.receive_nowait() for _ in range(3)] == [3, 4, 5]
    assert channel.receive_nowait() == 6


async def test_nobody_overtakes_a_sender_that_was_woken_and_has_not_run_yet():
    channel = full()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(channel.send, 1)
        await anyio.wait_all_tasks_blocked()
        assert channel.receive_nowait() == 0
        assert not channel.has_room
        with pytest.raises(ChannelFullError):
            channel.send_nowait(2)
        tasks.start_soon(channel.receive)
        await channel.send(2)
    assert channel.receive_nowait() == 2


async def test_a_greedy_sender_does_not_starve_one_that_waits():
    channel, served = full(), []

    async def patient() -> None:
        await channel.send(-1)

    async def greedy() -> None:
        for number in range(1, 5):
            await channel.send(number)

    async with anyio.create_task_group() as tasks:
        for sender in (greedy, patient):
            tasks.start_soon(sender)
            await anyio.wait_all_tasks_blocked()
        served = [await channel.receive() for _ in range(6)]
    assert served == [0, 1, -1, 2, 3, 4]


async def test_sending_with_room_takes_no_turn_of_the_loop():
    channel = Channel[int](1, name="plans")
    with anyio.CancelScope() as scope:
        scope.cancel()
        await channel.send(7)
        assert await channel.receive() == 7
    assert not scope.cancelled_caught


async def test_iterating_over_a_long_lane_lets_others_run_and_a_cancel_through():
    channel = full(1000)
    with anyio.CancelScope() as scope:
        scope.cancel()
        async for item in channel:
            last = item
    assert scope.cancelled_caught
    assert last == 15
    assert channel.receive_nowait() == 16


# --- leases


@pytest.mark.parametrize(("capacity", "overlapping"), [(1, 1), (2, 2), (3, 3)])
async def test_the_capacity_is_how_many_leased_items_overlap(capacity: int, overlapping: int):
    channel, most = Channel[int](capacity, name="plans"), 0

    async def sender() -> None:
        for number in range(6):
            await channel.send(number)
        channel.close()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sender)
        async for _ in channel.leases():
            await anyio.wait_all_tasks_blocked()
            most = max(most, channel.statistics().leased + len(channel))
            channel.settle()
    assert most == overlapping


async def test_with_one_place_a_second_send_waits_until_the_first_item_is_settled():
    channel, sent = full(), []

    async def sender() -> None:
        await channel.send(1)
        sent.append(1)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sender)
        assert await channel.lease() == 0
        await anyio.wait_all_tasks_blocked()
        assert not sent
        channel.settle()
    assert sent == [1]


def test_with_two_places_an_item_is_sent_while_another_is_leased():
    channel = full(2)
    assert channel.lease_nowait() == 0
    assert not channel.has_room
    channel.settle()
    assert channel.lease_nowait() == 1
    channel.send_nowait(2)
    assert (len(channel), channel.statistics().leased) == (1, 1)


def test_settling_what_was_not_leased_is_refused():
    channel = full()
    channel.receive_nowait()
    with pytest.raises(BusyError, match="channel 'plans' has no leased item to settle"):
        channel.settle()


# --- room


async def test_a_watcher_is_set_when_room_appears_and_not_before():
    channel, watcher = full(2), Signal()
    channel.watch_room(watcher)
    channel.lease_nowait()
    assert not watcher.is_set
    channel.settle()
    assert watcher.is_set


async def test_a_watcher_hears_of_the_room_that_waiting_senders_leave():
    channel, watcher = full(3), Signal()
    channel.watch_room(watcher)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(channel.send, 3)
        await anyio.wait_all_tasks_blocked()
        channel.receive_nowait()
        channel.receive_nowait()
        assert not watcher.is_set
    assert watcher.is_set
    assert channel.has_room


# --- the end


async def test_close_lets_the_receiver_drain_and_then_ends_it():
    channel = full(3)
    channel.close()
    channel.close()
    assert [item async for item in channel] == [0, 1, 2]
    with pytest.raises(ChannelClosedError, match="channel 'plans' is closed"):
        await channel.receive()


async def test_close_ends_a_receiver_that_sleeps():
    channel = Channel[int](1, name="plans")
    async with anyio.create_task_group() as tasks:

        async def receiver() -> None:
            assert [item async for item in channel] == []

        tasks.start_soon(receiver)
        await anyio.wait_all_tasks_blocked()
        channel.close()


async def test_close_refuses_new_senders_and_all_that_wait():
    channel, refused = full(), []

    async def sender(number: int) -> None:
        with pytest.raises(ChannelClosedError):
            await channel.send(number)
        refused.append(number)

    async with anyio.create_task_group() as tasks:
        for number in range(3):
            tasks.start_soon(sender, number)
        await anyio.wait_all_tasks_blocked()
        channel.close()
        with pytest.raises(ChannelClosedError):
            channel.send_nowait(9)
    assert sorted(refused) == [0, 1, 2]
    assert [item async for item in channel] == [0]


def test_statistics_count_everything():
    channel = full(3)
    channel.receive_nowait()
    channel.lease_nowait()
    channel.send_nowait(3)
    counts = channel.statistics()
    assert (counts.name, counts.capacity, counts.depth, counts.leased, counts.peak_depth) == ("plans", 3, 2, 1, 3)
    assert (counts.sent, counts.received, counts.senders_waiting, counts.closed) == (4, 2, 0, False)
