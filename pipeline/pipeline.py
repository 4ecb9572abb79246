"""Actors wired by their lanes into one whole, checked before it starts."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from ..actors import Actor, ChannelStatistics, Supervisor
from ..scheduler.errors import ConfigError


class Pipeline:
    """A set of actors that start and stop together.

    Each actor declares the lanes that it sends to; a lane belongs to the actor that receives.
    Before anything starts the pipeline refuses a lane that leads out of it, two actors of one
    name, and a cycle of data lanes, each by its names.

    Args:
        actors: started in this order; receivers come before those that send to them.
        stop_timeout: seconds in which actors end, when drained and again when cancelled.
        raise_on_exit: whether leaving the context raises the error that ended an actor.
    """

    def __init__(self, *actors: Actor, stop_timeout: float = 5.0, raise_on_exit: bool = True) -> None:
        _refuse_loose_ends(actors)
        self.actors = {actor.name: actor for actor in actors}
        self._supervisor = Supervisor(
            actors, drain_timeout=stop_timeout, cancel_timeout=stop_timeout, raise_on_exit=raise_on_exit
        )

    @property
    def failure(self) -> BaseException | None:
        """The one error that ended the pipeline, if one did."""
        return self._supervisor.failure

    def on_failure(self, callback: Callable[[BaseException], None]) -> None:
        """Call ``callback`` with that error as soon as it has happened."""
        self._supervisor.on_failure(callback)

    async def drain(self) -> None:
        """Close the first inputs and let the actors end one after the other, for as long as they may take."""
        await self._supervisor.drain()

    async def __aenter__(self) -> Self:
        await self._supervisor.__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._supervisor.__aexit__(exc_type, exc, tb)

    def statistics(self) -> dict[str, list[ChannelStatistics]]:
        """Counts of each actor's lanes."""
        return {name: actor.mailbox.statistics() for name, actor in self.actors.items()}

    def diagnose(self) -> str:
        """One line for each actor: state, what it waits for, since when, its lanes."""
        return self._supervisor.diagnose()


def _refuse_loose_ends(actors: tuple[Actor, ...]) -> None:
    names = {actor.name for actor in actors}
    for actor in actors:
        for lane in actor.sends_to:
            if lane.receiver not in names:
                raise ConfigError(
                    f"actor {actor.name!r} sends to lane {lane.name!r} of {lane.receiver or 'nobody'!r}, "
                    f"which is not among the pipeline's actors {sorted(names)}"
                )
