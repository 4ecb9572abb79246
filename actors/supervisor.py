"""Starts actors in order, stops them, and keeps the one cause when one of them fails."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import anyio
import anyio.abc
import msgspec
import structlog

from .actor import Actor, ActorStatus
from .errors import ActorStoppedError
from .graph import refuse_cycles

log = structlog.get_logger("callboard.actors")


class Restart(msgspec.Struct, frozen=True, kw_only=True):
    """Permission to start a failed actor again: so many times within so many seconds."""

    max_restarts: int
    within_seconds: float


class Supervisor:
    """Owns the tasks of a set of actors.

    When an actor fails, its error is noted as ``failure`` with the actor's name, the callbacks
    are called at once, and the other actors are cancelled. The host's own task goes on; leaving
    the context raises the one cause, unless ``raise_on_exit`` is false.

    Args:
        actors: started in this order.
        drain_timeout: seconds that ``drain`` gives the actors to end by themselves.
        cancel_timeout: seconds that cancelled actors have before they are reported.
        restart: actor name -> permission to start it again after an error.
    """

    def __init__(
        self,
        actors: Sequence[Actor],
        *,
        drain_timeout: float = 5.0,
        cancel_timeout: float = 5.0,
        raise_on_exit: bool = True,
        restart: dict[str, Restart] | None = None,
    ) -> None:
        names = [actor.name for actor in actors]
        if len(set(names)) != len(names):
            raise ValueError(f"actors' names must differ, got {names}")
        refuse_cycles(actors)
        self.actors = list(actors)
        self.failure: BaseException | None = None
        self._drain_timeout, self._cancel_timeout = drain_timeout, cancel_timeout
        self._raise_on_exit = raise_on_exit
        self._restart = restart or {}
        self._restarted: dict[str, list[float]] = {name: [] for name in names}
        self._callbacks: list[Callable[[BaseException], None]] = []
        self._scopes: list[anyio.CancelScope] = []
        self._alive: set[str] = set()
        self._one_ended = anyio.Event()

    def on_failure(self, callback: Callable[[BaseException], None]) -> None:
        """Call ``callback`` with the cause as soon as an actor has failed."""
        self._callbacks.append(callback)

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        try:
            for actor in self.actors:
                await self._tasks.start(self._live, actor)
        except BaseException:
            await self.__aexit__(*sys.exc_info())
            raise
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        try:
            await self.cancel()
        finally:
            # The body's own error is not shown to the task group, which would wrap it in a group.
            self._tasks.cancel_scope.cancel()
            await self._tasks.__aexit__(None, None, None)
        if exc is None and self.failure is not None and self._raise_on_exit:
            raise self.failure

    async def drain(self) -> None:
        """Let actors end by themselves: close the first inputs and wait; then cancel."""
        fed = {id(lane) for actor in self.actors for lane in actor.sends_to}
        for actor in self.actors:
            for lane in actor.mailbox.lanes:
                if id(lane) not in fed:
                    lane.close()
        with anyio.move_on_after(self._drain_timeout):
            while self._alive:
                self._one_ended = anyio.Event()
                await self._one_ended.wait()
        await self.cancel()

    async def cancel(self) -> None:
        """End all actors where they are, and wait for them. Raises ActorStoppedError if one stays."""
        for scope in self._scopes:
            scope.cancel()
        with anyio.move_on_after(self._cancel_timeout, shield=True) as limit:
            while self._alive:
                self._one_ended = anyio.Event()
                await self._one_ended.wait()
        if limit.cancelled_caught:
            late = sorted(self._alive)
            log.error("actors do not stop", actors=late, seconds=self._cancel_timeout)
            raise ActorStoppedError(f"actors {late} did not stop within {self._cancel_timeout} s:\n{self.diagnose()}")

    def diagnose(self) -> str:
        """One line for each actor: state, what it waits for, since when, its lanes."""
        now = anyio.current_time()
        return "\n".join(_line(actor.status(), now) for actor in self.actors)

    # --- an actor's task

    async def _live(self, actor: Actor, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        self._alive.add(actor.name)
        try:
            with anyio.CancelScope() as scope:
                self._scopes.append(scope)
                await actor.on_start()
                actor.enter("running")
                task_status.started()
                await self._run(actor)
            actor.enter("stopped")
        except Exception as error:  # noqa: BLE001 - whatever an actor raises is the cause of the end
            actor.enter("failed")
            self._fail(actor, error)
        finally:
            actor.mailbox.close()
            self._alive.discard(actor.name)
            self._one_ended.set()

    async def _run(self, actor: Actor) -> None:
        while True:
            try:
                await actor.run()
            except Exception as error:
                if not self._may_restart(actor):
                    raise
                log.warning("actor restarts", actor=actor.name, error=repr(error))
            else:
                return
            finally:
                await actor.on_stop()

    def _may_restart(self, actor: Actor) -> bool:
        permission = self._restart.get(actor.name)
        if permission is None:
            return False
        now = anyio.current_time()
        recent = [at for at in self._restarted[actor.name] if now - at < permission.within_seconds]
        self._restarted[actor.name] = [*recent, now]
        return len(recent) < permission.max_restarts

    def _fail(self, actor: Actor, error: Exception) -> None:
        if self.failure is not None:  # one cause; what falls after it falls because of it
            return
        cause = _the_one_cause(error)
        cause.add_note(f"in actor {actor.name!r}")
        self.failure = cause
        for callback in self._callbacks:
            callback(cause)
        for scope in self._scopes:
            scope.cancel()


def _the_one_cause(error: BaseException) -> BaseException:
    """What a task group inside an actor has wrapped: of several errors the first was the cause."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    return error


def _line(status: ActorStatus, now: float) -> str:
    doing = f"waits for {status.waiting_for}" if status.waiting_for else "works"
    lanes = ", ".join(f"{name} {depth}" for name, depth in status.lanes.items())
    return f"{status.name}: {status.state}, {doing}, for {now - status.since:.3f} s; {lanes}"
