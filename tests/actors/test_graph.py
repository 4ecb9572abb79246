"""Cycles among declared lanes are refused before anything starts."""

from collections.abc import Iterable
from itertools import pairwise

import pytest

from callboard.actors import Actor, CycleError, Supervisor


def wired(edges: Iterable[str]) -> Supervisor:
    """Actors named by letters; "ab" means that a sends to b."""
    actors = {name: Actor(name) for name in sorted({letter for edge in edges for letter in edge})}
    for sender, receiver in edges:
        lane = actors[receiver].mailbox.lane(f"from {sender}", 1)
        actors[sender].sends_to.append(lane)
    return Supervisor(list(actors.values()))


@pytest.mark.parametrize("edges", [[], ["ab"], ["ab", "bc", "cd"], ["ab", "ac", "bd", "cd"], ["ab", "cb", "ad"]])
def test_chains_forks_and_diamonds_are_accepted(edges: list[str]):
    assert wired(edges).failure is None


@pytest.mark.parametrize(
    ("edges", "path"),
    [
        (["aa"], "a -> a"),
        (["ab", "ba"], "a -> b -> a"),
        (["ab", "bc", "cd", "db"], "b -> c -> d -> b"),
        (["ab", "ac", "bd", "cd", "da"], "a -> b -> d -> a"),
    ],
)
def test_a_cycle_is_refused_with_its_path(edges: list[str], path: str):
    with pytest.raises(CycleError, match=f"^data lanes form a cycle: {path}$"):
        wired(edges)


def test_a_control_lane_may_go_back_against_the_data():
    scheduler, runner = Actor("scheduler"), Actor("runner")
    scheduler.sends_to.append(runner.mailbox.lane("plans", 1))
    Supervisor([scheduler, runner])
    scheduler.mailbox.control_nowait("done")
    assert scheduler.mailbox.take_control() == ["done"]


def test_a_chain_of_three_thousand_actors_is_accepted():
    actors = [Actor(f"a{number}") for number in range(3000)]
    for sender, receiver in pairwise(actors):
        sender.sends_to.append(receiver.mailbox.lane("in", 1))
    Supervisor(actors)
