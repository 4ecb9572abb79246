"""A wake-up that is never lost."""

from __future__ import annotations

import anyio

from .errors import BusyError


class Signal:
    """Level-triggered: ``wait`` returns once it is set, and clears it.

    The owner looks at everything it cares for after each wait, so several settings may fall
    together. A wait that is cancelled leaves the signal set: nothing is handed over, so nothing
    can be lost with the waiter.
    """

    __slots__ = ("_event", "_set")

    def __init__(self) -> None:
        self._set = False
        self._event: anyio.Event | None = None

    @property
    def is_set(self) -> bool:
        """Whether the next wait returns without sleeping."""
        return self._set

    def set(self) -> None:
        """Wake the waiter, or the next one."""
        self._set = True
        if self._event is not None:
            self._event.set()

    async def wait(self) -> None:
        """Sleep until the signal is set. Does not yield to the loop when it is set already."""
        if self._event is not None:
            raise BusyError("this signal has a waiter already, one is allowed")
        while not self._set:
            self._event = anyio.Event()
            try:
                await self._event.wait()
            finally:
                self._event = None
        self._set = False
