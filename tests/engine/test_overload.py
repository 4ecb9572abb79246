"""Limits of the waiting room: by requests and by tokens of their prompts."""

import pytest
from toy_engine import idle

from callboard import ConfigError, Engine, EngineConfig, EngineOverloadedError, SamplingParams
from callboard.pipeline.prompt_load import PromptLoad
from callboard.runner import SimulatedRunner


def make(**config) -> Engine:
    runner = SimulatedRunner(vocab_size=500, num_kv_blocks=200, block_size=4, max_model_len=400)
    return Engine(EngineConfig(block_size=4, **config), runner=runner)


def prompt(length: int) -> list[int]:
    return list(range(length))


PARAMS = SamplingParams(temperature=0, max_tokens=50)


def refuses(engine: Engine, load: int) -> None:
    """One more request is refused for so many tokens that wait."""
    with pytest.raises(EngineOverloadedError, match=f"^{load} prompt tokens wait to be computed"):
        engine.generate(prompt(1), PARAMS)


async def test_prompts_beyond_the_limit_of_tokens_are_refused_with_both_numbers():
    async with make(max_waiting_tokens=150) as engine:
        engine.runner.gate.close()
        streams = [engine.generate(prompt(length), PARAMS) for length in (100, 50)]
        with pytest.raises(EngineOverloadedError, match="150 prompt tokens wait to be computed, limit is 150"):
            engine.generate(prompt(1), PARAMS)
        engine.runner.gate.open()
        assert [[o async for o in stream][-1].finished for stream in streams] == [True, True]
        assert (await engine.complete(prompt(1), PARAMS)).finished


async def test_only_prompts_without_an_output_count():
    async with make(max_waiting_tokens=100) as engine:
        decoding = engine.generate(prompt(200), PARAMS)
        await anext(decoding)
        engine.runner.gate.close()
        waiting = [engine.generate(prompt(length), PARAMS) for length in (90, 50)]
        refuses(engine, 140)
        await waiting[0].aclose()
        waiting.append(engine.generate(prompt(70), PARAMS))
        refuses(engine, 120)
        engine.runner.gate.open()
        assert [[o async for o in stream][-1].finished for stream in waiting[1:]] == [True, True]
        engine.runner.gate.close()
        waiting.append(engine.generate(prompt(110), PARAMS))
        refuses(engine, 110)
        engine.runner.gate.open()


async def test_the_limit_of_requests_is_told_before_that_of_tokens():
    async with make(max_num_running_reqs=1, max_waiting=9, max_waiting_tokens=1000) as engine:
        engine.runner.gate.close()
        streams = [engine.generate(prompt(100), PARAMS) for _ in range(10)]
        with pytest.raises(EngineOverloadedError, match="10 requests are unfinished, limit is 10"):
            engine.generate(prompt(1), PARAMS)
        assert len(streams) == 10


async def test_a_limit_of_no_tokens_refuses_all():
    async with make(max_waiting_tokens=0) as engine:
        with pytest.raises(EngineOverloadedError, match="0 prompt tokens wait to be computed, limit is 0"):
            engine.generate(prompt(1), PARAMS)


async def test_every_completion_counts_and_none_is_left_over():
    params = SamplingParams(temperature=0, max_tokens=3, n=3)
    async with make(max_waiting_tokens=60) as engine:
        stream = engine.generate(prompt(20), params)
        refuses(engine, 60)
        assert [o async for o in stream][-1].finished
        engine.generate(prompt(20), params)  # dropped at once
        await idle(engine)
        stream = engine.generate(prompt(70), PARAMS)
        refuses(engine, 70)


def test_a_limit_that_is_no_whole_number_is_refused():
    with pytest.raises(ConfigError, match="max_waiting_tokens is -1, the least is 0"):
        EngineConfig(max_waiting_tokens=-1)


def test_who_leaves_twice_is_counted_once():
    load = PromptLoad()
    load.enter("a", 5)
    load.enter("a", 7)
    load.leave("a")
    load.leave("a")
    assert load.total == 0
