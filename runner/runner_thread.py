"""A thread that executes functions in order and delivers their results into the event loop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

import anyio.to_thread
import structlog

from ..actors.reply import Reply
from ..actors.threads import LoopPort
from ..scheduler.errors import EngineDeadError, RunnerError

T = TypeVar("T")
log: Any = structlog.get_logger(__name__)


class RunnerThread:
    """Bound to the event loop that first uses it; further calls come from that loop.

    The first function that raises ends the work: its error goes to its own reply and to every
    later one, what is no ``Exception`` as the cause of a RunnerError. The thread is a daemon, so
    that a program that forgets to close it can end.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[tuple[Callable[[], Any], Reply[Any]] | None] = SimpleQueue()
        self._port: LoopPort | None = None
        self._thread: threading.Thread | None = None
        self._pending: dict[Reply[Any], None] = {}  # in order; touched in the loop only
        self._closing = False
        self._dropping = threading.Event()

    def submit(self, function: Callable[[], T]) -> Reply[T]:
        """Execute a function after those before it; returns at once.

        Raises:
            EngineDeadError: after ``aclose``.
            WrongLoopError: called from another event loop or thread than before.
        """
        if self._closing:
            raise EngineDeadError(f"{self._name} is closed")
        self._bind()
        reply: Reply[T] = Reply()
        self._pending[reply] = None
        self._jobs.put((function, reply))
        return reply

    async def aclose(self, limit: float) -> None:
        """End the thread behind the function that it is at; what waits fails with EngineDeadError.

        Waits up to ``limit`` seconds, even when cancelled, since the function uses memory that the
        caller is about to give up. May be called twice.
        """
        self._closing = True
        if self._port is None or self._thread is None:
            return
        self._port.check_owner()
        self._dropping.set()
        self._jobs.put(None)
        with anyio.CancelScope(shield=True):
            # A limiter of its own: the host's may be taken by threads that wait for this engine.
            await anyio.to_thread.run_sync(self._thread.join, limit, limiter=anyio.CapacityLimiter(1))
        if self._thread.is_alive():
            log.warning("runner_thread_still_busy", thread=self._name, waited_seconds=limit)
        for reply in list(self._pending):
            self._settle(reply, None, EngineDeadError(f"{self._name} was closed before this was done"))

    def _bind(self) -> None:
        if self._port is not None:
            self._port.check_owner()
            return
        self._port = LoopPort()
        self._thread = threading.Thread(target=self._work, args=(self._port,), name=self._name, daemon=True)
        self._thread.start()

    # --- in the loop

    def _settle(self, reply: Reply[Any], value: Any, error: BaseException | None) -> None:
        if reply not in self._pending:  # dropped by aclose
            return
        del self._pending[reply]
        if error is None:
            reply.set_result(value)
        else:
            reply.set_error(error)

    # --- in the thread

    def _work(self, port: LoopPort) -> None:
        cause: Exception | None = None
        while (job := self._jobs.get()) is not None and not self._dropping.is_set():
            function, reply = job
            value = None
            if cause is None:
                value, cause = self._attempt(function)
            if not port.post(self._settle, reply, value, cause):
                return
            del job, function, reply, value  # hold nothing while waiting

    def _attempt(self, function: Callable[[], T]) -> tuple[T | None, Exception | None]:
        try:
            return function(), None
        except Exception as error:  # noqa: BLE001 - whatever it is, it must reach those who wait
            return None, error
        except BaseException as error:  # noqa: BLE001 - raised in the loop it would end the host, or pass for a cancel
            ended = RunnerError(f"{self._name} was ended by {error!r}")
            ended.__cause__ = error
            return None, ended
