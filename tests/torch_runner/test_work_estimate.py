"""Estimates of a step's work, beside counts by hand and by torch."""

import numpy as np
import pytest
import torch
from dense_reference import CONFIGS, random_weights, reference_logits
from torch.utils.flop_counter import FlopCounterMode

from callboard.runner.work_estimate import ModelSizes, StepWork, Work, estimate_work
from callboard.scheduler import SchedulerOutput

SMALL = ModelSizes(
    hidden_size=8, intermediate_size=16, num_heads=4, num_kv_heads=2, head_dim=2, vocab_size=100, windows=(None, None),
    weight_bytes=2, kv_bytes=2,
)  # fmt: skip


def plan(*requests: tuple[int, int, bool]) -> SchedulerOutput:
    """A step of requests: tokens computed before, tokens to compute, whether it samples."""
    computed, new, samples = (np.array(column) for column in zip(*requests, strict=True))
    return SchedulerOutput(step=1, num_computed=computed, num_tokens=new, samples=samples)


def test_a_small_step_is_what_one_counts_by_hand():
    # Two requests: 3 tokens of a prompt that goes on, and a decode behind 5 tokens.
    work = estimate_work(SMALL, plan((0, 3, False), (5, 1, True)))
    projections = 2 * (8 * 8 + 8 * 4 + 8 * 4 + 8 * 8)  # layers * (q, k, v, o)
    pairs = 2 * ((1 + 2 + 3) + 6)
    token = 2 * 4 * 2  # key and value, 4 numbers each, 2 bytes
    assert work.attention == Work(
        2 * 4 * projections + 4 * 8 * pairs, projections * 2 + 2 * (3 + 6) * token, 2 * 4 * token
    )
    assert work.feed_forward == Work(2 * 4 * 2 * 3 * 8 * 16, 2 * 3 * 8 * 16 * 2, 0)
    assert work.head == Work(2 * 1 * 8 * 100, 8 * 100 * 2, 0)
    assert work.total.flops == work.attention.flops + work.feed_forward.flops + work.head.flops


def test_a_step_without_samples_does_not_read_the_head():
    assert estimate_work(SMALL, plan((0, 3, False))).head == Work(0, 0, 0)


def test_a_step_without_tokens_is_no_work():
    assert estimate_work(SMALL, SchedulerOutput(step=1)) == StepWork(*([Work(0, 0, 0)] * 3))


@pytest.mark.parametrize("name", ["llama", "one head each", "biases", "sliding window", "gemma3"])
@pytest.mark.parametrize("length", [1, 5, 17])
def test_a_prefill_is_what_torch_counts(name: str, length: int):
    sizes = ModelSizes.of(CONFIGS[name])
    work = estimate_work(sizes, plan((0, length, True)))
    assert work.total.flops + _beyond(sizes, work, length) == _counted(name, length)


@pytest.mark.parametrize("name", ["llama", "sliding window"])
def test_a_decode_is_what_torch_counts_for_one_token_more(name: str):
    sizes = ModelSizes.of(CONFIGS[name])
    before, after = (estimate_work(sizes, plan((0, length, True))) for length in (9, 10))
    decode = estimate_work(sizes, plan((9, 1, True)))
    more = _beyond(sizes, after, 10) - _beyond(sizes, before, 9) - before.head.flops
    assert decode.total.flops + more == _counted(name, 10) - _counted(name, 9)


@pytest.mark.parametrize("window", [None, 1, 4, 7, 100])
@pytest.mark.parametrize("chunk", [1, 3, 10])
def test_chunks_add_up_to_the_whole_prompt(window: int | None, chunk: int):
    sizes = ModelSizes.of(CONFIGS["llama"])
    sizes = ModelSizes(**{name: getattr(sizes, name) for name in sizes.__struct_fields__} | {"windows": (window,)})
    whole = estimate_work(sizes, plan((0, 20, True)))
    starts = range(0, 20, chunk)
    parts = [estimate_work(sizes, plan((at, min(chunk, 20 - at), at + chunk >= 20))) for at in starts]
    assert sum(part.total.flops for part in parts) == whole.total.flops
    assert sum(part.total.bytes_written for part in parts) == whole.total.bytes_written


def test_a_window_bounds_what_is_read():
    wide, narrow = (ModelSizes.of(CONFIGS[name]) for name in ("llama", "sliding window"))
    read = [estimate_work(sizes, plan((100, 1, True))).attention.bytes_read for sizes in (wide, narrow)]
    token = 2 * wide.kv_width * 4
    assert read[0] - read[1] == 2 * (101 - 6) * token  # two layers


def _counted(name: str, length: int) -> int:
    """What torch counts in the plainest model: all pairs of tokens, logits behind every token."""
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        reference_logits(CONFIGS[name], random_weights(CONFIGS[name]), list(range(length)))
    return counter.get_total_flops()


def _beyond(sizes: ModelSizes, work: StepWork, length: int) -> int:
    """What the plainest model computes of a prompt that nobody needs."""
    seen = [sum(min(i + 1, window or length) for i in range(length)) for window in sizes.windows]
    pairs = sum(length * length - needed for needed in seen)
    return 4 * sizes.num_heads * sizes.head_dim * pairs + (length - 1) * work.head.flops
