"""A cancel that meets an error inside an actor; an actor on its way in and out."""

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from structlog.testing import capture_logs

from callboard.actors import Actor, Channel, Supervisor


class Doing(Actor):
    """An actor whose life is a function."""

    def __init__(self, name: str, life: Callable[["Doing"], Awaitable[Any]]) -> None:
        super().__init__(name)
        self.life = life
        self.input: Channel[int] = self.mailbox.lane("input", 100)

    async def run(self) -> None:
        await self.life(self)


async def falls_over_its_cancel() -> None:
    try:
        await anyio.sleep_forever()
    finally:
        raise OSError("no room to write")


async def life_with_a_task_that_falls(actor: Doing) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(falls_over_its_cancel)
        await anyio.sleep_forever()


async def test_an_error_that_meets_the_hosts_cancel_is_noted_and_the_cancel_goes_on():
    with anyio.CancelScope() as scope:
        async with Supervisor([Doing("kv", lambda actor: falls_over_its_cancel())]) as supervisor:
            await anyio.wait_all_tasks_blocked()
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert repr(supervisor.failure) == "OSError('no room to write')"


async def test_an_error_in_a_task_of_an_actor_that_meets_the_hosts_cancel_makes_no_group():
    with anyio.CancelScope() as scope:
        async with Supervisor([Doing("kv", life_with_a_task_that_falls)]) as supervisor:
            await anyio.wait_all_tasks_blocked()
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert repr(supervisor.failure) == "OSError('no room to write')"
    assert supervisor.failure.__notes__ == ["in actor 'kv'"]
    assert supervisor.actors[0].status().state == "failed"


async def test_an_error_in_a_task_of_a_cancelled_actor_falls_after_the_cause_and_is_logged():
    async def fails(actor: Doing) -> None:
        await actor.input.receive()
        raise KeyError("block")

    first = Doing("first", fails)
    with capture_logs() as logs:
        async with Supervisor([first, Doing("kv", life_with_a_task_that_falls)], raise_on_exit=False) as supervisor:
            await anyio.wait_all_tasks_blocked()
            first.input.send_nowait(1)
            await anyio.wait_all_tasks_blocked()
    assert repr(supervisor.failure) == "KeyError('block')"
    assert [(log["event"], log["actor"]) for log in logs] == [("actor failed after the cause", "kv")]


async def test_the_status_tells_of_an_actor_on_its_way_in_and_out():
    class Seen(Doing):
        async def on_start(self) -> None:
            states.append(self.status().state)

        async def on_stop(self) -> None:
            states.append(self.status().state)

    async def lives(actor: Doing) -> None:
        states.append(actor.status().state)

    states: list[str] = []
    actor = Seen("kv", lives)
    states.append(actor.status().state)
    async with Supervisor([actor]) as supervisor:
        await supervisor.drain()
    assert [*states, actor.status().state] == ["created", "starting", "running", "stopping", "stopped"]
