"""How an engine ends, in order or by a fault, and what all who use it get to know."""

import anyio
import anyio.to_thread
import numpy as np
import pytest
from anyio.lowlevel import checkpoint
from toy_engine import PROMPT, greedy, make, until_dead

from callboard import (
    ConfigError,
    Engine,
    EngineDeadError,
)
from callboard.runner import SimulatedRunner
from callboard.runner.toy_model import toy_tokens
from callboard.scheduler import ModelRunnerOutput


async def test_one_cause_reaches_all_waiters_when_the_runner_fails_and_later_requests_are_refused():
    fault = RuntimeError("the device is gone")
    async with make(faults={5: fault}, max_num_running_reqs=5) as engine:
        streams = [engine.generate([n, *PROMPT], greedy(max_tokens=50)) for n in range(10)]
        for stream in streams:
            with pytest.raises(EngineDeadError, match="the device is gone") as caught:
                async for _ in stream:
                    pass
            assert caught.value.__cause__ is fault
        with pytest.raises(EngineDeadError, match="the device is gone"):
            engine.generate(PROMPT)
        assert any("runner" in note for note in fault.__notes__)


async def test_streams_end_when_the_engine_stops_even_if_a_step_never_ends():
    async with make() as engine:
        engine.runner.gate.close()
        streams = [engine.generate([n, *PROMPT], greedy()) for n in range(3)]
        await anyio.wait_all_tasks_blocked()
    for stream in streams:
        assert [output.outputs[0].finish_reason async for output in stream] == ["abort"]
    with pytest.raises(EngineDeadError, match="stopped"):
        engine.generate(PROMPT)


async def test_an_error_in_the_host_leaves_the_engine_unwrapped():
    async def host() -> None:
        async with make() as engine:
            engine.generate(PROMPT, greedy())
            raise LookupError("of the host")

    with pytest.raises(LookupError, match="of the host"):
        await host()


async def test_an_engine_serves_one_context_and_is_dead_outside_of_it():
    engine = make()
    with pytest.raises(EngineDeadError, match="not started"):
        engine.generate(PROMPT)
    async with engine:
        with pytest.raises(ConfigError, match="entered already"):
            await engine.__aenter__()
    with pytest.raises(ConfigError, match="entered already"):
        await engine.__aenter__()


async def test_tokens_that_came_before_the_engines_end_are_read_before_its_error():
    async with make(faults={5: RuntimeError("gone")}) as engine:
        stream = engine.generate(PROMPT, greedy(max_tokens=50))
        await until_dead(engine)
        tokens = (await anext(stream)).outputs[0].token_ids
        assert len(tokens) >= 3
        assert tokens == toy_tokens(PROMPT, len(tokens), 100)
        with pytest.raises(EngineDeadError, match="gone"):
            await anext(stream)


async def test_followers_of_events_get_the_cause_of_the_engines_end():
    async with make(faults={3: RuntimeError("gone")}) as engine:
        events = engine.events()
        with pytest.raises(EngineDeadError):
            await engine.complete(PROMPT, greedy())
        kinds = [(await anext(events)).kind for _ in range(2)]
        assert kinds == ["QUEUED", "SCHEDULED"]
        with pytest.raises(EngineDeadError, match="gone"):
            await anext(events)


async def test_a_start_that_fails_closes_the_runner():
    class Started(SimulatedRunner):
        closed = 0

        async def start(self) -> None:
            raise OSError("no such device")

        async def aclose(self) -> None:
            self.closed += 1

    runner = Started(num_kv_blocks=64)
    with pytest.raises(OSError, match="no such device"):
        async with Engine(runner=runner):
            raise AssertionError("the engine started")
    assert runner.closed == 1


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"token_ids": [100]}, r"tokens from 100 to 100 in step \d, limits are 0 and 99"),
        ({"token_ids": [1, 2]}, r"gave 2 tokens in step \d, 1 requests sample"),
        ({"token_ids": [1.5]}, "1-dimensional float64 array"),
        ({"sampled_token_ids": {"nobody": [7]}}, r"tokens for \['nobody'\]"),
        ({}, r"gave no token in step \d"),
        ({"sampled_token_ids": {"request-0": [-1]}}, "tokens from -1 to -1"),
        ({"step": 7, "token_ids": [1]}, r"the result of step 7 for step \d"),
    ],
    ids=str,
)
async def test_a_runner_that_gives_what_cannot_be_right_ends_the_engine_by_name(result: dict, message: str):
    class Wrong(SimulatedRunner):
        async def execute(self, plan, submitted):
            fields = {"step": plan.step} | result
            if "token_ids" in fields:
                fields["token_ids"] = np.array(fields["token_ids"])
            return ModelRunnerOutput(**fields)

    async with Engine(runner=Wrong(vocab_size=100)) as engine:
        with pytest.raises(EngineDeadError, match=message):
            await engine.complete(PROMPT, greedy())


@pytest.mark.parametrize("turns", range(30))
async def test_stopping_at_any_moment_is_no_death_of_the_engine(turns: int):
    async with make() as engine:
        events = engine.events()
        engine.generate(PROMPT, greedy(), request_id="r")
        stream = engine.generate(PROMPT, greedy(), request_id="s")
        for _ in range(turns):
            await checkpoint()
    assert "FINISHED" in [event.kind async for event in events]
    assert [output async for output in stream][-1].finished
    with pytest.raises(EngineDeadError, match="has stopped"):
        engine.generate(PROMPT)
