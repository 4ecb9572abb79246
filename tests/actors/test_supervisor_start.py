"""The supervisor starts actors in order, and leaves nothing behind where that fails."""

import anyio
import anyio.lowlevel
import pytest
from anyio.lowlevel import checkpoint
from players import Player, failing, failing_later, states

from callboard.actors import Actor, CallboardError, Restart, Supervisor


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
