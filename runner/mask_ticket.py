"""A promise of masks that a thread can wait for."""

from __future__ import annotations

import threading
from collections.abc import Awaitable

from ..actors.reply import Reply
from ..actors.tasks import start_apart
from ..scheduler.errors import EngineDeadError
from ..scheduler.plan import GrammarOutput


class MaskTicket:
    """Made in the event loop, waited for on a runner's thread."""

    def __init__(self, masks: Awaitable[GrammarOutput]) -> None:
        self._came = threading.Event()
        self._masks: GrammarOutput | None = None
        self._error: BaseException | None = None
        if isinstance(masks, Reply):
            masks.add_done_callback(self._take)
        else:
            start_apart(self._await, masks, name="masks of a step", at_end=self._came.set)

    def wait(self) -> GrammarOutput:
        """The masks, once they are there; or raises what stands in their way."""
        self._came.wait()
        if self._masks is None:
            raise self._error or EngineDeadError("the masks of a step never came")
        return self._masks

    def give_up(self, error: BaseException) -> None:
        """Let whoever waits go on with an error, if nothing has come."""
        if not self._came.is_set():
            self._error = error
            self._came.set()

    def _take(self, reply: Reply[GrammarOutput]) -> None:
        if reply.error is None:
            self._masks = reply.value
        else:
            self._error = reply.error
        self._came.set()

    async def _await(self, masks: Awaitable[GrammarOutput]) -> None:
        try:
            self._masks = await masks
        except Exception as error:  # noqa: BLE001 - it is raised where the masks are waited for
            self._error = error
