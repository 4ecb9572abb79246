"""The supervisor stops actors by cancel or drain, within limits, and leaves no task."""

import asyncio
import gc
from contextlib import suppress
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio.lowlevel import checkpoint
from loops import native, turns
from players import Player, failing, failing_later, states
from structlog.testing import capture_logs

from callboard.actors import ActorStoppedError, Channel, Reply, Supervisor

# --- on_stop


async def test_on_stop_may_wait_though_the_actor_was_cancelled():
    notes: list[str] = []

    async def stop() -> None:
        await checkpoint()
        notes.append("done")

    async with Supervisor([Player("a", stop=stop)]):
        pass
    assert notes == ["done"]


async def test_an_on_stop_without_end_is_cut_off_and_its_actor_named():
    actor = Player("a", stop=anyio.sleep_forever)
    with capture_logs() as logs, suppress(ActorStoppedError):  # both limits are the same: it may be late as well
        async with Supervisor([actor], cancel_timeout=0.01):
            pass
    assert actor.status().state == "stopped"
    assert {"log_level": "error", "event": "on_stop was cut off", "actor": "a", "seconds": 0.01} in logs


@pytest.mark.parametrize("live", [anyio.sleep_forever, checkpoint])
async def test_an_error_in_on_stop_is_the_cause_when_nothing_failed_before(live: Any):
    error = OSError("still open")
    with pytest.raises(OSError, match="still open") as caught:
        async with Supervisor([Player("a", live, stop=failing(error))]):
            await anyio.wait_all_tasks_blocked()
    assert caught.value is error


async def test_an_error_in_on_stop_after_a_failure_is_a_note_of_the_cause():
    error = OSError("gone")
    with pytest.raises(OSError, match="gone") as caught:
        async with Supervisor([Player("a", failing(error), stop=failing(KeyError("open")))]):
            await anyio.wait_all_tasks_blocked()
    assert caught.value is error
    assert error.__notes__ == ["on_stop of actor 'a' then raised KeyError('open')", "in actor 'a'"]


# --- cancel


@native
@pytest.mark.parametrize("times", [1, 2, 3])
async def test_native_cancels_of_the_host_in_its_body_and_exit_leave_no_task(times: int):
    before = asyncio.all_tasks()
    actor = Player("a", stop=lambda: turns(3))

    async def host() -> None:
        async with Supervisor([actor, Player("b")]):
            await anyio.sleep_forever()

    task = asyncio.create_task(host())
    await turns(10)
    for _ in range(times):
        task.cancel()
        await turns(2)
    await asyncio.wait([task])
    assert task.cancelled()
    assert asyncio.all_tasks() == before
    assert actor.notes == ["a starts", "a runs", "a stops"]


@native
@pytest.mark.parametrize("after", range(14))
async def test_a_native_cancel_of_the_host_in_any_turn_leaves_no_task(after: int):
    before = asyncio.all_tasks()
    actors = [Player(name, start=checkpoint, stop=checkpoint) for name in "abc"]

    async def host() -> None:
        async with Supervisor(actors):
            await turns(2)

    task = asyncio.create_task(host())
    await turns(after)
    task.cancel()
    await asyncio.wait([task])
    assert asyncio.all_tasks() == before
    assert all(note.count("runs") == 0 or actor.notes[-1].endswith("stops") for actor in actors for note in actor.notes)


@pytest.mark.parametrize("after", range(10))
async def test_a_cancelled_scope_of_the_host_in_any_turn_leaves_no_actor_running(after: int):
    actors = [Player(name, start=checkpoint, stop=checkpoint) for name in "abc"]

    async def host() -> None:
        with scope:
            async with Supervisor(actors):
                await turns(2)

    async with anyio.create_task_group() as tasks:
        scope = anyio.CancelScope()
        tasks.start_soon(host)
        await turns(after)
        scope.cancel()
    assert {actor.status().state for actor in actors} <= {"created", "stopped"}


@native
async def test_a_timeout_around_the_host_stays_a_timeout():
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0), Supervisor([Player("a")]):
            await anyio.sleep_forever()


async def test_cancel_ends_actors_where_they_are_and_may_be_called_by_several_and_again():
    async with Supervisor([a := Player("a", stop=checkpoint), Player("b")]) as supervisor:
        a.lane.send_nowait("left")
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(supervisor.cancel)
        assert states(supervisor) == {"a": "stopped", "b": "stopped"}
        await supervisor.cancel()


async def test_an_actor_that_does_not_stop_is_named_with_what_it_waits_for():
    release: Reply[None] = Reply()

    async def live() -> None:
        with anyio.CancelScope(shield=True):
            await release

    async with Supervisor([Player("stubborn", live), Player("good")], cancel_timeout=0.01) as supervisor:
        with pytest.raises(ActorStoppedError, match=r"actors \['stubborn'\] did not stop within 0.01 s:\nstubborn: "):
            await supervisor.cancel()
        assert states(supervisor) == {"stubborn": "running", "good": "stopped"}
        release.set_result(None)


