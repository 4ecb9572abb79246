"""The graph of data lanes, drawn from what actors declare; it may have no cycle."""

from __future__ import annotations

import graphlib
from collections.abc import Sequence

from .actor import Actor
from .errors import CycleError


def refuse_cycles(actors: Sequence[Actor]) -> None:
    """Raise CycleError, with the path, if data can go round among the actors.

    Control lanes never block and may go back against the data.
    """
    sorter: graphlib.TopologicalSorter[str] = graphlib.TopologicalSorter()
    for actor in actors:
        for lane in actor.sends_to:
            sorter.add(lane.receiver, actor.name)
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        raise CycleError(_from_the_first(error.args[1][1:], actors)) from None


def _from_the_first(ring: list[str], actors: Sequence[Actor]) -> list[str]:
    """The way round a cycle, from the actor that was given first."""
    first = next(actor.name for actor in actors if actor.name in ring)
    at = ring.index(first)
    return [*ring[at:], *ring[:at], first]
