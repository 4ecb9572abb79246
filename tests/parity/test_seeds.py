"""With the real model, too, a seed gives the same tokens however the request is run."""

from __future__ import annotations

from typing import Any

import pytest
from parity_settings import MODEL

from callboard import Engine, SamplingParams

pytestmark = [pytest.mark.slow, pytest.mark.soak]  # tests/torch_runner/test_seeds.py does the same on a tiny model

CHOSEN = 7  # of the prompts; 17 tokens
SETTINGS = {"temperature": 0.8, "top_p": 0.95, "min_p": 0.02, "repetition_penalty": 1.1, "frequency_penalty": 0.1}


def seeded(**params: Any) -> SamplingParams:
    return SamplingParams(seed=42, max_tokens=16, ignore_eos=True, output_kind="final", **SETTINGS, **params)


async def tokens_beside(token_ids: list[list[int]], others: int, **config: Any) -> tuple[list[int], int]:
    """The request's tokens, and how often anybody was preempted meanwhile."""
    async with Engine.from_pretrained(MODEL, max_model_len=512, **{"num_kv_blocks": 300} | config) as engine:
        short = [ids for ids in token_ids if len(ids) < 100]
        beside = SamplingParams(max_tokens=16, ignore_eos=True, output_kind="final")
        streams = [engine.generate(short[i % len(short)], beside) for i in range(others)]
        asked = engine.generate(token_ids[CHOSEN], seeded())
        found = (await anext(asked)).outputs[0].token_ids
        for stream in streams:
            await anext(stream)
        return found, engine.stats().num_preemptions


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_alone_and_in_a_batch_of_32(anyio_backend, token_ids):
    alone, _ = await tokens_beside(token_ids, 0)
    assert (await tokens_beside(token_ids, 31))[0] == alone


@pytest.mark.parametrize(("depth", "anyio_backend"), [(1, "asyncio"), (2, "asyncio"), (3, "asyncio")])
async def test_alone_preempted_and_in_chunks_at_each_depth(anyio_backend, depth, token_ids):
    alone, _ = await tokens_beside(token_ids, 0, steps_in_flight=2)
    crowded, preemptions = await tokens_beside(token_ids, 8, steps_in_flight=depth, num_kv_blocks=16)
    assert preemptions > 0
    assert crowded == alone
    assert (await tokens_beside(token_ids, 1, steps_in_flight=depth, max_num_scheduled_tokens=9))[0] == alone