class Looking(Supervisor):
    """Tells when it looks who has not stopped."""

    def __init__(self, actors: list[Player], *, cancel_timeout: float) -> None:
        super().__init__(actors, cancel_timeout=cancel_timeout)
        self.looked = anyio.Event()

    def diagnose(self) -> str:
        self.looked.set()
        return "as seen"


async def test_leaving_waits_for_an_actor_that_is_late_and_then_says_so():
    release: Reply[None] = Reply()

    async def live() -> None:
        with anyio.CancelScope(shield=True):
            await release

    async def release_when_late() -> None:
        await supervisor.looked.wait()
        release.set_result(None)

    supervisor = Looking([Player("stubborn", live)], cancel_timeout=0.01)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(release_when_late)
        with pytest.raises(ActorStoppedError, match=r"did not stop within 0.01 s:\nas seen"):
            async with supervisor:
                pass
    assert states(supervisor) == {"stubborn": "stopped"}


# --- drain, and actors that return


def chain(notes: list[Any]) -> list[Player]:
    """Two actors: what the first receives it hands on, what the second receives it notes."""
    second = Player("second")
    first = Player("first", sends_to=[second.lane])

    async def hand_on() -> None:
        async for item in first.lane:
            await first.send(second.lane, item)

    async def note() -> None:
        async for item in second.lane:
            await checkpoint()
            notes.append(item)

    first.live, second.live = hand_on, note
    return [second, first]


async def test_drain_lets_everything_through_and_the_end_travels_down():
    notes: list[int] = []
    async with Supervisor(chain(notes)) as supervisor:
        for number in range(20):
            await supervisor.actors[1].lane.send(number)
        await supervisor.drain()
        assert states(supervisor) == {"second": "stopped", "first": "stopped"}
    assert notes == list(range(20))


async def test_cancel_does_not_wait_for_what_is_on_its_way():
    actor = Player("a")
    async with Supervisor([actor]) as supervisor:
        actor.lane.send_nowait("left")
        await supervisor.cancel()
        assert (actor.lane.closed, len(actor.lane), actor.lane.statistics().received) == (True, 0, 0)


async def test_drain_cancels_what_does_not_end_within_its_limit():
    actor = Player("deaf")
    async with Supervisor([actor], drain_timeout=0.01) as supervisor:
        await supervisor.drain()
        assert states(supervisor) == {"deaf": "stopped"}
    assert supervisor.failure is None


async def test_an_actor_that_returns_ends_alone_and_the_others_go_on():
    async with Supervisor([Player("short", checkpoint), Player("long")]) as supervisor:
        await anyio.wait_all_tasks_blocked()
        assert states(supervisor) == {"short": "stopped", "long": "running"}


async def test_a_lane_is_closed_when_the_last_of_its_senders_has_returned():
    sink = Player("sink")
    now: Reply[None] = Reply()
    senders = [Player("a", checkpoint, sends_to=[sink.lane]), Player("b", now.wait, sends_to=[sink.lane])]
    async with Supervisor([sink, *senders]):
        await anyio.wait_all_tasks_blocked()
        assert not sink.lane.closed
        now.set_result(None)
        await anyio.wait_all_tasks_blocked()
        assert sink.lane.closed


@pytest.mark.parametrize("fails", [False, True])
async def test_readers_of_a_cancelled_or_failed_actor_do_not_see_a_good_end(fails: bool):
    results = Channel[int](1, name="results")
    now, fail = failing_later(OSError("gone"))
    async with Supervisor([Player("a", fail, sends_to=[results])], raise_on_exit=False) as supervisor:
        if fails:
            now.set_result(None)
            await anyio.wait_all_tasks_blocked()
    assert (supervisor.failure is not None, results.closed) == (fails, False)


# --- looking in


async def test_diagnose_has_a_line_for_each_actor_with_its_wait_and_the_depth_of_its_lanes():
    actor, other = Player("runner"), Player("scheduler")
    actor.live, other.live = actor.wait, other.lane.receive
    async with Supervisor([actor, other]) as supervisor:
        await anyio.wait_all_tasks_blocked()
        first, second = supervisor.diagnose().splitlines()
        assert first.startswith("runner: running, waits for mailbox, for ")
        assert second.startswith("scheduler: running, waits for lines, for ")
        actor.lane.send_nowait(1)
        assert supervisor.diagnose().splitlines()[0].endswith(" s; control 0, lines 1/2")
    assert [line.split(",")[0] for line in supervisor.diagnose().splitlines()] == [
        "runner: stopped",
        "scheduler: stopped",
    ]


@native
async def test_a_program_that_ends_without_leaving_the_supervisor_leaves_no_warning():
    async def host() -> None:
        async with Supervisor([Player("a")]):
            await anyio.sleep_forever()

    def program() -> None:
        async def main() -> None:
            keep.append(asyncio.create_task(host()))
            await asyncio.sleep(0)
            await asyncio.sleep(0)

        asyncio.run(main())

    keep: list[Any] = []
    await anyio.to_thread.run_sync(program)
    keep.clear()
    gc.collect()
