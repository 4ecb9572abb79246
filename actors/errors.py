"""Errors of the actor kit.

CallboardError              everything that this project raises on purpose
├── ChannelFullError        a send that may not wait found no room
├── ChannelEmptyError       a receive that may not wait found nothing
├── ChannelClosedError      a send after the end, or a receive behind it
├── BusyError               a second receiver or waiter where one is allowed
├── ConfigError             a setting is unknown, out of range, or contradicts another (a ValueError too)
├── CycleError              the declared data lanes form a cycle
├── ActorStoppedError       an ask to an actor that has stopped, or an actor that will not stop
└── WrongLoopError          a call from another event loop or thread than the owner's
"""


class CallboardError(Exception):
    """Everything that this project raises on purpose."""


class ChannelFullError(CallboardError):
    """A send that may not wait found no room."""

    def __init__(self, name: str, capacity: int) -> None:
        super().__init__(f"channel {name!r} is full, its capacity is {capacity}")


class ChannelEmptyError(CallboardError):
    """A receive that may not wait found nothing."""

    def __init__(self, name: str) -> None:
        super().__init__(f"channel {name!r} is empty")


class ChannelClosedError(CallboardError):
    """A send after the end of a channel, or a receive behind its last item."""

    def __init__(self, name: str) -> None:
        super().__init__(f"channel {name!r} is closed")


class BusyError(CallboardError):
    """A second receiver or waiter where only one is allowed."""


class ConfigError(CallboardError, ValueError):
    """A setting is unknown, out of range, or contradicts another."""


class CycleError(CallboardError):
    """The declared data lanes form a cycle, in which actors could wait for each other for ever."""

    def __init__(self, path: list[str]) -> None:
        super().__init__(f"data lanes form a cycle: {' -> '.join(path)}")


class ActorStoppedError(CallboardError):
    """An ask to an actor that has stopped, or an actor that does not stop in time."""


class WrongLoopError(CallboardError):
    """A call from another event loop or thread than the owner's."""
