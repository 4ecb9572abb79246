"""How much work a step is, from its plan alone: operations, and bytes that must move.

Counted are the products with the weights and those of queries, keys and values; not counted
are norms, rotations, softmax and activations, and what stays in registers and caches between
operations. The estimate says what a step takes at least, whatever computes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from ..scheduler.plan import IntArray, SchedulerOutput

if TYPE_CHECKING:
    from .model_config import ModelConfig


class ModelSizes(msgspec.Struct, frozen=True, kw_only=True):
    """What the work of a decoder depends on.

    Args:
        windows: for each layer how many tokens a token sees, itself included; None: all before it.
        weight_bytes: of one weight in memory; for packed types a share of a byte is allowed.
        kv_bytes: of one number of a key or value.
    """

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    windows: tuple[int | None, ...]
    weight_bytes: float = 4.0
    kv_bytes: float = 4.0

    @classmethod
    def of(cls, config: ModelConfig, *, weight_bytes: float = 4.0, kv_bytes: float = 4.0) -> ModelSizes:
        """The sizes of a model."""
        names = ("hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim", "vocab_size")
        sizes = {name: getattr(config, name) for name in names}
        return cls(windows=config.windows, weight_bytes=weight_bytes, kv_bytes=kv_bytes, **sizes)

    @property
    def kv_width(self) -> int:
        """Numbers of a token's key in one layer, over all heads; as many are its value."""
        return self.num_kv_heads * self.head_dim


class Work(NamedTuple):
    """Work of one part of the model."""

    flops: int  # a multiplication and an addition are two
    bytes_read: float
    bytes_written: float


class StepWork(NamedTuple):
    """Work of one step, all layers together."""

    attention: Work  # projections, scores, sums of values
    feed_forward: Work
    head: Work  # logits of the tokens that are sampled

    @property
    def total(self) -> Work:
        """All parts together."""
        return Work(
            sum(part.flops for part in self),
            sum(part.bytes_read for part in self),
            sum(part.bytes_written for part in self),
        )


def estimate_work(sizes: ModelSizes, plan: SchedulerOutput) -> StepWork:
    """The work of a step; one without tokens is none."""
    num_tokens = int(plan.num_tokens.sum())
    if not num_tokens:
        return StepWork(*([Work(0, 0.0, 0.0)] * 3))
    layers = len(sizes.windows)
    feed_forward = layers * 3 * sizes.hidden_size * sizes.intermediate_size
    return StepWork(
        attention=_attention(sizes, plan, num_tokens),
        feed_forward=_products(feed_forward, num_tokens, sizes),
        head=_products(sizes.hidden_size * sizes.vocab_size, int(plan.samples.sum()), sizes),
    )


def _products(weights: int, rows: int, sizes: ModelSizes) -> Work:
    """Each of ``rows`` vectors meets every weight once; the weights are read once for all."""
    return Work(2 * rows * weights, weights * sizes.weight_bytes if rows else 0.0, 0.0)


def _attention(sizes: ModelSizes, plan: SchedulerOutput, num_tokens: int) -> Work:
    width, layers = sizes.num_heads * sizes.head_dim, len(sizes.windows)
    projections = layers * sizes.hidden_size * (2 * width + 2 * sizes.kv_width)
    flops, read, written = _products(projections, num_tokens, sizes)
    pairs = seen = 0
    # Layers with the same window do the same.
    for window in set(sizes.windows):
        count = sizes.windows.count(window)
        pairs += count * _pairs(plan.num_computed, plan.num_tokens, window)
        seen += count * _seen(plan.num_computed, plan.num_tokens, window)
    token_bytes = 2 * sizes.kv_width * sizes.kv_bytes
    return Work(flops + 4 * width * pairs, read + seen * token_bytes, written + layers * num_tokens * token_bytes)


def _pairs(computed: IntArray, new: IntArray, window: int | None) -> int:
    """Pairs of a new token and a token that it sees."""
    growing = new if window is None else np.clip(window - computed, 0, new)  # new tokens that see all before them
    pairs = growing * computed + growing * (growing + 1) // 2
    if window is not None:
        pairs = pairs + (new - growing) * window
    return int(pairs.sum())


def _seen(computed: IntArray, new: IntArray, window: int | None) -> int:
    """Tokens whose keys and values are read, each once for all new tokens of its request."""
    seen = computed + new
    return int((seen if window is None else np.minimum(seen, window - 1 + new)).sum())
