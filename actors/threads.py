"""The way from a foreign thread into the event loop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import sniffio

from .errors import WrongLoopError


class LoopPort:
    """Made inside a running event loop; lets any thread run functions in it.

    Posting does not wait: on asyncio it is ``call_soon_threadsafe``, on trio
    ``TrioToken.run_sync_soon``.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._post: Callable[..., Any]
        if sniffio.current_async_library() == "trio":
            import trio  # noqa: PLC0415 - only there when it runs

            self._post = trio.lowlevel.current_trio_token().run_sync_soon
        else:
            import asyncio  # noqa: PLC0415

            self._loop = asyncio.get_running_loop()
            self._post = self._loop.call_soon_threadsafe

    @property
    def is_owner(self) -> bool:
        """Whether the caller is in the loop's thread."""
        return threading.get_ident() == self._thread

    def check_owner(self) -> None:
        """Raise WrongLoopError in any other thread, or in another loop of the same thread."""
        if not self.is_owner or not self._same_loop():
            raise WrongLoopError("used from another event loop or thread than the one it was started in")

    def post(self, function: Callable[..., Any], *args: Any) -> bool:
        """Run a function in the loop soon; False if the loop has ended."""
        try:
            self._post(function, *args)
        except RuntimeError:  # asyncio's closed loop; trio's RunFinishedError is one too
            return False
        return True

    def _same_loop(self) -> bool:
        if not hasattr(self, "_loop"):
            return True
        import asyncio  # noqa: PLC0415

        return asyncio.get_running_loop() is self._loop
