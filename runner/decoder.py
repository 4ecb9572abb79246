"""The forward pass of a decoder over a flat batch.

One class serves llama (Touvron et al. 2023, arXiv 2302.13971), mistral, qwen2, qwen3 and gemma3
(Gemma Team 2025, arXiv 2503.19786), which differ by flags of ``ModelConfig``: grouped-query
attention, rotary embedding, RMS norm (Zhang and Sennrich 2019, arXiv 1910.07467) and a gated
MLP (Shazeer 2020, arXiv 2002.05202).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional

from .attention import Attention, Workspace
from .model_config import ModelConfig
from .paged_kv import PagedKV
from .rope import pair_up, rotate_, rotation_table
from .step_batch import StepBatch
from .weights_pack import Linear

Weights = dict[str, torch.Tensor]

_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
}


class Decoder:
    """A model with its weights in the layout that is computed with.

    Args:
        weights: neutral names as ``load_weights`` gives them. Emptied on the way, so that the
            original and the packed layout of all layers are never in memory together.
        max_model_len: positions of the rotation table.
    """

    def __init__(self, config: ModelConfig, weights: Weights, max_model_len: int) -> None:
        self.config = config
        self._embed = weights.pop("embed")
        # Rounded to the weights' type before it multiplies, as the model was trained.
        self._embed_scale = torch.tensor(config.hidden_size**0.5).to(self._embed.dtype)
        self._norm = _Norm(weights.pop("norm"), config.rms_norm_eps)
        self._head = Linear(weights.pop("head", self._embed))
        self._layers = [_Layer(config, weights, i) for i in range(config.num_layers)]
        self._windows = config.windows
        self._rotations = {
            window: rotation_table(config, max_model_len, local=window is not None) for window in set(self._windows)
        }
        self._workspace = Workspace()

    def forward(self, batch: StepBatch, kv: PagedKV) -> torch.Tensor:
        """Compute the batch's tokens and store their keys and values.

        Returns:
            the residual stream behind the last layer, [tokens, hidden]; ``logits`` takes rows of it.
        """
        attention = Attention(self.config, kv, batch, self._workspace)
        rotations = {window: table[batch.positions] for window, table in self._rotations.items()}
        x = functional.embedding(batch.input_ids, self._embed)
        if self.config.scale_embedding:
            x *= self._embed_scale
        for i, layer in enumerate(self._layers):
            x = layer.forward(i, x, rotations[self._windows[i]], attention)
        return x

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """What follows some tokens: [tokens, vocab_size], a tensor that nobody else uses."""
        return self._head(self._norm(states))


class _Layer:
    """Attention and MLP; Q, K and V are one product, gate and up another."""

    def __init__(self, config: ModelConfig, weights: Weights, i: int) -> None:
        self._head_dim, self._q_heads = config.head_dim, config.num_heads
        self._rotated_heads = config.num_heads + config.num_kv_heads

        def take(name: str) -> torch.Tensor:
            return weights.pop(f"layers.{i}.{name}")

        def paired(name: str) -> torch.Tensor:
            return pair_up(take(name), config.head_dim)

        eps = config.rms_norm_eps
        self._attn_norm, self._mlp_norm = _Norm(take("attn_norm"), eps), _Norm(take("mlp_norm"), eps)
        bias = torch.cat([paired("q_bias"), paired("k_bias"), take("v_bias")]) if config.attention_bias else None
        self._qkv = Linear(torch.cat([paired("q"), paired("k"), take("v")]), bias)
        self._qk_norms = (_Norm(paired("q_norm"), eps), _Norm(paired("k_norm"), eps)) if config.qk_norm else None
        outer = ("attn_out_norm", "mlp_out_norm") if config.output_norms else ()
        self._out_norms = tuple(_Norm(take(name), eps) for name in outer)
        self._activate = _ACTIVATIONS[config.hidden_act]
        self._o = Linear(take("o"))
        self._gate_up = Linear(torch.cat([take("gate"), take("up")]))
        self._down = Linear(take("down"))

    def forward(self, i: int, x: torch.Tensor, rotations: torch.Tensor, attention: Attention) -> torch.Tensor:
        """The residual stream behind this layer, [tokens, hidden]."""
        heads = self._qkv(self._attn_norm(x)).float().unflatten(1, (-1, self._head_dim))
        if self._qk_norms is not None:
            self._normalize_(heads, *self._qk_norms)
        rotate_(heads[:, : self._rotated_heads], rotations)
        attended = self._o(attention.run(i, heads).to(x.dtype))
        if self._out_norms:
            attended = self._out_norms[0](attended)
        x = attended.add_(x)
        gate, up = self._gate_up(self._mlp_norm(x)).chunk(2, -1)
        y = self._down(self._activate(gate).mul_(up))
        if self._out_norms:
            y = self._out_norms[1](y)
        return y.add_(x)

    def _normalize_(self, heads: torch.Tensor, q_norm: _Norm, k_norm: _Norm) -> None:
        queries, keys = heads[:, : self._q_heads], heads[:, self._q_heads : self._rotated_heads]
        queries.copy_(q_norm(queries))
        keys.copy_(k_norm(keys))


class _Norm:
    """RMS norm over the last dimension, in float32.

    With the vector's length instead of the mean of squares, which takes fewer operations; torch's
    own is 14 times slower on the CPU at 512 rows (2.13).
    """

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        size = weight.shape[0]
        self._weight = weight.float() * size**0.5
        self._eps = torch.tensor(eps * size)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        scale = torch.addcmul(self._eps, length, length).rsqrt_()
        return (x * scale).mul_(self._weight).to(x.dtype)
