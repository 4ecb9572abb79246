"""An engine that is paused, goes on, and forgets its cache."""

import asyncio

import anyio
import pytest
from toy_engine import PROMPT, greedy, idle, make, read, until_running

from callboard import ConfigError, Engine, EngineDeadError, EngineOverloadedError, EnginePausedError
from callboard.runner.toy_model import toy_tokens

WHOLE = toy_tokens(PROMPT, 60, 100)


async def quiet(engine: Engine) -> int:
    """Steps made when all tasks sleep."""
    await anyio.wait_all_tasks_blocked()
    engine.check()
    return engine.stats().num_steps


@pytest.mark.parametrize("depth", [1, 2, 3])
async def test_an_engine_that_keeps_its_requests_stands_still_until_it_goes_on(depth: int):
    async with make(steps_in_flight=depth) as engine:
        stream = engine.generate(PROMPT, greedy(max_tokens=60))
        await until_running(engine)
        await engine.pause("keep")
        steps = await quiet(engine)
        later = engine.generate([9, *PROMPT], greedy())
        assert await quiet(engine) == steps
        assert (engine.stats().num_running, engine.stats().num_waiting) == (1, 1)
        assert "paused, in mode 'keep'" in engine.diagnose()
        await engine.resume()
        assert await read(stream) == (WHOLE, "length")
        assert await read(later) == (toy_tokens([9, *PROMPT], 8, 100), "length")
        assert "paused" not in engine.diagnose()
        await idle(engine)


async def test_a_pause_that_waits_lets_begun_requests_end_and_the_others_stay():
    async with make(max_num_running_reqs=1) as engine:
        first, second = engine.generate(PROMPT, greedy()), engine.generate([9, *PROMPT], greedy())
        await until_running(engine)
        await engine.pause()
        assert (engine.stats().num_running, engine.stats().num_generated_tokens) == (0, 8)
        assert await read(first) == (WHOLE[:8], "length")
        await quiet(engine)
        assert engine.stats().num_waiting == 1
        await engine.resume()
        assert await read(second) == (toy_tokens([9, *PROMPT], 8, 100), "length")
        await idle(engine)


async def test_a_pause_that_aborts_ends_all_requests_and_gives_everything_back():
    async with make(max_num_running_reqs=1) as engine:
        streams = [engine.generate(PROMPT, greedy(max_tokens=60)) for _ in range(3)]
        await until_running(engine)
        await engine.pause("abort")
        assert [(await read(stream))[1] for stream in streams] == ["abort"] * 3
        await idle(engine)
        await engine.resume()
        assert (await engine.complete(PROMPT, greedy())).finished


@pytest.mark.parametrize("mode", ["wait", "abort"])
async def test_new_requests_are_refused_while_paused_by_an_error_that_says_to_try_again(mode: str):
    async with make() as engine:
        await engine.pause(mode)
        with pytest.raises(EngineOverloadedError, match=f"paused, in mode '{mode}'.*request mine") as caught:
            engine.generate(PROMPT, greedy(), request_id="mine")
        assert isinstance(caught.value, EnginePausedError)
        assert (caught.value.code, caught.value.retryable) == ("engine_paused", True)
        assert f"paused, in mode {mode!r}" in engine.diagnose()
        await engine.resume()
        assert (await engine.complete(PROMPT, greedy(), request_id="mine")).finished


async def test_pausing_twice_and_resuming_twice_changes_nothing():
    async with make() as engine:
        await engine.resume()
        stream = engine.generate(PROMPT, greedy(max_tokens=60))
        await until_running(engine)
        for _ in range(2):
            await engine.pause("keep")
        for _ in range(2):
            await engine.resume()
        assert await read(stream) == (WHOLE, "length")


@pytest.mark.parametrize("first", ["wait", "abort", "keep"])
@pytest.mark.parametrize("second", ["wait", "abort", "keep"])
async def test_a_later_mode_takes_the_place_of_the_one_before(first: str, second: str):
    async with make() as engine:
        stream = engine.generate(PROMPT, greedy(max_tokens=60))
        await until_running(engine)
        await engine.pause(first)
        await engine.pause(second)
        assert f"in mode {second!r}" in engine.diagnose()
        await engine.resume()
        tokens, reason = await read(stream)
        assert reason == ("abort" if "abort" in (first, second) and first != "wait" else "length")
        assert tokens == WHOLE[: len(tokens)]
        await idle(engine)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_pause_whose_caller_is_cancelled_holds_until_it_is_taken_back(anyio_backend: str):
    async with make() as engine:
        engine.runner.gate.close()
        stream = engine.generate(PROMPT, greedy())
        await anyio.wait_all_tasks_blocked()
        for mode in ("keep", "wait"):
            pause = asyncio.ensure_future(engine.pause(mode))
            await anyio.wait_all_tasks_blocked()
            assert pause.cancel()
            with pytest.raises(asyncio.CancelledError):
                await pause
        with pytest.raises(EnginePausedError):
            engine.generate(PROMPT, greedy())
        engine.runner.gate.open()
        await engine.pause("keep")
        await engine.resume()
        assert await read(stream) == (WHOLE[:8], "length")
        await idle(engine)


