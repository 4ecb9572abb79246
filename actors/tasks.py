"""Tasks that stand apart from the caller, and cancels that nobody here asked for."""

from __future__ import annotations

import asyncio
import contextvars
import math
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar, TypeVarTuple, Unpack

import anyio

from .errors import ActorStoppedError
from .reply import Reply
from .trio_run import trio_of_caller

T = TypeVar("T")
Args = TypeVarTuple("Args")

_apart: set[asyncio.Task[Any]] = set()  # asyncio itself holds its tasks weakly


def start_apart(
    function: Callable[[Unpack[Args]], Coroutine[Any, Any, None]],
    *args: *Args,
    name: str,
    at_end: Callable[[], None],
) -> None:
    """Start a task that no cancel scope or task group of the caller contains.

    ``at_end`` is called when it has ended, in any way, also by a cancel before its first turn.
    Neither must raise. It ends with the event loop at the latest: asyncio and trio cancel it then.
    """
    if (lowlevel := trio_of_caller()) is not None:
        context = contextvars.copy_context()
        lowlevel.spawn_system_task(_with_end, function, args, at_end, name=name, context=context)
        return
    task = asyncio.get_running_loop().create_task(function(*args), name=name)
    _apart.add(task)
    task.add_done_callback(lambda task: (_apart.discard(task), at_end()))


async def _with_end(
    function: Callable[..., Coroutine[Any, Any, None]], args: tuple[Any, ...], at_end: Callable[[], None]
) -> None:
    try:
        await function(*args)
    finally:
        at_end()


async def outlast(*replies: Reply[Any]) -> None:
    """Wait for replies through every cancel; a native cancel that came meanwhile is raised behind the last."""
    cancel: BaseException | None = None
    for reply in replies:
        while not reply.done():
            try:
                with anyio.CancelScope(shield=True):
                    await reply
            except anyio.get_cancelled_exc_class() as error:
                cancel = error
    if cancel is not None:
        raise cancel


async def finish(function: Callable[[], Awaitable[Any]], *, seconds: float, name: str) -> bool:
    """Run a clean-up to its end whatever cancels the caller; False if it was cut off after ``seconds``.

    Raises what it raises. It runs in a task of its own: a native cancel of the caller does not reach it.
    """
    done: Reply[bool] = Reply()
    ended: list[bool | BaseException] = []

    async def run() -> None:
        try:
            with anyio.move_on_after(seconds) as limit:
                await function()
            ended.append(not limit.cancelled_caught)
        except Exception as error:  # noqa: BLE001 - it is raised where the clean-up is awaited
            ended.append(error)

    def tell() -> None:
        if ended and isinstance(ended[0], BaseException):
            done.set_error(ended[0])
        else:
            done.set_result(bool(ended) and ended[0] is True)

    start_apart(run, name=name, at_end=tell)
    await outlast(done)
    return await done


def is_cancelled() -> bool:
    """Whether a scope around the caller was cancelled."""
    return anyio.current_effective_deadline() == -math.inf


async def no_quiet_end(what: str, function: Callable[[Unpack[Args]], Awaitable[T]], *args: *Args) -> T:
    """Await a function for which a cancel from outside is an error, not an end.

    A task group takes the cancel of a child for a good end, though the child may have met a task
    or future that somebody else had cancelled. Raises ActorStoppedError in that case.
    """
    try:
        return await function(*args)
    except anyio.get_cancelled_exc_class() as error:
        if is_cancelled():
            raise
        raise stray_cancel(what, error) from None


def stray_cancel(what: str, cancelled: BaseException | None) -> ActorStoppedError:
    """The error for a cancel that no scope around the task asked for."""
    error = ActorStoppedError(f"{what} was cancelled, and not by its supervisor")
    error.__cause__ = cancelled
    return error
