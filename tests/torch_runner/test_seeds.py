"""A request with a seed gives the same tokens whatever runs beside it and however it is scheduled."""

from __future__ import annotations

from typing import Any

import pytest
from dense_reference import LLAMA, random_weights
from plan_maker import text

from callboard import Engine, EngineConfig, SamplingParams
from callboard.runner.torch_runner import TorchRunner

WEIGHTS = random_weights(LLAMA)
PROMPT = text(18)
FULL = {
    "temperature": 0.9,
    "top_p": 0.95,
    "top_k": 30,
    "min_p": 0.01,
    "repetition_penalty": 1.2,
    "presence_penalty": 0.3,
    "frequency_penalty": 0.2,
    "logit_bias": {7: 1.0},
    "bad_words_token_ids": [[5, 6], [9]],
}
SETTINGS: dict[str, dict[str, Any]] = {"plain": {"temperature": 2.0}, "everything": FULL}


def make(depth: int = 2, **config: Any) -> Engine:
    blocks = config.pop("num_kv_blocks", 600)
    runner = TorchRunner(
        LLAMA, lambda: dict(WEIGHTS), max_model_len=64, block_size=4, num_kv_blocks=blocks, max_num_running_reqs=32
    )
    return Engine(EngineConfig(block_size=4, steps_in_flight=depth, **config), runner=runner)


def seeded(**params: Any) -> SamplingParams:
    return SamplingParams(seed=42, max_tokens=24, ignore_eos=True, output_kind="final", **params)


async def tokens_beside(engine: Engine, others: int, **params: Any) -> list[int]:
    """The request's tokens, with neighbours that are admitted around it."""
    async with engine:
        streams = [engine.generate(text(5 + i % 13, seed=i), neighbour(i)) for i in range(others // 2)]
        asked = engine.generate(PROMPT, seeded(**params))
        streams += [engine.generate(text(5 + i % 13, seed=i), neighbour(i)) for i in range(others // 2, others)]
        found = await anext(asked)
        for stream in streams:
            await anext(stream)
    return found.outputs[0].token_ids


def neighbour(number: int) -> SamplingParams:
    seed = [None, 42][number % 2]
    return SamplingParams(
        temperature=number % 3, seed=seed, max_tokens=24, top_k=number % 5, ignore_eos=True, output_kind="final"
    )


@pytest.mark.slow
@pytest.mark.parametrize("params", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_seed_gives_the_same_tokens_however_the_request_is_run(anyio_backend: str, params: dict[str, Any]):
    alone = await tokens_beside(make(), 0, **params)
    assert len(set(alone)) > 8
    assert await tokens_beside(make(), 31, **params) == alone
    for depth in (1, 2, 3):
        crowded = make(depth, num_kv_blocks=60)
        assert await tokens_beside(crowded, 20, **params) == alone
        assert crowded.stats().num_preemptions > 0
        assert await tokens_beside(make(depth, max_num_scheduled_tokens=7), 3, **params) == alone
        assert await tokens_beside(make(depth, enable_prefix_caching=False), 0, **params) == alone


async def test_without_a_seed_no_two_runs_are_alike_even_under_one_id():
    params = SamplingParams(temperature=2.0, max_tokens=12, ignore_eos=True)
    async with make() as engine:
        runs = [(await engine.complete(PROMPT, params, request_id="same")).outputs[0].token_ids for _ in range(3)]
    assert len(set(map(tuple, runs))) == 3
