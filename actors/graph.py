"""The graph of data lanes, drawn from what actors declare; it may have no cycle."""

from __future__ import annotations

from collections.abc import Sequence

from .actor import Actor
from .errors import CycleError


def refuse_cycles(actors: Sequence[Actor]) -> None:
    """Raise CycleError, with the path, if data can go round among the actors.

    Control lanes never block and may go back against the data.
    """
    edges = {actor.name: [lane.receiver for lane in actor.sends_to] for actor in actors}
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> None:
        if name in path:
            raise CycleError([*path[path.index(name) :], name])
        if name not in done:
            for receiver in edges.get(name, ()):
                visit(receiver, [*path, name])
            done.add(name)

    for name in edges:
        visit(name, [])
