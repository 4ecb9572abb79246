"""An actor: a task that owns a mailbox."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import Any, Literal

import msgspec

from .channel import Channel
from .errors import ActorStoppedError, CallboardError, ChannelClosedError
from .mailbox import Mailbox
from .observation import Observer
from .reply import Ask

ActorState = Literal["created", "starting", "running", "stopping", "stopped", "failed"]


class ActorStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What an actor is doing."""

    name: str
    state: ActorState
    waiting_for: str  # what it waits for; empty while it works
    since: float  # by ``time.monotonic``, when the state, the wait or the work began
    lanes: dict[str, str]  # items / capacity of each lane


class Actor:
    """Base of all actors: override ``run``, which moves messages between lanes and a core.

    Args:
        name: unique in its pipeline.
        sends_to: the data lanes that it sends to or asks; the supervisor refuses cycles among
            them, and closes a lane when the last of those who declare it has returned from ``run``.
    """

    def __init__(self, name: str, *, sends_to: Sequence[Channel[Any]] = ()) -> None:
        self.name = name
        self.mailbox = Mailbox(name)
        self.sends_to = list(sends_to)
        self.observer: Observer | None = None
        self._state: ActorState = "created"
        self._waiting_for = ""
        self._since = 0.0

    async def on_start(self) -> None:
        """Runs before ``run``, in its task; the next actor starts after it. Again at each restart."""

    async def run(self) -> None:
        """The actor's life; returns when its input has ended."""
        raise NotImplementedError(f"{type(self).__name__} does not override run")

    async def on_stop(self) -> None:
        """Runs after ``run``, in its task, whatever ended that; not when ``on_start`` failed.

        It is shielded from the cancel that ended ``run``, for as long as the supervisor's
        ``cancel_timeout``.
        """

    async def wait(self) -> None:
        """Sleep until anything has arrived in the mailbox."""
        self._begins("mailbox")
        try:
            await self.mailbox.wait()
        finally:
            self._begins("")

    async def send(self, channel: Channel[Any], item: Any) -> None:
        """Send an item, waiting for room; the status tells of the wait."""
        self._begins(f"room in {channel.name}")
        try:
            await channel.send(item)
        finally:
            self._begins("")

    async def ask(self, channel: Channel[Any], message: Any) -> Any:
        """Send a question and wait for its answer. Raises ActorStoppedError if none can come.

        The channel must be declared in ``sends_to``: two actors that ask each other would wait
        for ever, and the supervisor sees such a cycle only among declared lanes.
        """
        if not any(channel is lane for lane in self.sends_to):
            raise CallboardError(f"actor {self.name!r} asks over {channel.name!r}, which its sends_to does not declare")
        ask: Ask[Any, Any] = Ask(message)
        self._begins(f"answer of {channel.receiver or channel.name}")
        try:
            await channel.send(ask)
            return await ask.reply
        except ChannelClosedError as error:
            if ask.reply.done():  # the answer itself
                raise
            raise ActorStoppedError(f"actor {channel.receiver!r} takes no more questions: {error}") from None
        finally:
            self._begins("")

    def observe(self, observer: Observer | None) -> None:
        """Tell somebody of every turn from now on; None: nobody any more."""
        self.observer = observer
        for lane in self.mailbox.lanes:
            lane.observer = observer

    def enter(self, state: ActorState) -> None:
        """Note a change of state; called by the supervisor."""
        self._state = state
        self._begins("")

    def status(self) -> ActorStatus:
        """What the actor is doing now."""
        waiting_for, since = self._waiting_for, self._since
        for lane in self.mailbox.lanes:
            if not waiting_for and lane.sleeping_since is not None:
                waiting_for, since = lane.name, lane.sleeping_since
        return ActorStatus(
            name=self.name,
            state=self._state,
            waiting_for=waiting_for,
            since=since,
            lanes=self.mailbox.depths(),
        )

    def _begins(self, wait: str) -> None:
        self._waiting_for, self._since = wait, monotonic()
        if self.observer is not None:
            if wait:
                self.observer.sleeps(self.name, wait)
            else:
                self.observer.wakes(self.name)
