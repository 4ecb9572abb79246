"""The way from a foreign thread into the loop, and who may use what belongs to a loop."""

import asyncio
import sys
import threading
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import anyio
import anyio.to_thread
import pytest

from callboard.actors import LoopPort, Reply, WrongLoopError
from callboard.actors.tasks import start_apart

LOOPS = [("asyncio", {}), ("asyncio", {"use_uvloop": True}), ("trio", {})]
on_each_loop = pytest.mark.parametrize(("backend", "options"), LOOPS, ids=["asyncio", "uvloop", "trio"])


def in_a_thread(call: Callable[..., Any], *args: Any) -> Any:
    """The result of a call in another thread, or its error."""
    results: list[Any] = []

    def work() -> None:
        try:
            results.append(call(*args))
        except Exception as error:  # noqa: BLE001 - the test looks at it
            results.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return results[0]


async def make_port() -> LoopPort:
    return LoopPort()


async def test_a_foreign_thread_runs_functions_in_the_loop_in_their_order():
    port, reply, numbers = LoopPort(), Reply[int](), []

    def work() -> None:
        assert all(port.post(numbers.append, number) for number in range(100))
        assert port.post(reply.set_result, threading.get_ident())

    thread = threading.Thread(target=work)
    thread.start()
    assert await reply == thread.ident
    thread.join()
    assert numbers == list(range(100))


async def test_what_was_posted_runs_in_the_thread_of_the_loop():
    port, reply = LoopPort(), Reply[bool]()
    assert not in_a_thread(lambda: port.is_owner)
    assert in_a_thread(port.post, lambda: reply.set_result(port.is_owner))
    assert await reply is True


@on_each_loop
def test_posting_after_the_loop_has_ended_returns_false(backend: str, options: dict[str, Any]):
    port = anyio.run(make_port, backend=backend, backend_options=options)
    ran: list[bool] = []
    assert port.post(ran.append, True) is False
    assert in_a_thread(port.post, ran.append, True) is False
    assert not ran


async def test_the_owner_passes_the_check_and_another_thread_does_not():
    port = LoopPort()
    port.check_owner()
    assert isinstance(await anyio.to_thread.run_sync(in_a_thread, port.check_owner), WrongLoopError)


async def test_a_thread_with_a_loop_of_its_own_does_not_pass_the_check():
    port = LoopPort()

    async def check() -> None:
        port.check_owner()

    error = await anyio.to_thread.run_sync(in_a_thread, asyncio.run, check())
    assert isinstance(error, WrongLoopError)
    assert str(error) == "used from another event loop or thread than the one it was started in"


@on_each_loop
def test_a_second_loop_in_the_same_thread_does_not_pass_the_check(backend: str, options: dict[str, Any]):
    port = anyio.run(make_port, backend=backend, backend_options=options)

    async def check() -> None:
        with pytest.raises(WrongLoopError):
            port.check_owner()

    for other, other_options in LOOPS:
        anyio.run(check, backend=other, backend_options=other_options)


@on_each_loop
def test_the_same_thread_without_a_loop_does_not_pass_the_check(backend: str, options: dict[str, Any]):
    port = anyio.run(make_port, backend=backend, backend_options=options)
    assert port.is_owner
    with pytest.raises(WrongLoopError):
        port.check_owner()


def test_a_port_outside_of_any_loop_is_refused():
    with pytest.raises(WrongLoopError, match="no event loop is running in this thread"):
        LoopPort()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("half", [ModuleType("trio"), SimpleNamespace(lowlevel=ModuleType("trio.lowlevel"))], ids=repr)
async def test_a_loop_goes_on_while_another_thread_is_half_way_through_the_import_of_trio(
    half: object, anyio_backend: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "trio", half)
    port, done = LoopPort(), anyio.Event()
    port.check_owner()

    async def work() -> None:
        done.set()

    start_apart(work, name="some work", at_end=lambda: None)
    await done.wait()