async def test_whoever_waits_in_a_pause_returns_when_the_engine_goes_on():
    async with make() as engine:
        engine.runner.gate.close()
        stream = engine.generate(PROMPT, greedy())
        await anyio.wait_all_tasks_blocked()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engine.pause, "wait")
            await anyio.wait_all_tasks_blocked()
            await engine.resume()
        engine.runner.gate.open()
        assert await read(stream) == (WHOLE[:8], "length")


@pytest.mark.parametrize("mode", ["wait", "abort", "keep"])
async def test_an_engine_may_be_stopped_while_it_is_paused(mode: str):
    async with make() as engine:
        stream = engine.generate(PROMPT, greedy(max_tokens=60))
        await until_running(engine)
        await engine.pause(mode)
    assert (await read(stream))[1] == ("length" if mode == "wait" else "abort")
    with pytest.raises(EngineDeadError):
        await engine.resume()


async def test_whoever_waits_in_a_pause_gets_the_cause_when_the_engine_ends():
    async with make(faults={3: RuntimeError("gone")}) as engine:
        engine.runner.gate.close()
        held = engine.generate(PROMPT, greedy())
        await anyio.wait_all_tasks_blocked()

        async def wait_for_quiet() -> None:
            with pytest.raises(EngineDeadError, match="gone"):
                await engine.pause("wait")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait_for_quiet)
            await anyio.wait_all_tasks_blocked()
            engine.runner.gate.open()
        with pytest.raises(EngineDeadError, match="gone"):
            await read(held)


async def test_an_unknown_mode_is_refused_with_those_that_are_known():
    async with make() as engine:
        with pytest.raises(ConfigError, match="mode is 'later', known are 'wait', 'abort', 'keep'"):
            await engine.pause("later")
        assert (await engine.complete(PROMPT, greedy())).finished


@pytest.mark.parametrize("depth", [1, 2, 3])
async def test_a_forced_reset_of_the_cache_under_traffic_changes_no_token(depth: int):
    async with make(steps_in_flight=depth, max_num_running_reqs=3) as engine:
        prompts = [[n, *PROMPT] for n in range(5)]
        streams = [engine.generate(prompt, greedy(max_tokens=20)) for prompt in prompts]
        await until_running(engine, 3, tokens=6)
        assert not await engine.reset_prefix_cache()
        assert await engine.reset_prefix_cache(force=True)
        assert engine.stats().num_preemptions == 3
        results = [await read(stream) for stream in streams]
        assert results == [(toy_tokens(prompt, 20, 100), "length") for prompt in prompts]
        await idle(engine)


@pytest.mark.parametrize("mode", ["wait", "abort", "keep"])
async def test_a_forced_reset_works_in_each_mode_of_a_pause(mode: str):
    async with make(max_num_running_reqs=1) as engine:
        engine.runner.gate.close()
        streams = [engine.generate([n, *PROMPT], greedy(max_tokens=20)) for n in range(2)]
        await anyio.wait_all_tasks_blocked()
        engine.runner.gate.open(3)
        await anyio.wait_all_tasks_blocked()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engine.pause, mode)
            await anyio.wait_all_tasks_blocked()
            engine.runner.gate.open()
            assert await engine.reset_prefix_cache(force=True)
        await quiet(engine)
        assert engine.stats().kv_blocks_cached in ((0,) if mode != "wait" else (6,))
        assert await engine.reset_prefix_cache()
        assert engine.stats().kv_blocks_cached == 0
        await engine.resume()
        ends = [await read(stream) for stream in streams]
        assert [end for _, end in ends] == (["abort"] * 2 if mode == "abort" else ["length"] * 2)
        for n, (tokens, _) in enumerate(ends):
            assert tokens == toy_tokens([n, *PROMPT], 20, 100)[: len(tokens)]
        await idle(engine)


async def test_a_reset_without_force_refuses_while_a_paused_engine_holds_blocks():
    async with make() as engine:
        stream = engine.generate(PROMPT, greedy(max_tokens=60))
        await until_running(engine)
        await engine.pause("keep")
        assert not await engine.reset_prefix_cache()
        assert await engine.reset_prefix_cache(force=True)
        assert engine.stats().kv_blocks_free == engine.stats().kv_blocks_total
        await engine.resume()
        assert await read(stream) == (WHOLE, "length")


async def test_a_forced_reset_is_carried_out_for_nobody_too():
    async with make() as engine:
        stream = engine.generate(PROMPT, greedy(max_tokens=60))
        await until_running(engine)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await engine.reset_prefix_cache(force=True)
        assert await read(stream) == (WHOLE, "length")
        assert engine.stats().num_preemptions == 1
        await idle(engine)
