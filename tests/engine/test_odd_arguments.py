"""Calls of the engine with what they cannot mean, and in numbers that nobody meant."""

import math
import re
from typing import Any

import anyio
import numpy as np
import pytest
from toy_engine import PROMPT, greedy, idle, make

from callboard import ConfigError, Engine, EngineConfig, EngineDeadError, InvalidRequestError, SamplingParams
from callboard.runner import SimulatedRunner
from callboard.runner.toy_model import toy_tokens
from callboard.scheduler import ModelRunnerOutput
from callboard.scheduler.errors import RunnerError


@pytest.mark.parametrize("mode", [[], {}, None, 5, "stop", b"wait"])
async def test_a_pause_in_no_known_mode_is_refused(mode: Any):
    async with make() as engine:
        with pytest.raises(ConfigError, match=re.escape(f"mode is {mode!r}, known are 'wait', 'abort', 'keep'")):
            await engine.pause(mode)
        assert (await engine.complete(PROMPT, greedy())).finished


@pytest.mark.parametrize("request_id", [[], {}, None, 5, ["request-0"]])
async def test_an_abort_of_what_is_no_id_is_refused(request_id: Any):
    async with make() as engine:
        with pytest.raises(InvalidRequestError, match=re.escape(f"request_id is {request_id!r}, needed is text")):
            await engine.abort(request_id)


@pytest.mark.parametrize("number", [math.nan, 1.5, True, "a", [], -1, 2**63])
async def test_kv_events_are_replayed_from_a_whole_number(number: Any):
    async with make() as engine:
        with pytest.raises(ConfigError, match=r"^replay_from is "):
            engine.kv_events(number)


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("budget", [2, 2048])
async def test_resets_in_a_loop_starve_nobody(depth: int, budget: int):
    resets, done, most = 0, False, 60

    async def reset_again_and_again() -> None:
        nonlocal resets
        while not done and resets < most:
            await engine.reset_prefix_cache(force=True)
            resets += 1

    async with (
        make(steps_in_flight=depth, max_num_scheduled_tokens=budget) as engine,
        anyio.create_task_group() as tasks,
    ):
        stream = engine.generate(PROMPT, greedy())
        for _ in range(3):
            tasks.start_soon(reset_again_and_again)
        outputs = [output async for output in stream]
        done = True
        assert resets <= 3 * (8 + 2)
        assert [t for output in outputs for t in output.outputs[0].token_ids] == toy_tokens(PROMPT, 8, 100)
    assert resets < most


async def test_resets_of_an_engine_that_has_nothing_to_do_do_not_wait_for_a_token():
    async with make() as engine:
        assert await engine.reset_prefix_cache(force=True)
        assert await engine.reset_prefix_cache(force=True)
        stream = engine.generate(PROMPT, greedy())
        await anext(stream)
        await engine.pause("keep")
        assert await engine.reset_prefix_cache(force=True)
        assert await engine.reset_prefix_cache(force=True)
        await engine.resume()
        assert [output async for output in stream][-1].finished
        await idle(engine)


class Stuttering(SimulatedRunner):
    """Gives its last request no token, or two, in one step."""

    def __init__(self, count: int) -> None:
        super().__init__(vocab_size=100, num_kv_blocks=64, block_size=4, max_model_len=100)
        self.count = count

    async def execute(self, plan, submitted) -> ModelRunnerOutput:
        output = await super().execute(plan, submitted)
        if output.token_ids is None:
            return output
        ids = [req_id for req_id, samples in zip(plan.req_ids, plan.samples.tolist(), strict=True) if samples]
        given = {req_id: [token] for req_id, token in zip(ids, output.token_ids.tolist(), strict=True)}
        if len(ids) == 2 and plan.step >= 4 and self.count != 1:
            given[ids[-1]] = given[ids[-1]] * self.count
            self.count = 1
        return ModelRunnerOutput(step=plan.step, sampled_token_ids=given)


async def both(engine: Engine) -> list[list[int]]:
    streams = [engine.generate([n, *PROMPT], greedy()) for n in range(2)]
    return [[t async for output in stream for t in output.outputs[0].token_ids] for stream in streams]


@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize("count", [0, 2])
async def test_a_runner_that_breaks_what_later_steps_count_on_is_refused_by_name(depth: int, count: int):
    async with Engine(EngineConfig(block_size=4, steps_in_flight=depth), runner=Stuttering(count)) as engine:
        with pytest.raises(EngineDeadError) as caught:
            await both(engine)
    assert isinstance(caught.value.__cause__, RunnerError)
    said = rf"gave {count} tokens in step \d+, needed is 1: .* steps_in_flight=1 only \(request request-1\)"
    assert re.search(said, str(caught.value.__cause__))


async def test_a_request_that_got_no_token_in_a_step_gets_it_in_the_next_where_none_is_planned_ahead():
    async with Engine(EngineConfig(block_size=4, steps_in_flight=1), runner=Stuttering(0)) as engine:
        assert await both(engine) == [toy_tokens([n, *PROMPT], 8, 100) for n in range(2)]


@pytest.mark.parametrize("name", ["steps_in_flight", "block_size", "policy", "grammars", "stop_timeout"])
def test_none_for_a_setting_that_has_a_value_is_refused_by_name(name: str):
    with pytest.raises(ConfigError, match=f"{name} is None, needed is"):
        EngineConfig(**{name: None})


@pytest.mark.parametrize("given", [np.array(5), np.array(None)], ids=str)
async def test_an_array_of_no_dimension_is_no_prompt_and_no_conversation(given: Any):
    async with Engine(EngineConfig(block_size=4), runner=SimulatedRunner(block_size=4)) as engine:
        with pytest.raises(InvalidRequestError, match="prompt is ndarray, needed is text or a list of token ids"):
            engine.generate(given)


@pytest.mark.parametrize("token", [2**70, True, -1, "7"])
async def test_a_token_that_is_none_is_a_fault_of_the_runner_by_name(token: Any):
    class Odd(SimulatedRunner):
        async def execute(self, plan, submitted) -> ModelRunnerOutput:
            ids = [req_id for req_id, samples in zip(plan.req_ids, plan.samples.tolist(), strict=True) if samples]
            return ModelRunnerOutput(step=plan.step, sampled_token_ids={req_id: [token] for req_id in ids})

    async with Engine(EngineConfig(block_size=4), runner=Odd(block_size=4)) as engine:
        with pytest.raises(EngineDeadError) as caught:
            await engine.complete(PROMPT, greedy())
    assert isinstance(caught.value.__cause__, RunnerError)


@pytest.mark.parametrize(
    "wrong",
    [{"stop_token_ids": "x" * 100_000}, {"output_kind": "x" * 100_000}, {"bad_words": "x" * 100_000}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_refusal_does_not_repeat_all_of_what_it_refuses(wrong: dict[str, Any]):
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**wrong)
    assert len(str(caught.value)) < 1000
