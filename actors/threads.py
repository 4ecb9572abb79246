"""The way from a foreign thread into the event loop."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

import anyio

from .errors import WrongLoopError
from .trio_run import trio_of_caller

# As asyncio.get_running_loop, but None outside of any: documented for those who write event loops.
_get_running_loop: Callable[[], Any] = asyncio._get_running_loop  # pyright: ignore[reportPrivateUsage]


class LoopPort:
    """Made inside a running event loop; lets any thread run functions in it.

    Posting does not wait: on asyncio it is ``call_soon_threadsafe``, on trio
    ``TrioToken.run_sync_soon``.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._loop = _running_loop()
        if self._loop is None:
            raise WrongLoopError("no event loop is running in this thread")
        on_asyncio = isinstance(self._loop, asyncio.AbstractEventLoop)
        self._post = self._loop.call_soon_threadsafe if on_asyncio else self._loop.run_sync_soon
        self._clock: Callable[[], float] = self._loop.time if on_asyncio else anyio.current_time
        self._fine_clock = monotonic if type(self._loop).__module__.startswith("uvloop") else self._clock

    @property
    def is_owner(self) -> bool:
        """Whether the caller is in the loop's thread."""
        return threading.get_ident() == self._thread

    def check_owner(self) -> None:
        """Raise WrongLoopError in any other thread, in another loop of the same thread, or outside of any."""
        # Each thread is told its own running loop, so whoever is in the owner's is in its thread too. The
        # short way first: a stream's reader comes here for each output.
        if "trio" not in sys.modules and _get_running_loop() is self._loop:
            return
        if _running_loop() is not self._loop:
            raise WrongLoopError("used from another event loop or thread than the one it was started in")

    def time(self) -> float:
        """Seconds on the loop's clock; in the loop's thread, inside a task or not."""
        return self._clock()

    def fine_time(self) -> float:
        """The same clock, finer where the loop's own counts whole milliseconds, as uvloop's does."""
        return self._fine_clock()

    def post(self, function: Callable[..., Any], *args: Any) -> bool:
        """Run a function, which must not raise, in the loop soon; False if the loop has ended."""
        try:
            self._post(function, *args)
        except RuntimeError:  # asyncio's closed loop; trio's RunFinishedError is one too
            return False
        return True


def _running_loop() -> Any:
    """The asyncio loop, or the token of the trio run, that the caller is in; None outside of both."""
    if (lowlevel := trio_of_caller()) is not None:  # first, since it may be asyncio's guest
        return lowlevel.current_trio_token()
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
