"""An actor: a task that owns a mailbox."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import msgspec

from .channel import Channel
from .mailbox import Mailbox
from .reply import Ask


class ActorStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What an actor is doing."""

    name: str
    state: str  # "created", "running", "stopped" or "failed"
    waiting_for: str  # what it waits for; empty while it works
    since: float  # seconds on the loop's clock when the state or the wait began
    lanes: dict[str, str]  # items / capacity of each lane


class Actor:
    """Base of all actors: override ``run``, which moves messages between lanes and a core.

    Args:
        name: unique in its pipeline.
        sends_to: the data lanes that it sends to; the supervisor refuses cycles among them.
    """

    def __init__(self, name: str, *, sends_to: Sequence[Channel[Any]] = ()) -> None:
        self.name = name
        self.mailbox = Mailbox(name)
        self.sends_to = list(sends_to)
        self._state = "created"
        self._waiting_for = ""
        self._since = 0.0

    async def on_start(self) -> None:
        """Runs before the actor's first turn, in its task; the next actor starts after it."""

    async def run(self) -> None:
        """The actor's life; returns when its input has ended."""
        raise NotImplementedError(f"{type(self).__name__} does not override run")

    async def on_stop(self) -> None:
        """Runs after the last turn, in the actor's task, whatever ended it."""

    async def wait(self) -> None:
        """Sleep until anything has arrived in the mailbox."""
        self._waiting_for, self._since = "mailbox", anyio.current_time()
        await self.mailbox.wait()
        self._waiting_for = ""

    async def ask(self, channel: Channel[Any], message: Any) -> Any:
        """Send a question and wait for its answer.

        Only towards actors that never ask back: two that ask each other would wait for ever.
        """
        ask: Ask[Any, Any] = Ask(message)
        self._waiting_for, self._since = f"answer of {channel.receiver or channel.name}", anyio.current_time()
        await channel.send(ask)
        answer = await ask.reply
        self._waiting_for = ""
        return answer

    def enter(self, state: str) -> None:
        """Note a change of state; called by the supervisor."""
        self._state, self._since = state, anyio.current_time()

    def status(self) -> ActorStatus:
        """What the actor is doing now."""
        waiting_for, since = self._waiting_for, self._since
        for lane in self.mailbox.lanes:
            if lane.sleeping_since is not None:
                waiting_for, since = lane.name, lane.sleeping_since
        return ActorStatus(
            name=self.name,
            state=self._state,
            waiting_for=waiting_for,
            since=since,
            lanes=self.mailbox.depths(),
        )
