"""Every way of cutting a text into steps gives what one dense pass over the whole text gives."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest
import torch
from dense_reference import CONFIGS, GEMMA3, LLAMA, greedy, random_weights, reference_logits
from plan_maker import Device, blocks_for, text, watch_logits

from callboard.runner.model_config import ModelConfig
from callboard.runner.weights_pack import Linear
from callboard.scheduler.errors import BooksError

WEIGHTS = random_weights(LLAMA)


@pytest.fixture
def device() -> Device:
    return Device(LLAMA, WEIGHTS)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_each_kind_of_model_continues_a_text_like_the_dense_reference(config: ModelConfig) -> None:
    weights, prompt = random_weights(config), text(30)
    device = Device(config, weights)
    device.admit("a", 0, prompt, blocks_for(42))
    assert device.finish("a", 30, 12) == greedy(config, weights, prompt, 12)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_logits_agree_with_the_dense_reference(config: ModelConfig) -> None:
    weights, prompt = random_weights(config), text(21)
    device = Device(config, weights)
    seen = watch_logits(device)
    device.admit("a", 0, prompt, blocks_for(30))
    outputs = device.finish("a", 21, 5)
    expected = reference_logits(config, weights, prompt + outputs)[20:25].float()
    assert torch.allclose(torch.cat(seen), expected, rtol=1e-3, atol=1e-3)


WITH_AND_WITHOUT_WINDOWS = pytest.mark.parametrize("config", [LLAMA, GEMMA3], ids=lambda config: config.architecture)


@WITH_AND_WITHOUT_WINDOWS
@pytest.mark.parametrize("chunks", [[25], [24, 1], [1, 24], [7, 7, 11], [4] * 6 + [1], [1] * 25], ids=str)
def test_a_prompt_may_be_split_anywhere(config: ModelConfig, chunks: list[int]) -> None:
    weights, prompt = random_weights(config), text(25)
    device = Device(config, weights)
    device.admit("a", 0, prompt, blocks_for(40))
    assert not any(device.run(a=chunk) for chunk in chunks[:-1])
    assert device.finish("a", chunks[-1], 10) == greedy(config, weights, prompt, 10)


@WITH_AND_WITHOUT_WINDOWS
def test_chunks_longer_than_a_tile_see_all_before_them(config: ModelConfig) -> None:
    config = msgspec.structs.replace(config, sliding_window=config.sliding_window and 140)
    weights, prompt = random_weights(config), text(400)
    device = Device(config, weights)
    device.admit("a", 0, prompt, blocks_for(410))
    device.run(a=150)
    assert device.finish("a", 250, 3) == greedy(config, weights, prompt, 3)


def test_blocks_may_lie_in_any_order(device: Device) -> None:
    prompt, blocks = text(30), random.Random(1).sample(range(1, 600), 11)
    device.admit("a", 0, prompt, blocks)
    device.run(a=13)
    assert device.finish("a", 17, 12) == greedy(LLAMA, WEIGHTS, prompt, 12)


def test_block_tables_grow_as_the_text_does(device: Device) -> None:
    prompt = text(8)
    device.admit("a", 3, prompt, [7, 5])
    outputs = [device.run(a=8)["a"]]
    outputs += [device.run({3: [20 + i]} if i % 4 == 0 else None, a=1)["a"] for i in range(9)]
    assert outputs == greedy(LLAMA, WEIGHTS, prompt, 10)


def test_a_request_reads_blocks_that_another_fills_in_the_same_step(device: Device) -> None:
    prefix = text(16)
    device.admit("a", 0, prefix + text(3, seed=1), [9, 8, 7, 6, 5])
    device.admit("b", 1, prefix + text(5, seed=2), [9, 8, 7, 6, 20, 21], computed=16)
    device.admit("c", 2, prefix + text(1, seed=3), [9, 8, 7, 6, 30], computed=16)
    outputs = device.run(a=19, b=5, c=1)
    for name, own in (("a", text(3, seed=1)), ("b", text(5, seed=2)), ("c", text(1, seed=3))):
        assert [outputs[name]] == greedy(LLAMA, WEIGHTS, prefix + own, 1), name


def test_prompts_and_decoding_requests_share_steps(device: Device) -> None:
    prompts = {name: text(length, seed=length) for name, length in (("a", 5), ("b", 33), ("c", 18))}
    for row, (name, prompt) in enumerate(prompts.items()):
        device.admit(name, 5 - row, prompt, blocks_for(60, first=1 + 20 * row))
    outputs: dict[str, list[int]] = {name: [] for name in prompts}
    steps = [{"a": 5}, {"a": 1, "b": 20}, {"b": 13, "a": 1, "c": 9}, {"c": 9, "b": 1, "a": 1}] + [
        dict.fromkeys("bca", 1)
    ] * 6
    for step in steps:
        for name, token in device.run(**step).items():
            outputs[name].append(token)
    for name, prompt in prompts.items():
        assert outputs[name] == greedy(LLAMA, WEIGHTS, prompt, len(outputs[name])), name
    assert [len(tokens) for tokens in outputs.values()] == [10, 8, 7]


@WITH_AND_WITHOUT_WINDOWS
def test_contexts_of_very_different_lengths_decode_together(config: ModelConfig) -> None:
    config = msgspec.structs.replace(config, sliding_window=config.sliding_window and 149)
    weights = random_weights(config)
    device = Device(config, weights)
    prompts = {f"r{i}": text(length, seed=i) for i, length in enumerate([400, 2, 150, 149, 9, 401])}
    for i, (name, prompt) in enumerate(prompts.items()):
        device.admit(name, i, prompt, blocks_for(410, first=1 + 103 * i))
    device.run(**{name: len(prompt) for name, prompt in prompts.items()})
    outputs = device.run(**dict.fromkeys(prompts, 1))
    assert outputs == {name: greedy(config, weights, prompt, 2)[1] for name, prompt in prompts.items()}


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("length", [4, 5, 8, 9])
@pytest.mark.parametrize("chunk", [1, 3, 9])
def test_a_resumed_request_goes_on_where_it_was(device: Device, length: int, outputs: int, chunk: int) -> None:
    prompt = text(length - outputs)
    expected = greedy(LLAMA, WEIGHTS, prompt, 8)
    device.admit("a", 0, prompt, blocks_for(20))
    assert device.finish("a", len(prompt), outputs) == expected[:outputs]
    device.admit("a", 1, prompt + expected[:outputs], blocks_for(20, first=40), outputs=outputs)
    rest = length
    while rest > chunk:
        assert device.run(a=chunk) == {}
        rest -= chunk
    assert device.finish("a", rest, 8 - outputs) == expected[outputs:]


def test_a_resumed_request_reads_cached_blocks(device: Device) -> None:
    prompt = text(14)
    expected = greedy(LLAMA, WEIGHTS, prompt, 6)
    device.admit("a", 0, prompt, blocks_for(20))
    device.finish("a", 14, 3)
    device.admit("a", 0, prompt + expected[:3], [1, 2, 3, 4, 50], computed=16, outputs=3)
    assert device.finish("a", 1, 3) == expected[3:]


def test_nothing_of_a_row_or_block_stays_for_the_next_request(device: Device) -> None:
    device.admit("a", 0, text(40), blocks_for(50))
    device.finish("a", 40, 9)
    prompt = text(6, seed=5)
    device.admit("b", 0, prompt, [3, 2, 1])
    assert device.finish("b", 6, 5) == greedy(LLAMA, WEIGHTS, prompt, 5)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_steps_may_be_planned_before_earlier_ones_are_done(device: Device, depth: int) -> None:
    first, second = text(10), text(7, seed=1)
    device.admit("a", 0, first, blocks_for(30))
    device.admit("b", 1, second, blocks_for(30, first=20))
    plans = [device.step(a=10), device.step(a=1, b=4), device.step(b=3, a=1)]
    plans += [device.step(a=1, b=1) for _ in range(6)]
    outputs: dict[str, list[int]] = {"a": [], "b": []}
    while plans:
        under_way, plans = plans[:depth], plans[depth:]
        for plan in under_way:
            tokens = iter(device.executor.execute(plan).token_ids)
            for name, samples in zip(plan.req_ids, plan.samples, strict=True):
                if samples:
                    outputs[name].append(next(tokens))
    assert outputs == {"a": greedy(LLAMA, WEIGHTS, first, 9), "b": greedy(LLAMA, WEIGHTS, second, 7)}


def test_a_row_may_change_hands_while_a_step_with_the_old_request_is_under_way(device: Device) -> None:
    old, new = text(9), text(5, seed=8)
    device.admit("old", 2, old, [1, 2, 3])
    planned = [device.step(old=9), device.step(old=1)]
    device.admit("new", 2, new, [4, 5, 6])
    planned += [device.step(new=5), device.step(new=1)]
    tokens = [int(device.executor.execute(plan).token_ids[0]) for plan in planned]
    assert tokens == greedy(LLAMA, WEIGHTS, old, 2) + greedy(LLAMA, WEIGHTS, new, 2)


def test_a_plan_without_requests_is_a_step_too(device: Device) -> None:
    output = device.executor.execute(device.step())
    assert output.step == 1
    assert output.token_ids is not None
    assert len(output.token_ids) == 0


def test_the_last_position_of_the_longest_text_is_computed() -> None:
    device = Device(LLAMA, WEIGHTS)
    prompt = text(511)
    device.admit("a", 0, prompt, blocks_for(511))
    assert device.finish("a", 511, 1) == greedy(LLAMA, WEIGHTS, prompt, 1)


@pytest.mark.parametrize(
    ("chunk", "blocks", "message"),
    [(6, [1, 2], "tokens that are not known"), (5, [1], "no blocks for its tokens")],
)
def test_a_plan_that_does_not_fit_its_rows_is_refused(
    device: Device, chunk: int, blocks: list[int], message: str
) -> None:
    device.admit("a", 0, text(5), blocks)
    with pytest.raises(BooksError, match=message):
        device.run(a=chunk)


def test_a_sample_before_the_end_of_the_known_tokens_is_refused(device: Device) -> None:
    device.admit("a", 0, text(5), [1, 2])
    plan = msgspec.structs.replace(device.step(a=3), samples=np.array([True]))
    with pytest.raises(BooksError, match="a sample inside its known tokens"):
        device.executor.execute(plan)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_weights_give_nearly_the_same_logits(dtype: torch.dtype) -> None:
    prompt = text(20)
    weights = {name: tensor.to(dtype) for name, tensor in WEIGHTS.items()}
    device = Device(LLAMA, weights)
    device.admit("a", 0, prompt, blocks_for(20))
    seen = watch_logits(device)
    device.run(a=20)
    expected = reference_logits(LLAMA, weights, prompt)[-1].float()
    assert torch.nn.functional.cosine_similarity(seen[0][0].float(), expected, dim=0) > 0.99


@pytest.mark.parametrize("rows", [1, 3, 40])
def test_a_packed_product_is_the_plain_product(rows: int) -> None:
    weight, bias, x = torch.randn(48, 32), torch.randn(48), torch.randn(rows, 32)
    assert torch.allclose(Linear(weight, bias)(x), x @ weight.T + bias, atol=1e-4)


def test_products_without_onednn_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callboard.runner.weights_pack.can_pack", lambda dtype: False)
    device, prompt = Device(LLAMA, WEIGHTS), text(9)
    device.admit("a", 0, prompt, blocks_for(20))
    assert device.finish("a", 9, 4) == greedy(LLAMA, WEIGHTS, prompt, 4)
