"""Whatever fails, and however much: one cause, as itself, for all who wait."""

import asyncio

import anyio
import anyio.lowlevel
import pytest
from anyio.lowlevel import checkpoint
from loops import native
from players import Player, failing, failing_later, states
from structlog.testing import capture_logs

from callboard.actors import ActorStoppedError, Ask, Reply, Supervisor


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


class Broken(BaseException):
    """What passes by everybody's ``except Exception``."""


@pytest.mark.parametrize("grouped", [False, True], ids=["alone", "in a task group"])
@pytest.mark.parametrize("kind", [Broken, GeneratorExit])
async def test_what_is_no_exception_is_a_cause_like_any_and_ends_no_loop(kind: type[BaseException], grouped: bool):
    async def breaks() -> None:
        raise kind("lost")

    async def breaks_in_a_group() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(breaks)

    now, called = Reply(), []

    async def live() -> None:
        await now
        await (breaks_in_a_group if grouped else breaks)()

    with pytest.raises(ActorStoppedError, match=r"was ended by .*lost.*, which is no Exception") as caught:  # noqa: PT012
        async with Supervisor([other := Player("other"), Player("runner", live)]) as supervisor:
            supervisor.on_failure(called.append)
            now.set_result(None)
            await anyio.wait_all_tasks_blocked()
            assert states(supervisor) == {"other": "stopped", "runner": "failed"}
    assert isinstance(caught.value.__cause__, kind)
    assert called == [caught.value]
    assert other.notes[-1] == "other stops"


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
