"""The supervisor starts actors in order, keeps one cause, restarts within a budget, and leaves no task."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio.lowlevel import checkpoint
from structlog.testing import capture_logs

from callboard.actors import Actor, ActorStoppedError, Ask, CallboardError, Channel, Reply, Restart, Supervisor

native = pytest.mark.parametrize(
    "anyio_backend",
    [pytest.param(("asyncio", {}), id="asyncio"), pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop")],
)


class Player(Actor):
    """Notes what happens to it, and lives as a function says."""

    def __init__(self, name: str, live: Callable[[], Awaitable[Any]] = anyio.sleep_forever, **parts: Any) -> None:
        super().__init__(name, sends_to=parts.pop("sends_to", ()))
        self.lane: Channel[Any] = self.mailbox.lane("lines", 2)
        self.live, self.parts = live, parts
        self.notes: list[str] = parts.get("notes", [])

    async def on_start(self) -> None:
        self.notes.append(f"{self.name} starts")
        if "start" in self.parts:
            await self.parts["start"]()

    async def run(self) -> None:
        self.notes.append(f"{self.name} runs")
        await self.live()

    async def on_stop(self) -> None:
        self.notes.append(f"{self.name} stops")
        if "stop" in self.parts:
            await self.parts["stop"]()


def failing(error: BaseException) -> Callable[[], Awaitable[None]]:
    async def fail() -> None:
        raise error

    return fail


def failing_later(error: BaseException) -> tuple[Reply[None], Callable[[], Awaitable[None]]]:
    """A life that ends with an error when a reply comes."""
    now: Reply[None] = Reply()

    async def fail() -> None:
        await now
        raise error

    return now, fail


def states(supervisor: Supervisor) -> dict[str, str]:
    return {actor.name: actor.status().state for actor in supervisor.actors}


# --- the start


async def test_actors_start_in_order_each_after_the_one_before():
    notes: list[str] = []
    actors = [Player(name, start=checkpoint, notes=notes) for name in "abc"]
    async with Supervisor(actors) as supervisor:
        assert [note for note in notes if "starts" in note] == ["a starts", "b starts", "c starts"]
        assert notes.index("a runs") < notes.index("b starts")
        assert states(supervisor) == {"a": "running", "b": "running", "c": "running"}
    assert sorted(notes)[2::3] == ["a stops", "b stops", "c stops"]
    assert states(supervisor) == {"a": "stopped", "b": "stopped", "c": "stopped"}


@pytest.mark.parametrize("raise_on_exit", [True, False])
async def test_an_error_in_a_start_is_raised_by_entering_and_later_actors_never_start(raise_on_exit: bool):
    error, called = OSError("no device"), []
    first, broken, last = Player("first"), Player("broken", start=failing(error)), Player("last")
    supervisor = Supervisor([first, broken, last], raise_on_exit=raise_on_exit)
    supervisor.on_failure(called.append)
    with pytest.raises(OSError, match="no device") as caught:
        await supervisor.__aenter__()
    assert caught.value is error
    assert called == [error]
    assert first.notes == ["first starts", "first runs", "first stops"]
    assert (broken.notes, last.notes) == (["broken starts"], [])


async def test_an_actor_that_fails_while_another_starts_ends_the_start():
    now, fail = failing_later(OSError("gone"))

    async def start() -> None:
        now.set_result(None)
        await anyio.sleep_forever()

    slow, last = Player("slow", start=start), Player("last")
    with pytest.raises(OSError, match="gone"):
        await Supervisor([Player("first", fail), slow, last]).__aenter__()
    assert (slow.notes, last.notes) == (["slow starts"], [])


async def test_entering_in_a_cancelled_scope_leaves_no_actor_behind():
    actor = Player("a", start=anyio.sleep_forever)
    with anyio.move_on_after(0) as scope:
        await Supervisor([actor]).__aenter__()
    assert scope.cancelled_caught
    assert actor.status().state in {"created", "stopped"}


def test_two_actors_of_one_name_are_refused():
    with pytest.raises(ValueError, match=r"actors' names must differ, got \['a', 'b', 'a'\]"):
        Supervisor([Actor("a"), Actor("b"), Actor("a")])


def test_a_restart_for_an_actor_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match=r"restart names no actor: \['b'\], actors are \['a'\]"):
        Supervisor([Actor("a")], restart={"b": Restart(max_restarts=1, within_seconds=60)})


async def test_entering_twice_is_refused():
    async with Supervisor([Player("a")]) as supervisor:
        with pytest.raises(CallboardError, match="the supervisor was entered already"):
            await supervisor.__aenter__()


# --- one cause


async def test_the_cause_reaches_callbacks_at_once_and_the_host_at_its_exit_as_itself():
    error, called = OSError("gone"), []
    now, fail = failing_later(error)
    with pytest.raises(OSError, match="gone") as caught:  # noqa: PT012
        async with Supervisor([other := Player("other"), Player("runner", fail)]) as supervisor:
            supervisor.on_failure(lambda cause: called.append((cause, states(supervisor)["other"])))
            now.set_result(None)
            await anyio.wait_all_tasks_blocked()
            assert called == [(error, "running")]  # before the others were cancelled
            assert states(supervisor) == {"other": "stopped", "runner": "failed"}
            assert other.notes[-1] == "other stops"
            await checkpoint()  # the host's body goes on
    assert caught.value is error is supervisor.failure
    assert caught.value.__notes__ == ["in actor 'runner'"]


async def test_the_cause_is_kept_and_not_raised_when_the_host_says_so():
    now, fail = failing_later(OSError("gone"))
    async with Supervisor([Player("runner", fail)], raise_on_exit=False) as supervisor:
        now.set_result(None)
        await anyio.wait_all_tasks_blocked()
    assert repr(supervisor.failure) == "OSError('gone')"


async def test_a_callback_that_comes_after_the_failure_is_called_at_once():
    error, called = OSError("gone"), []
    now, fail = failing_later(error)
    async with Supervisor([Player("runner", fail)], raise_on_exit=False) as supervisor:
        now.set_result(None)
        await anyio.wait_all_tasks_blocked()
        supervisor.on_failure(called.append)
        assert called == [error]


async def test_a_callback_that_raises_keeps_the_cause_from_nobody():
    error, called = OSError("gone"), []
    now, fail = failing_later(error)
    supervisor = Supervisor([Player("other"), Player("runner", fail)], raise_on_exit=False)
    supervisor.on_failure(lambda cause: 1 / 0)
    supervisor.on_failure(called.append)
    with capture_logs() as logs:
        async with supervisor:
            now.set_result(None)
            await anyio.wait_all_tasks_blocked()
            assert called == [error]
            assert states(supervisor) == {"other": "stopped", "runner": "failed"}
    assert [log["event"] for log in logs] == ["a failure callback raised"]


async def test_an_error_after_the_cause_is_logged_and_not_raised():
    async def live() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise KeyError("because of it")

    now, fail = failing_later(OSError("gone"))
    with capture_logs() as logs:
        async with Supervisor([Player("other", live), Player("runner", fail)], raise_on_exit=False) as supervisor:
            now.set_result(None)
            await anyio.wait_all_tasks_blocked()
    assert repr(supervisor.failure) == "OSError('gone')"
    assert [(log["event"], log["actor"]) for log in logs] == [("actor failed after the cause", "other")]


async def test_of_two_actors_that_fail_in_one_turn_only_the_first_is_the_cause():
    called: list[BaseException] = []
    now: Reply[None] = Reply()

    async def fail() -> None:
        await now
        raise OSError("gone")

    async with Supervisor([Player("a", fail), Player("b", fail)], raise_on_exit=False) as supervisor:
        supervisor.on_failure(called.append)
        now.set_result(None)
        await anyio.wait_all_tasks_blocked()
    assert called == [supervisor.failure]
    assert len(supervisor.failure.__notes__) == 1
    assert states(supervisor) == {"a": "failed", "b": "failed"}


async def test_the_cause_is_taken_out_of_the_task_groups_inside_an_actor():
    error = OSError("gone")

    async def live() -> None:
        async with anyio.create_task_group() as outer, anyio.create_task_group() as inner:
            outer.start_soon(anyio.sleep_forever)
            inner.start_soon(failing(error))

    with pytest.raises(OSError, match="gone") as caught:
        async with Supervisor([Player("runner", live)]):
            await anyio.wait_all_tasks_blocked()
    assert caught.value is error


@pytest.mark.parametrize("fails", [False, True])
async def test_an_error_of_the_hosts_body_leaves_as_itself_even_after_a_failure(fails: bool):
    error = KeyError("the host's own")
    now, fail = failing_later(OSError("gone"))
    with pytest.raises(KeyError) as caught:  # noqa: PT012
        async with Supervisor([Player("runner", fail)]):
            if fails:
                now.set_result(None)
                await anyio.wait_all_tasks_blocked()
            raise error
    assert caught.value is error


async def test_a_question_that_a_failed_actor_had_taken_ends_with_the_cause():
    error = OSError("gone")

    async def live() -> None:
        await actor.lane.receive()
        raise error

    actor, ask = Player("kv"), Ask[str, int]("how many")
    actor.live = live
    async with Supervisor([actor], raise_on_exit=False):
        actor.lane.send_nowait(ask)
        with pytest.raises(ActorStoppedError, match="actor 'kv' has stopped") as caught:
            await ask.reply
    assert caught.value.__cause__ is error


@native
async def test_awaiting_a_future_that_somebody_cancelled_is_a_failure_and_not_a_quiet_end():
    future = asyncio.get_running_loop().create_future()

    async def live() -> None:
        await future

    async with Supervisor([Player("runner", live), Player("other")], raise_on_exit=False) as supervisor:
        future.cancel()
        await anyio.wait_all_tasks_blocked()
        assert states(supervisor) == {"runner": "failed", "other": "stopped"}
    assert str(supervisor.failure) == "actor 'runner' was cancelled, and not by its supervisor"


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


async def turns(count: int) -> None:
    for _ in range(count):
        await checkpoint()


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


async def test_leaving_waits_for_an_actor_that_is_late_and_then_says_so():
    release: Reply[None] = Reply()

    async def live() -> None:
        with anyio.CancelScope(shield=True):
            await release

    async def release_when_late() -> None:
        await late.wait()
        release.set_result(None)

    late = anyio.Event()
    supervisor = Supervisor([Player("stubborn", live)], cancel_timeout=0.01)
    supervisor.diagnose = lambda: late.set() or "as seen"
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


# --- restart


def breaking(times: int, done: Reply[None]) -> Callable[[], Awaitable[None]]:
    """A life that fails so many times and then goes well."""
    left = iter(range(times, -1, -1))

    async def live() -> None:
        if count := next(left):
            raise OSError(f"{count} to come")
        done.set_result(None)
        await anyio.sleep_forever()

    return live


async def test_an_actor_is_started_again_within_its_budget():
    done: Reply[None] = Reply()
    actor = Player("a", breaking(2, done))
    budget = Restart(max_restarts=2, within_seconds=3600)
    async with Supervisor([actor], restart={"a": budget}) as supervisor:
        await done
        assert states(supervisor) == {"a": "running"}
    assert actor.notes == ["a starts", "a runs", "a stops"] * 3


async def test_beyond_its_budget_the_actor_fails():
    actor = Player("a", breaking(3, Reply()))
    budget = Restart(max_restarts=2, within_seconds=3600)
    with pytest.raises(OSError, match="1 to come"):
        async with Supervisor([actor], restart={"a": budget}):
            await anyio.wait_all_tasks_blocked()
    assert actor.notes.count("a runs") == 3


async def test_restarts_long_ago_do_not_count():
    done: Reply[None] = Reply()
    actor = Player("a", breaking(5, done))
    async with Supervisor([actor], restart={"a": Restart(max_restarts=1, within_seconds=0)}):
        await done
    assert actor.notes.count("a runs") == 6


async def test_an_actor_that_fails_when_it_is_cancelled_is_not_started_again():
    async def live() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise OSError("cannot even stop")

    actor, budget = Player("a", live), Restart(max_restarts=9, within_seconds=3600)
    with pytest.raises(OSError, match="cannot even stop"):
        async with Supervisor([actor], restart={"a": budget}):
            pass
    assert actor.notes.count("a runs") == 1


async def test_a_restarted_actor_answers_what_waits_and_gives_up_what_it_had_taken():
    asks = [Ask[str, str]("bad"), Ask[str, str]("good")]

    async def live() -> None:
        async for ask in actor.lane.leases():
            if ask.message == "bad":
                raise OSError(ask.message)
            ask.reply.set_result("fine")
            actor.lane.settle()

    actor, budget = Player("kv"), Restart(max_restarts=1, within_seconds=3600)
    actor.live = live
    async with Supervisor([actor], restart={"kv": budget}):
        for ask in asks:
            actor.lane.send_nowait(ask)
        with pytest.raises(ActorStoppedError, match="actor 'kv' failed before it had answered"):
            await asks[0].reply
        assert await asks[1].reply == "fine"
        assert actor.lane.statistics().leased == 0


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
