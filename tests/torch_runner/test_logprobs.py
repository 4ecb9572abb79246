"""Log-probabilities are the model's own, of prompt and output, whatever the sampler and the scheduler do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from dense_reference import LLAMA, random_weights, reference_logits
from plan_maker import text

from callboard import CompletionOutput, Engine, EngineConfig, InvalidRequestError, RequestOutput, SamplingParams
from callboard.runner.torch_runner import TorchRunner

WEIGHTS = random_weights(LLAMA)
VOCABULARY = LLAMA.vocab_size
PROMPT = text(21)
EVERYTHING: dict[str, Any] = {
    "temperature": 1.5,
    "seed": 4,
    "repetition_penalty": 1.5,
    "frequency_penalty": 0.5,
    "logit_bias": {3: 5.0},
    "allowed_token_ids": list(range(0, VOCABULARY, 2)),
    "top_k": 9,
    "top_p": 0.9,
}


def make(depth: int = 2, **config: Any) -> Engine:
    blocks = config.pop("num_kv_blocks", 60)
    runner = TorchRunner(
        LLAMA, lambda: dict(WEIGHTS), max_model_len=64, block_size=4, num_kv_blocks=blocks, max_num_running_reqs=8
    )
    return Engine(EngineConfig(block_size=4, steps_in_flight=depth, max_logprobs=-1, **config), runner=runner)


def expected(tokens: list[int]) -> torch.Tensor:
    """What the dense model says of what follows each token: [tokens, vocabulary]."""
    return reference_logits(LLAMA, WEIGHTS, tokens).log_softmax(-1)


def assert_place(place: Any, token: int, row: torch.Tensor, count: int) -> None:
    """One place tells of its token first, then of the ``count`` likeliest in order."""
    order = row.argsort(descending=True)
    likeliest = order[:count].tolist()
    assert list(place) == [token, *(other for other in likeliest if other != token)]
    for other, told in place.items():
        assert told.logprob == pytest.approx(float(row[other]), abs=1e-4)
        assert told.rank == 1 + order.tolist().index(other)
        assert told.decoded_token is None


def assert_right(output: RequestOutput, prompt: list[int], count: int) -> None:
    (completion,) = output.outputs
    rows = expected(prompt + completion.token_ids)
    assert completion.logprobs is not None
    assert len(completion.logprobs) == len(completion.token_ids)
    for index, (token, place) in enumerate(zip(completion.token_ids, completion.logprobs, strict=True)):
        assert_place(place, token, rows[len(prompt) - 1 + index], count)
    assert completion.cumulative_logprob == pytest.approx(sum_of(completion), abs=1e-6)
    if output.prompt_logprobs is not None:
        assert output.prompt_logprobs[0] is None
        assert len(output.prompt_logprobs) == len(prompt)
        for index, token in enumerate(prompt[1:], 1):
            assert_place(output.prompt_logprobs[index], token, rows[index - 1], count)


def sum_of(completion: CompletionOutput) -> float:
    pairs = zip(completion.token_ids, completion.logprobs or [], strict=True)
    return sum(place[token].logprob for token, place in pairs)


@pytest.mark.parametrize("count", [0, 1, 5, VOCABULARY])
@pytest.mark.parametrize("sampling", [{"temperature": 0}, EVERYTHING], ids=["greedy", "everything"])
async def test_the_models_own_values_are_told_for_prompt_and_output(count: int, sampling: dict[str, Any]):
    params = SamplingParams(max_tokens=8, logprobs=count, prompt_logprobs=count, ignore_eos=True, **sampling)
    async with make() as engine:
        assert_right(await engine.complete(PROMPT, params), PROMPT, count)


async def test_minus_one_asks_for_the_whole_vocabulary():
    async with make() as engine:
        final = await engine.complete(PROMPT, SamplingParams(max_tokens=1, logprobs=-1, prompt_logprobs=-1))
        assert len(final.outputs[0].logprobs[0]) == len(final.prompt_logprobs[1]) == VOCABULARY


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize(
    "config",
    [{"max_num_scheduled_tokens": 5}, {"num_kv_blocks": 16}, {"num_kv_blocks": 16, "max_num_scheduled_tokens": 5}],
    ids=["chunks", "preempted", "both"],
)
async def test_chunks_preemptions_and_depth_change_no_place(depth: int, config: dict[str, Any]):
    params = SamplingParams(max_tokens=10, logprobs=2, prompt_logprobs=3, ignore_eos=True, seed=1, output_kind="final")
    prompts = [text(length, seed=length) for length in (21, 20, 9, 13, 2, 1)]
    async with make(depth, **config) as engine:
        streams = [engine.generate(prompt, params) for prompt in prompts]
        finals = [await anext(stream) for stream in streams]
    assert engine.stats().num_preemptions > 0 or "num_kv_blocks" not in config
    for number, prompt in enumerate(prompts):
        output = finals[number]
        rows = expected(prompt + output.outputs[0].token_ids)
        for index, token in enumerate(prompt[1:], 1):
            assert_place(output.prompt_logprobs[index], token, rows[index - 1], 3)
        for index, token in enumerate(output.outputs[0].token_ids):
            assert_place(output.outputs[0].logprobs[index], token, rows[len(prompt) - 1 + index], 2)


async def test_those_who_ask_and_those_who_do_not_run_side_by_side():
    settings = [{"logprobs": 3}, {}, {"prompt_logprobs": 1}, {"logprobs": 0, "prompt_logprobs": 0}]
    shared = {"max_tokens": 6, "temperature": 0, "ignore_eos": True, "output_kind": "final"}
    async with make() as engine:
        streams = [engine.generate(PROMPT, SamplingParams(**shared, **one)) for one in settings]
        finals = [await anext(stream) for stream in streams]
    assert len({tuple(final.outputs[0].token_ids) for final in finals}) == 1
    assert [final.outputs[0].logprobs is None for final in finals] == [False, True, True, False]
    assert [final.prompt_logprobs is None for final in finals] == [True, True, False, False]
    assert finals[1].outputs[0].cumulative_logprob is None
    assert {len(place) for place in finals[3].outputs[0].logprobs} == {1}


async def test_deltas_join_to_the_whole_and_the_prompt_comes_once():
    params = {"max_tokens": 9, "logprobs": 2, "prompt_logprobs": 1, "seed": 3, "ignore_eos": True}
    async with make() as engine:
        deltas = [output async for output in engine.generate(PROMPT, SamplingParams(**params))]
        final = await engine.complete(PROMPT, SamplingParams(**params))
        totals = [o async for o in engine.generate(PROMPT, SamplingParams(**params, output_kind="cumulative"))]
    assert [place for output in deltas for place in output.outputs[0].logprobs] == final.outputs[0].logprobs
    assert [output.prompt_logprobs for output in deltas] == [final.prompt_logprobs] + [None] * (len(deltas) - 1)
    assert deltas[-1].outputs[0].cumulative_logprob == pytest.approx(final.outputs[0].cumulative_logprob)
    for output in totals:
        assert output.prompt_logprobs == final.prompt_logprobs
        assert output.outputs[0].logprobs == final.outputs[0].logprobs[: len(output.outputs[0].token_ids)]


@pytest.mark.parametrize("kind", ["delta", "cumulative", "final"])
async def test_several_completions_tell_of_the_prompt_once(kind: str):
    params = SamplingParams(n=3, max_tokens=4, seed=2, logprobs=1, prompt_logprobs=1, output_kind=kind, ignore_eos=True)
    async with make() as engine:
        outputs = [output async for output in engine.generate(PROMPT, params)]
        alone = await engine.complete(PROMPT, SamplingParams(max_tokens=1, prompt_logprobs=1))
    told = [output.prompt_logprobs for output in outputs if output.prompt_logprobs is not None]
    assert told == [alone.prompt_logprobs] * (1 if kind == "delta" else len(outputs))
    for output in outputs:
        for completion in output.outputs:
            assert len(completion.logprobs) == len(completion.token_ids)


async def test_a_cached_prompt_is_told_of_too():
    async with make() as engine:
        plain = await engine.complete(PROMPT, SamplingParams(max_tokens=2, temperature=0))
        assert_right(
            await engine.complete(PROMPT, SamplingParams(max_tokens=2, temperature=0, logprobs=1, prompt_logprobs=1)),
            PROMPT,
            1,
        )
        assert plain.prompt_logprobs is None


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
async def test_more_than_the_limit_is_refused_with_both_numbers(name: str):
    runner = TorchRunner(LLAMA, lambda: dict(WEIGHTS), max_model_len=64, block_size=4, num_kv_blocks=20)
    async with Engine(EngineConfig(block_size=4), runner=runner) as engine:
        for count in (21, VOCABULARY, -1):
            with pytest.raises(InvalidRequestError, match=rf"^{name} is {count}, limit is 20"):
                await engine.complete(PROMPT, SamplingParams(**{name: count}))
        with pytest.raises(InvalidRequestError, match=rf"^{name} is -2"):
            SamplingParams(**{name: -2})
    async with make() as engine:
        with pytest.raises(InvalidRequestError, match=rf"^{name} is {VOCABULARY + 1}, limit is {VOCABULARY}"):
            await engine.complete(PROMPT, SamplingParams(**{name: VOCABULARY + 1}))
