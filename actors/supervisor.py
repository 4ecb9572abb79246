"""Starts actors in order, stops them, and keeps the one cause when one of them fails."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from time import monotonic
from types import TracebackType
from typing import Self

import anyio
import anyio.lowlevel
import msgspec
import structlog

from .actor import Actor, ActorStatus
from .errors import ActorStoppedError, CallboardError, ConfigError
from .graph import refuse_cycles
from .reply import Reply
from .tasks import is_cancelled, outlast, start_apart, stray_cancel

log = structlog.get_logger("callboard.actors")


class Restart(msgspec.Struct, frozen=True, kw_only=True):
    """Permission to start a failed actor again: so many times within so many seconds."""

    max_restarts: int
    within_seconds: float


class Supervisor:
    """Owns the tasks of a set of actors.

    No cancel scope of the host reaches them: the host may be cancelled and still talk to its
    actors while it cleans up, and several supervisors may be left in any order, in any task of
    the loop.

    When an actor fails, its error is noted as ``failure`` with the actor's name, the callbacks
    are called at once, and the other actors are cancelled. The host's own task goes on; leaving
    the context raises the one cause, unless ``raise_on_exit`` is false. During the start it is
    raised at once. An actor that returns does not end the others.

    Leaving the context always waits for every task, since none may outlive it. Cancelled actors
    that have not ended after ``cancel_timeout`` are logged by name at that time.

    Args:
        actors: started in this order.
        drain_timeout: seconds that ``drain`` gives the actors to end by themselves.
        cancel_timeout: seconds that cancelled actors have before they are reported, and that an
            ``on_stop`` has before it is cut off.
        raise_on_exit: whether leaving the block raises what an actor failed with; else ``failure`` holds it.
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
            raise ConfigError(f"actors' names must differ, got {names}")
        if unknown := sorted(set(restart or ()) - set(names)):
            raise ConfigError(f"restart names no actor: {unknown}, actors are {names}")
        refuse_cycles(actors)
        self.actors = list(actors)
        self.failure: BaseException | None = None
        self._drain_timeout, self._cancel_timeout = drain_timeout, cancel_timeout
        self._raise_on_exit = raise_on_exit
        self._restart = restart or {}
        self._restarted: dict[str, list[float]] = {name: [] for name in names}
        self._callbacks: list[Callable[[BaseException], None]] = []
        self._entered = False
        self._scopes: list[anyio.CancelScope] = []
        self._ends: dict[str, Reply[None]] = {}  # actor -> its end
        self._returned: set[str] = set()

    def on_failure(self, callback: Callable[[BaseException], None]) -> None:
        """Call ``callback`` with the cause as soon as an actor has failed; at once if one has."""
        self._callbacks.append(callback)
        if self.failure is not None:
            _call(callback, self.failure)

    async def __aenter__(self) -> Self:
        if self._entered:
            raise CallboardError("the supervisor was entered already; it serves one `async with`")
        self._entered = True
        try:
            for actor in self.actors:
                await self._start(actor)
        except BaseException:
            await self.__aexit__(*sys.exc_info())
            raise
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        late = None
        try:
            await self.cancel()
        except ActorStoppedError as error:
            late = error
        finally:
            await outlast(*self._ends.values())
        cause = (self.failure if self._raise_on_exit else None) or late
        if exc is None and cause is not None:
            raise cause

    async def drain(self) -> None:
        """Let actors end by themselves: close the first inputs and wait; then cancel.

        An actor that returns closes the lanes that only it fed: so the end travels down.
        """
        fed = {id(lane) for actor in self.actors for lane in actor.sends_to}
        for actor in self.actors:
            for lane in actor.mailbox.lanes:
                if id(lane) not in fed:
                    lane.close()
        with anyio.move_on_after(self._drain_timeout):
            await self._all_ended()
        await self.cancel()

    async def cancel(self) -> None:
        """End all actors where they are, and wait for them. Raises ActorStoppedError if one stays."""
        self._cancel_all()
        with anyio.move_on_after(self._cancel_timeout, shield=True) as limit:
            await self._all_ended()
        if limit.cancelled_caught and self._ends:
            late = sorted(self._ends)
            log.error("actors do not stop", actors=late, seconds=self._cancel_timeout)
            raise ActorStoppedError(f"actors {late} did not stop within {self._cancel_timeout} s:\n{self.diagnose()}")

    def diagnose(self) -> str:
        """One line for each actor: state, what it waits for, since when, its lanes."""
        now = monotonic()
        return "\n".join(_line(actor.status(), now) for actor in self.actors)

    # --- an actor's task

    async def _start(self, actor: Actor) -> None:
        started: Reply[None] = Reply()
        scope = anyio.CancelScope()
        self._scopes.append(scope)  # before the task's first turn: a cancel may come earlier
        self._ends[actor.name] = ended = Reply[None]()
        start_apart(
            self._guarded, actor, scope, started, name=f"actor {actor.name}",
            at_end=lambda: self._bury(actor, started, ended),
        )  # fmt: skip
        await started
        if self.failure is not None:  # this actor's, or that of one started before
            raise self.failure

    async def _guarded(self, actor: Actor, scope: anyio.CancelScope, started: Reply[None]) -> None:
        cancelled = anyio.get_cancelled_exc_class()
        try:
            with scope:
                await self._with_restarts(actor, started)
            actor.enter("stopped")
        except Exception as error:  # noqa: BLE001 - whatever an actor raises is the cause of the end
            self._fail(actor, error)
        except cancelled as error:
            actor.enter("stopped")
            if scope.cancel_called or is_cancelled():
                raise
            # It awaited a task or future that others cancelled: nobody asked for its end.
            self._fail(actor, stray_cancel(f"actor {actor.name!r}", error))
        except BaseExceptionGroup as group:  # trio bundles an error with the cancel that it met
            cancels, errors = group.split(cancelled)
            if errors is None or errors.subgroup((KeyboardInterrupt, SystemExit)):
                raise
            self._fail(actor, errors)
            if cancels is not None:
                raise cancels from None
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - left to the loop it would be nobody's, and the end of trio
            self._fail(actor, error)

    async def _with_restarts(self, actor: Actor, started: Reply[None]) -> None:
        while True:
            try:
                await self._one_run(actor, started)
            except Exception as error:
                if is_cancelled() or not self._may_restart(actor):
                    raise
                log.warning("actor restarts", actor=actor.name, error=repr(error))
            else:
                self._close_what_nobody_feeds(actor)
                return
            actor.mailbox.start_again()
            await anyio.lowlevel.checkpoint()  # an actor that fails at once must not hold up the loop

    async def _one_run(self, actor: Actor, started: Reply[None]) -> None:
        actor.enter("starting")
        await actor.on_start()
        actor.enter("running")
        if not started.done():
            started.set_result(None)
        try:
            await actor.run()
        except BaseException as error:
            await self._stop(actor, error)
            raise
        await self._stop(actor, None)

    async def _stop(self, actor: Actor, end: BaseException | None) -> None:
        actor.enter("stopping")
        with anyio.move_on_after(self._cancel_timeout, shield=True) as limit:
            try:
                await actor.on_stop()
            except Exception as error:
                if not isinstance(end, Exception):
                    raise
                end.add_note(f"on_stop of actor {actor.name!r} then raised {error!r}")
        if limit.cancelled_caught:
            log.error("on_stop was cut off", actor=actor.name, seconds=self._cancel_timeout)

    def _bury(self, actor: Actor, started: Reply[None], ended: Reply[None]) -> None:
        if actor.status().state not in ("stopped", "failed"):
            self._fail(actor, stray_cancel(f"actor {actor.name!r}", None))
        actor.mailbox.close(self.failure)
        del self._ends[actor.name]
        if not started.done():
            started.set_result(None)
        ended.set_result(None)

    def _close_what_nobody_feeds(self, returned: Actor) -> None:
        """Pass the end on. A failed or cancelled actor does not: its readers would take that for success."""
        self._returned.add(returned.name)
        feeding = [actor for actor in self.actors if actor.name not in self._returned]
        fed = {id(lane) for actor in feeding for lane in actor.sends_to}
        for lane in returned.sends_to:
            if id(lane) not in fed:
                lane.close()

    # --- ends

    async def _all_ended(self) -> None:
        for ended in list(self._ends.values()):
            await ended

    def _cancel_all(self) -> None:
        for scope in self._scopes:
            scope.cancel()

    def _may_restart(self, actor: Actor) -> bool:
        permission = self._restart.get(actor.name)
        if permission is None:
            return False
        now = anyio.current_time()
        recent = [at for at in self._restarted[actor.name] if now - at < permission.within_seconds]
        self._restarted[actor.name] = [*recent, now]
        return len(recent) < permission.max_restarts

    def _fail(self, actor: Actor, error: BaseException) -> None:
        actor.enter("failed")
        cause = _as_exception(_the_one_cause(error))
        if self.failure is not None:  # one cause; what falls after it falls because of it
            log.warning("actor failed after the cause", actor=actor.name, error=repr(cause))
            return
        cause.add_note(f"in actor {actor.name!r}")
        self.failure = cause
        for callback in list(self._callbacks):
            _call(callback, cause)
        self._cancel_all()


def _call(callback: Callable[[BaseException], None], cause: BaseException) -> None:
    try:
        callback(cause)
    except Exception:  # one that fails must not keep the cause from the others
        log.exception("a failure callback raised", cause=repr(cause))


def _the_one_cause(error: BaseException) -> BaseException:
    """What a task group inside an actor has wrapped: of several errors the first was the cause."""
    while isinstance(error, BaseExceptionGroup):
        group: BaseExceptionGroup[BaseException] = error  # pyright: ignore[reportUnknownVariableType]
        error = group.exceptions[0]
    return error


def _as_exception(cause: BaseException) -> Exception:
    """What waiters may be told: what is no Exception would end their loop."""
    if isinstance(cause, Exception):
        return cause
    error = ActorStoppedError(f"an actor was ended by {cause!r}, which is no Exception")
    error.__cause__ = cause
    return error


def _line(status: ActorStatus, now: float) -> str:
    lanes = ", ".join(f"{name} {depth}" for name, depth in status.lanes.items())
    doing = f"waits for {status.waiting_for}" if status.waiting_for else "works"
    state = f"{status.state}, {doing}" if status.state in ("starting", "running", "stopping") else status.state
    return f"{status.name}: {state}, for {now - status.since:.3f} s; {lanes}"
