"""Where an actor's messages arrive: a control lane that never blocks, and bounded data lanes."""

from __future__ import annotations

from typing import Any

from .channel import Channel, ChannelStatistics
from .errors import ActorStoppedError, ChannelClosedError
from .signal import Signal


class Mailbox:
    """All lanes of one actor; anything that arrives in one of them wakes it."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.lanes: list[Channel[Any]] = []
        self._news = Signal()
        self._control: list[Any] = []
        self._control_peak = 0
        self._closed = False

    def lane(self, name: str, capacity: int) -> Channel[Any]:
        """A new data lane."""
        channel: Channel[Any] = Channel(capacity, name=name, receiver=self.owner, news=self._news)
        self.lanes.append(channel)
        return channel

    def control_nowait(self, message: Any) -> None:
        """Send to the control lane, which always has room. Raises ChannelClosedError after the end."""
        if self._closed:
            raise ChannelClosedError(f"{self.owner} control")
        self._control.append(message)
        self._control_peak = max(self._control_peak, len(self._control))
        self._news.set()

    def take_control(self) -> list[Any]:
        """Everything in the control lane, in order of arrival."""
        messages, self._control = self._control, []
        return messages

    def watch_room(self, channel: Channel[Any]) -> None:
        """Wake the owner when a channel that it sends to has room again."""
        channel.watch_room(self._news)

    def wake(self) -> None:
        """Wake the owner."""
        self._news.set()

    async def wait(self) -> None:
        """Sleep until anything has arrived since the last wait; then look at everything."""
        await self._news.wait()

    def close(self) -> None:
        """The owner has stopped: later messages are refused, open questions get an error."""
        self._closed = True
        for lane in self.lanes:
            lane.close()
            for ask in lane.unanswered():
                ask.reply.set_error(ActorStoppedError(f"actor {self.owner!r} has stopped"))

    def depths(self) -> dict[str, str]:
        """Items and capacity of each lane."""
        control = {"control": str(len(self._control))}
        return control | {lane.name: f"{len(lane)}/{lane.capacity}" for lane in self.lanes}

    def statistics(self) -> list[ChannelStatistics]:
        """Counts of the data lanes."""
        return [lane.statistics() for lane in self.lanes]
