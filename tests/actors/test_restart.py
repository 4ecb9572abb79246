"""The supervisor starts an actor that failed again, within a budget."""

from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
import pytest
from players import Player, states

from callboard.actors import ActorStoppedError, Ask, Reply, Restart, Supervisor


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
