"""Greedy output is token for token what transformers gives, whatever the scheduler does."""

from __future__ import annotations

import pytest
from parity_settings import MODEL, all_at_once

from callboard import Engine

pytestmark = pytest.mark.slow


def make(**config) -> Engine:
    return Engine.from_pretrained(MODEL, max_model_len=2048, **{"num_kv_blocks": 600} | config)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_two_passes_with_the_prefix_cache(anyio_backend, token_ids, expected):
    async with make() as engine:
        assert await all_at_once(engine, token_ids) == expected
        cold = engine.stats().prefix_hits
        assert await all_at_once(engine, token_ids) == expected
        assert engine.stats().prefix_hits > cold + 1500
        print(f"prefix hits of the second pass: {engine.stats().prefix_hits - cold} tokens")


@pytest.mark.soak
@pytest.mark.parametrize(("depth", "anyio_backend"), [(1, "asyncio"), (3, "trio")])
async def test_one_and_three_steps_in_flight(anyio_backend, depth, token_ids, expected):
    async with make(steps_in_flight=depth, enable_prefix_caching=False) as engine:
        assert await all_at_once(engine, token_ids) == expected


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_a_pool_so_small_that_requests_are_preempted(anyio_backend, token_ids, expected):
    async with make(num_kv_blocks=105) as engine:
        assert await all_at_once(engine, token_ids) == expected
        assert engine.stats().num_preemptions > 0
        print(f"preemptions: {engine.stats().num_preemptions}")


@pytest.mark.soak
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_prompts_in_chunks_of_at_most_64_tokens(anyio_backend, token_ids, expected):
    async with make(max_num_scheduled_tokens=64) as engine:
        assert await all_at_once(engine, token_ids) == expected
