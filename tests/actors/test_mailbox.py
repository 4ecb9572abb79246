"""A mailbox: control never waits, data lanes are bounded, and anything that arrives wakes the owner."""

import anyio
import pytest

from callboard.actors import ActorStoppedError, Ask, Channel, ChannelClosedError, Mailbox


async def wakes(mailbox: Mailbox, cause) -> bool:
    """Whether a cause wakes an owner that sleeps."""
    woken = []

    async def owner() -> None:
        await mailbox.wait()
        woken.append(True)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(owner)
        await anyio.wait_all_tasks_blocked()
        cause()
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    return bool(woken)


def test_the_control_lane_takes_any_number_of_messages_and_keeps_their_order():
    mailbox = Mailbox("runner")
    for number in range(1000):
        mailbox.control_nowait(number)
    assert mailbox.take_control() == list(range(1000))
    assert mailbox.take_control() == []


def test_control_has_room_while_every_data_lane_is_full():
    mailbox = Mailbox("runner")
    mailbox.lane("plans", 1).send_nowait("plan")
    mailbox.control_nowait("abort")
    assert mailbox.take_control() == ["abort"]


async def test_whatever_arrives_wakes_the_owner():
    mailbox = Mailbox("runner")
    first, second = mailbox.lane("first", 1), mailbox.lane("second", 1)
    assert await wakes(mailbox, lambda: first.send_nowait(1))
    assert await wakes(mailbox, lambda: second.send_nowait(2))
    assert await wakes(mailbox, lambda: mailbox.control_nowait(3))
    assert await wakes(mailbox, first.close)
    assert await wakes(mailbox, mailbox.wake)
    assert not await wakes(mailbox, lambda: None)


async def test_room_in_a_watched_channel_wakes_the_owner():
    mailbox, outputs = Mailbox("scheduler"), Channel[int](1, name="outputs")
    mailbox.watch_room(outputs)
    outputs.send_nowait(1)
    assert await wakes(mailbox, outputs.receive_nowait)
    outputs.send_nowait(2)
    assert not await wakes(mailbox, outputs.lease_nowait)
    assert await wakes(mailbox, outputs.settle)


async def test_waiting_for_one_lane_does_not_hide_the_news_of_another():
    mailbox = Mailbox("runner")
    plans, aborts = mailbox.lane("plans", 1), mailbox.lane("aborts", 1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(plans.receive)
        await anyio.wait_all_tasks_blocked()
        aborts.send_nowait(1)
        await anyio.wait_all_tasks_blocked()
        plans.send_nowait(2)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await mailbox.wait()
    assert not scope.cancelled_caught


async def test_two_tasks_of_an_owner_may_wait_for_two_lanes():
    mailbox, got = Mailbox("runner"), []

    async def take(lane: Channel[int]) -> None:
        got.append(await lane.receive())

    async with anyio.create_task_group() as tasks:
        for name in ("plans", "aborts"):
            tasks.start_soon(take, mailbox.lane(name, 1))
        await anyio.wait_all_tasks_blocked()
        for number, lane in enumerate(mailbox.lanes):
            lane.send_nowait(number)
    assert sorted(got) == [0, 1]


@pytest.mark.parametrize("name", ["plans", "control"])
def test_a_second_lane_of_the_same_name_is_refused(name: str):
    mailbox = Mailbox("runner")
    mailbox.lane("plans", 1)
    with pytest.raises(ValueError, match=f"mailbox of 'runner' has a lane '{name}' already"):
        mailbox.lane(name, 1)


def test_after_the_end_messages_are_refused():
    mailbox = Mailbox("runner")
    plans = mailbox.lane("plans", 1)
    mailbox.close()
    with pytest.raises(ChannelClosedError, match="channel 'runner control' is closed"):
        mailbox.control_nowait("abort")
    with pytest.raises(ChannelClosedError, match="channel 'plans' is closed"):
        plans.send_nowait("plan")


@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.parametrize("control", [False, True])
async def test_questions_without_an_answer_end_with_an_error_that_has_the_cause(taken: bool, control: bool):
    mailbox, ask, cause = Mailbox("kv"), Ask[str, int]("how many"), OSError("device gone")
    lane = mailbox.lane("questions", 2)
    mailbox.control_nowait(ask) if control else lane.send_nowait(ask)
    if taken:
        mailbox.take_control() if control else lane.receive_nowait()
    mailbox.close(cause)
    with pytest.raises(ActorStoppedError, match="actor 'kv' has stopped") as caught:
        await ask.reply
    assert caught.value.__cause__ is cause


async def test_questions_that_were_answered_keep_their_answers():
    mailbox, asks = Mailbox("kv"), [Ask[int, int](number) for number in range(3)]
    lane = mailbox.lane("questions", 3)
    for ask in asks:
        lane.send_nowait(ask)
        lane.receive_nowait().reply.set_result(ask.message)
    mailbox.close()
    assert [await ask.reply for ask in asks] == [0, 1, 2]


async def test_starting_again_frees_leased_places_and_keeps_what_was_not_taken():
    mailbox = Mailbox("kv")
    lane, asks = mailbox.lane("questions", 2), [Ask[int, int](number) for number in range(2)]
    for ask in asks:
        lane.send_nowait(ask)
    lane.lease_nowait()
    mailbox.start_again()
    with pytest.raises(ActorStoppedError, match="actor 'kv' failed before it had answered"):
        await asks[0].reply
    assert lane.has_room
    assert lane.receive_nowait() is asks[1]
    assert not asks[1].reply.done()


def test_depths_show_items_capacity_and_leases():
    mailbox = Mailbox("runner")
    plans = mailbox.lane("plans", 2)
    plans.send_nowait(1)
    mailbox.control_nowait("abort")
    assert mailbox.depths() == {"control": "1", "plans": "1/2"}
    plans.lease_nowait()
    assert mailbox.depths() == {"control": "1", "plans": "0/2 + 1 leased"}


def test_statistics_count_the_control_lane_too():
    mailbox = Mailbox("runner")
    mailbox.lane("plans", 2)
    for number in range(3):
        mailbox.control_nowait(number)
    mailbox.take_control()
    mailbox.control_nowait(3)
    control, plans = mailbox.statistics()
    assert (control.name, control.capacity, control.depth, control.peak_depth) == ("control", None, 1, 3)
    assert (control.sent, control.received, control.receiver_waiting, control.closed) == (4, 3, False, False)
    assert plans.name == "plans"
