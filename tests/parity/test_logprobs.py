"""Log-probabilities of prompt and output are those of transformers in float32."""

from __future__ import annotations

from typing import Any

import pytest
from parity_settings import MODEL

from callboard import Engine, RequestOutput, SamplingParams

pytestmark = pytest.mark.slow

CHOSEN = (0, 1, 4, 7, 9, 10, 12, 16, 19, 20)  # of 1 to 113 tokens, code, accents, emoji, CJK
# In French prompt 6 the model is so sensitive at one place that float32 itself is off there: of float64's values, those
# of transformers by 9e-5, ours by 4.5e-4.
SENSITIVE, SENSITIVE_LIMIT = 6, 1e-3
LIMIT = 1e-4


def worst_difference(output: RequestOutput, prompt: list[int], model: Any, limit: float) -> float:
    """Over all values told, those of the likeliest tokens included; ranks may differ where values do."""
    import torch

    (completion,) = output.outputs
    tokens = prompt + completion.token_ids
    with torch.inference_mode():
        expected = model(torch.tensor([tokens])).logits[0].log_softmax(-1)
    assert output.prompt_logprobs is not None
    assert completion.logprobs is not None
    places = [*output.prompt_logprobs[1:], *completion.logprobs]
    assert len(places) == len(tokens) - 1
    worst = 0.0
    for token, place, row in zip(tokens[1:], places, expected, strict=False):
        assert next(iter(place)) == token
        told = {other: logprob.logprob for other, logprob in place.items()}
        worst = max(worst, *(abs(value - float(row[other])) for other, value in told.items()))
        assert min(told.values()) <= float(row.topk(5).values[-1]) + limit
        low, high = ((row > float(row[token]) + shift).sum() + 1 for shift in (2 * limit, -2 * limit))
        assert low <= place[token].rank <= high
    return worst


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_prompt_and_output_have_the_values_of_transformers(anyio_backend, token_ids, reference_model):
    params = SamplingParams(seed=3, max_tokens=16, logprobs=5, prompt_logprobs=5, output_kind="final")
    prompts = [token_ids[number] for number in (*CHOSEN, SENSITIVE)]
    async with Engine.from_pretrained(MODEL, max_model_len=2048, num_kv_blocks=600) as engine:
        streams = [engine.generate(prompt, params) for prompt in prompts]
        outputs = [await anext(stream) for stream in streams]
    *told, sensitive = zip(outputs, prompts, strict=True)
    worst = max(worst_difference(*one, reference_model, LIMIT) for one in told)
    print(f"largest difference to transformers: {worst:.1e}")
    assert worst < LIMIT
    assert worst_difference(*sensitive, reference_model, SENSITIVE_LIMIT) < SENSITIVE_LIMIT


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_texts_of_tokens_are_told(anyio_backend):
    params = SamplingParams(temperature=0, max_tokens=4, logprobs=2, output_kind="final")
    async with Engine.from_pretrained(MODEL, max_model_len=256, num_kv_blocks=20) as engine:
        output = await engine.complete("The capital of France is", params)
    (completion,) = output.outputs
    pairs = zip(completion.token_ids, completion.logprobs or [], strict=True)
    assert "".join(str(place[token].decoded_token) for token, place in pairs) == completion.text
