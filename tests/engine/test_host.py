"""What a host program may do around an engine: cancel, stop in any order, read from the wrong place."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.to_thread
import pytest
from anyio.lowlevel import checkpoint
from loops import native
from structlog.testing import capture_logs
from toy_engine import PROMPT, greedy, make

from callboard import Engine, EngineDeadError
from callboard.actors import WrongLoopError
from callboard.runner import RunnerInfo
from callboard.runner.toy_model import toy_tokens


def expected() -> list[int]:
    return toy_tokens(PROMPT, 8, vocab_size=100)


async def whole(engine: Engine) -> list[int]:
    return (await engine.complete(PROMPT, greedy())).outputs[0].token_ids


async def test_a_cancelled_host_may_still_use_its_engine_while_it_cleans_up():
    with anyio.CancelScope() as scope:
        async with make() as engine:
            stream = engine.generate(PROMPT, greedy())
            first = await anext(stream)
            scope.cancel()
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    rest = [output async for output in stream]
                    again = await whole(engine)
                engine.check()
    assert [t for output in [first, *rest] for t in output.outputs[0].token_ids] == expected() == again


async def test_engines_may_be_left_in_any_order():
    first, second = make(), make()
    await first.__aenter__()
    await second.__aenter__()
    await first.__aexit__(None, None, None)
    assert await whole(second) == expected()
    await second.__aexit__(None, None, None)
    await checkpoint()  # the host's own task goes on


async def test_an_engine_may_be_left_in_another_task_than_the_one_that_entered_it():
    engine = await make().__aenter__()
    async with anyio.create_task_group() as tasks:
        stream = engine.generate(PROMPT, greedy())
        tasks.start_soon(engine.__aexit__, None, None, None)
    assert [output async for output in stream][-1].finished
    with pytest.raises(EngineDeadError, match="has stopped"):
        engine.generate(PROMPT)
    await checkpoint()


async def in_another_loop(use: Callable[[], Awaitable[Any]]) -> None:
    await anyio.to_thread.run_sync(lambda: asyncio.run(use()))


async def test_streams_events_aborts_and_resets_are_refused_in_another_loop():
    async with make() as engine:
        stream, events = engine.generate(PROMPT, greedy()), engine.events()
        uses = [stream.__anext__, events.__anext__, lambda: engine.abort("x"), engine.reset_prefix_cache]
        for use in uses:
            with pytest.raises(WrongLoopError):
                await in_another_loop(use)
        assert [output async for output in stream][-1].finished


class OddRunner:
    """A runner of the user's own, whose steps and end are given by the test."""

    info = RunnerInfo(vocab_size=100, max_model_len=64, num_kv_blocks=32, block_size=4)

    def __init__(self, step: Callable[[], Any], close: Callable[[], Awaitable[None]] = checkpoint) -> None:
        self.step, self.close = step, close

    def submit(self, plan: Any, grammar: Any = None) -> Any:
        return self.step()

    async def aclose(self) -> None:
        await self.close()


@native
async def test_a_step_that_somebody_cancelled_ends_the_engine_and_no_reader_waits_for_ever():
    def cancelled_step() -> Any:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        return future

    async with make(OddRunner(cancelled_step)) as engine:
        with pytest.raises(EngineDeadError, match="the wait for a step's result was cancelled"):
            await engine.complete(PROMPT, greedy())


@native
@pytest.mark.parametrize("turns", range(8))
async def test_a_program_that_cancels_every_task_leaves_no_reader_waiting(turns: int):
    others = asyncio.all_tasks()  # the test's own and its runner's
    async with make(OddRunner(lambda: asyncio.get_running_loop().create_future())) as engine:
        stream = engine.generate(PROMPT, greedy())
        for _ in range(turns):
            await checkpoint()
        for task in asyncio.all_tasks() - others:
            task.cancel()
        with pytest.raises(EngineDeadError, match="cancelled"):
            await anext(stream)


async def test_a_runner_that_does_not_close_is_named_and_left(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("callboard.pipeline.engine.CLOSE_LIMIT", 0.01)
    with capture_logs() as logs:
        async with make(OddRunner(anyio.sleep_forever, anyio.sleep_forever)):
            pass
    assert [(entry["event"], entry["runner"]) for entry in logs] == [("runner_does_not_close", "OddRunner")]


@native
async def test_a_native_cancel_does_not_interrupt_the_runners_end():
    notes: list[str] = []

    async def close() -> None:
        notes.append("closing")
        for _ in range(3):
            await checkpoint()
        notes.append("closed")

    async def host() -> None:
        async with make(OddRunner(anyio.sleep_forever, close)):
            pass

    task = asyncio.ensure_future(host())
    while not notes:
        await checkpoint()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert notes == ["closing", "closed"]
