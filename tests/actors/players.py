"""Actors that live as a test says."""

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel

from callboard.actors import Actor, Channel, Reply, Supervisor


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
