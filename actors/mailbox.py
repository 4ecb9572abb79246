"""Where an actor's messages arrive: a control lane that never blocks, and bounded data lanes."""

from __future__ import annotations

from typing import Any

from .channel import Channel, ChannelStatistics
from .errors import ActorStoppedError, ChannelClosedError, ConfigError
from .reply import Ask, OpenAsks
from .signal import Signal

_CONTROL = "control"


class Mailbox:
    """All lanes of one actor; anything that arrives in one of them wakes it."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.lanes: list[Channel[Any]] = []
        self._news = Signal()
        self._control: list[Any] = []
        self._control_asked = OpenAsks()
        self._control_peak = self._control_taken = 0
        self._waiting = self._closed = False

    def lane(self, name: str, capacity: int) -> Channel[Any]:
        """A new data lane; its name is unique in the mailbox."""
        if name == _CONTROL or any(lane.name == name for lane in self.lanes):
            raise ConfigError(f"mailbox of {self.owner!r} has a lane {name!r} already")
        channel: Channel[Any] = Channel(capacity, name=name, receiver=self.owner, news=self._news)
        self.lanes.append(channel)
        return channel

    def control_nowait(self, message: Any) -> None:
        """Send to the control lane, which always has room. Raises ChannelClosedError after the end."""
        if self._closed:
            raise ChannelClosedError(f"{self.owner} {_CONTROL}")
        self._control.append(message)
        self._control_peak = max(self._control_peak, len(self._control))
        self._news.set()

    def take_control(self) -> list[Any]:
        """Everything in the control lane, in order of arrival."""
        messages, self._control = self._control, []
        self._control_taken += len(messages)
        self._control_asked.note(*_asks_of(messages))
        return messages

    def watch_room(self, channel: Channel[Any]) -> None:
        """Wake the owner when a channel that it sends to has room again."""
        channel.watch_room(self._news)

    def wake(self) -> None:
        """Wake the owner."""
        self._news.set()

    async def wait(self) -> None:
        """Sleep until anything has arrived since the last wait; then look at everything."""
        self._waiting = True
        try:
            await self._news.wait()
        finally:
            self._waiting = False

    def start_again(self) -> None:
        """The owner begins anew after an error and owes nothing: what it had taken is given up, the rest stays."""
        asks = self._control_asked.take()
        for lane in self.lanes:
            asks += lane.give_up_taken()
        _refuse(asks, f"actor {self.owner!r} failed before it had answered", None)
        self._news.set()

    def close(self, cause: BaseException | None = None) -> None:
        """The owner has stopped: later messages are refused, open questions get an error because of ``cause``."""
        self._closed = True
        asks = self._control_asked.take() + _asks_of(self._control)
        self._control.clear()
        for lane in self.lanes:
            lane.close()
            asks += lane.unanswered()
        _refuse(asks, f"actor {self.owner!r} has stopped", cause)

    def depths(self) -> dict[str, str]:
        """How full each lane is: items / capacity, and items whose place is still occupied."""
        depths = {_CONTROL: str(len(self._control))}
        for lane in self.lanes:
            leased = lane.statistics().leased
            depths[lane.name] = f"{len(lane)}/{lane.capacity}" + (f" + {leased} leased" if leased else "")
        return depths

    def used(self) -> dict[str, int]:
        """Places that are taken in each lane."""
        return {_CONTROL: len(self._control), **{lane.name: lane.used for lane in self.lanes}}

    def statistics(self) -> list[ChannelStatistics]:
        """Counts of the control lane and of the data lanes."""
        control = ChannelStatistics(
            name=_CONTROL,
            capacity=None,
            depth=len(self._control),
            leased=0,
            peak_depth=self._control_peak,
            sent=self._control_taken + len(self._control),
            received=self._control_taken,
            senders_waiting=0,
            receiver_waiting=self._waiting,
            closed=self._closed,
        )
        return [control, *(lane.statistics() for lane in self.lanes)]


def _asks_of(messages: list[Any]) -> list[Ask[Any, Any]]:
    return [message for message in messages if isinstance(message, Ask)]


def _refuse(asks: list[Ask[Any, Any]], reason: str, cause: BaseException | None) -> None:
    for ask in asks:
        error = ActorStoppedError(reason)
        error.__cause__ = cause
        ask.reply.set_error(error)
