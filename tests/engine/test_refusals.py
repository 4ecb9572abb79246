"""What an engine refuses, by name, and that nobody else is harmed."""

import asyncio

import anyio
import anyio.to_thread
import pytest
from anyio.lowlevel import checkpoint
from toy_engine import PROMPT, greedy, idle, make

from callboard import (
    ConfigError,
    Engine,
    EngineConfig,
    EngineOverloadedError,
    InvalidRequestError,
)
from callboard.actors import WrongLoopError
from callboard.runner import SimulatedRunner
from callboard.runner.toy_model import toy_tokens

BAD_REQUESTS = [
    ([], {}, "prompt has no tokens"),
    (list(range(1, 101)), {}, "prompt has 100 tokens, limit is 99"),
    ([1, 100], {}, "prompt token id is 100, limits are 0 and 99"),
    ([-1, 5], {}, "prompt token id is -1, limits are 0 and 99"),
    ("text", {}, "no tokenizer"),
    (None, {}, "prompt is NoneType"),
    ([1, 1.5], {}, r"prompt\[1\] is 1.5, needed is a token id"),
    (b"hello", {}, "prompt is bytes"),
    ([True], {}, r"prompt\[0\] is True"),
    ([1], {"stop_token_ids": [100]}, "stop_token_ids is 100, limits are 0 and 99"),
    ([1], {"stop": ["x"]}, "stop strings need a tokenizer"),
]


@pytest.mark.parametrize(("prompt", "params", "message"), BAD_REQUESTS, ids=lambda value: str(value)[:30])
async def test_a_request_that_can_never_be_served_is_refused_and_the_others_go_on(prompt, params: dict, message: str):
    async with make() as engine:
        good = engine.generate(PROMPT, greedy())
        with pytest.raises(InvalidRequestError, match=message) as caught:
            await anext(engine.generate(prompt, greedy(**params), request_id="bad"))
        assert "bad" in str(caught.value)
        assert [t async for o in good for t in o.outputs[0].token_ids] == toy_tokens(PROMPT, 8, 100)
        await idle(engine)


def test_what_is_not_built_is_refused_by_name_and_not_ignored():
    with pytest.raises(ConfigError, match="kv_connector"):
        EngineConfig(kv_connector="redis")


async def test_an_id_that_is_in_use_is_refused_and_free_again_after_the_end():
    async with make() as engine:
        first = engine.generate(PROMPT, greedy(), request_id="x")
        with pytest.raises(InvalidRequestError, match="'x' is in use"):
            engine.generate(PROMPT, greedy(), request_id="x")
        assert [o async for o in first]
        assert (await engine.complete(PROMPT, greedy(), request_id="x")).finished


async def test_requests_beyond_the_waiting_room_are_refused_with_both_numbers():
    async with make(max_num_running_reqs=2, max_waiting=3) as engine:
        streams = [engine.generate([n, *PROMPT], greedy()) for n in range(5)]
        with pytest.raises(EngineOverloadedError, match="5 requests are unfinished, limit is 5"):
            engine.generate(PROMPT, greedy())
        for stream in streams:
            assert [o async for o in stream][-1].finished
        assert (await engine.complete(PROMPT, greedy())).finished


async def test_submitting_and_aborting_in_a_storm_overloads_but_never_ends_the_engine():
    async with make(max_num_running_reqs=2, max_waiting=0) as engine:
        refused = 0
        for number in range(500):
            try:
                stream = engine.generate([number % 100, *PROMPT], greedy())
            except EngineOverloadedError:
                refused += 1
                await checkpoint()
                continue
            if number % 3:
                await engine.abort(stream.request_id)
            else:
                assert [output async for output in stream][-1].finished
        assert refused
        await idle(engine)


def test_an_unknown_setting_is_refused_with_the_nearest_known_one():
    with pytest.raises(ConfigError, match="unknown setting 'max_model_length', did you mean 'max_model_len'"):
        EngineConfig(max_model_length=5)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"max_model_len": 200}, "max_model_len is 200, the runner's limit is 100"),
        ({"num_kv_blocks": 65}, "num_kv_blocks is 65, the runner's limit is 64"),
        ({"max_num_running_reqs": 9}, "max_num_running_reqs is 9, the runner's limit is 8"),
        ({"block_size": 8}, "block_size is 8, the runner's is 4"),
    ],
    ids=str,
)
async def test_settings_beyond_the_runners_limits_are_refused_at_the_start(config: dict, message: str):
    runner = SimulatedRunner(num_kv_blocks=64, block_size=4, max_model_len=100, max_num_running_reqs=8)
    with pytest.raises(ConfigError, match=message):
        async with Engine(EngineConfig(**{"block_size": 4} | config), runner=runner):
            raise AssertionError("the engine started")


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_use_from_another_loop_or_thread_is_refused(anyio_backend: str):
    async with make() as engine:

        def elsewhere() -> None:
            async def use() -> None:
                engine.generate(PROMPT, greedy())

            asyncio.run(use())

        with pytest.raises(WrongLoopError):
            await anyio.to_thread.run_sync(elsewhere)
