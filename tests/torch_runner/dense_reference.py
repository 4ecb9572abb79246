"""Tiny random models, and the plainest way to compute them: full attention over the whole text, in float64."""

from __future__ import annotations

import math
from typing import Any

import torch

from callboard.runner.model_config import ModelConfig, RopeScaling
from callboard.runner.weights import expected_shapes

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "max_position_embeddings": 1024,
}
LLAMA = ModelConfig(architecture="llama", tie_word_embeddings=True, **SIZES)
LLAMA3 = RopeScaling(kind="llama3", factor=8.0, original_max_position_embeddings=16)
GEMMA3 = ModelConfig(
    architecture="gemma3",
    tie_word_embeddings=True,
    qk_norm=True,
    output_norms=True,
    scale_embedding=True,
    sliding_window=8,
    sliding_layers=(True, True, False, True),
    rope_theta=1_000_000.0,
    rope_local_theta=10_000.0,
    query_pre_attn_scalar=11.0,
    hidden_act="gelu_tanh",
    **(SIZES | {"num_layers": 4}),
)
CONFIGS = {
    "llama": LLAMA,
    "untied head": ModelConfig(architecture="llama", **SIZES),
    "one head each": ModelConfig(architecture="llama", **(SIZES | {"num_kv_heads": 4})),
    "biases": ModelConfig(architecture="qwen2", attention_bias=True, **SIZES),
    "normalized heads": ModelConfig(architecture="qwen3", qk_norm=True, **(SIZES | {"head_dim": 16})),
    "llama3 scaling": ModelConfig(architecture="llama", rope_scaling=LLAMA3, **SIZES),
    "linear scaling": ModelConfig(architecture="llama", rope_scaling=RopeScaling(kind="linear", factor=4.0), **SIZES),
    "sliding window": ModelConfig(architecture="mistral", sliding_window=6, **SIZES),
    "gemma3": GEMMA3,
}

Weights = dict[str, torch.Tensor]


def random_weights(config: ModelConfig, seed: int = 0) -> Weights:
    """Float32 values large enough that every part of the model matters."""
    random = torch.Generator().manual_seed(seed)
    shapes = expected_shapes(config)
    if config.tie_word_embeddings:
        del shapes["head"]
    return {
        name: torch.randn(shape, generator=random) * (0.4 if len(shape) > 1 else 1.0) for name, shape in shapes.items()
    }


def reference_logits(config: ModelConfig, weights: Weights, tokens: list[int]) -> torch.Tensor:
    """Logits behind every token: float64 [tokens, vocabulary]."""
    w = {name: tensor.double() for name, tensor in weights.items()}
    x = w["embed"][tokens] * (math.sqrt(config.hidden_size) if config.scale_embedding else 1)
    for i, window in enumerate(config.windows):
        own = {name.split(".")[-1]: w[name] for name in w if name.startswith(f"layers.{i}.")}
        x = _layer(config, own, x, window)
    return _norm(x, w["norm"], config) @ w.get("head", w["embed"]).T


def greedy(config: ModelConfig, weights: Weights, prompt: list[int], count: int) -> list[int]:
    """The likeliest continuation of ``count`` tokens."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(reference_logits(config, weights, tokens)[-1].argmax()))
    return tokens[len(prompt) :]


def _layer(config: ModelConfig, w: Weights, x: torch.Tensor, window: int | None) -> torch.Tensor:
    attended = _attend(config, w, _norm(x, w["attn_norm"], config), window) @ w["o"].T
    x = x + (_norm(attended, w["attn_out_norm"], config) if config.output_norms else attended)
    h = _norm(x, w["mlp_norm"], config)
    y = (_activate(config, h @ w["gate"].T) * (h @ w["up"].T)) @ w["down"].T
    return x + (_norm(y, w["mlp_out_norm"], config) if config.output_norms else y)


def _activate(config: ModelConfig, x: torch.Tensor) -> torch.Tensor:
    if config.hidden_act == "silu":
        return x / (1 + torch.exp(-x))
    return x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _attend(config: ModelConfig, w: Weights, x: torch.Tensor, window: int | None) -> torch.Tensor:
    q, k, v = (_heads(config, w, x, name) for name in "qkv")  # [heads, tokens, head_dim]
    if config.qk_norm:
        q, k = _norm(q, w["q_norm"], config), _norm(k, w["k_norm"], config)
    q, k = (_rotate(config, heads, window is not None) for heads in (q, k))
    repeat = config.num_heads // config.num_kv_heads
    k, v = k.repeat_interleave(repeat, 0), v.repeat_interleave(repeat, 0)
    scores = q @ k.transpose(1, 2) / math.sqrt(config.query_pre_attn_scalar or config.head_dim)
    age = torch.arange(len(x)).unsqueeze(1) - torch.arange(len(x))  # of each key, seen from each query
    hidden = (age < 0) | (age >= (window or len(x)))
    shares = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return (shares @ v).transpose(0, 1).reshape(len(x), -1)


def _heads(config: ModelConfig, w: Weights, x: torch.Tensor, name: str) -> torch.Tensor:
    y = x @ w[name].T + w.get(f"{name}_bias", torch.zeros(()))
    return y.view(len(x), -1, config.head_dim).transpose(0, 1)


def _rotate(config: ModelConfig, heads: torch.Tensor, local: bool) -> torch.Tensor:
    half = config.head_dim // 2
    frequencies = torch.tensor([frequency(config, i, local) for i in range(half)], dtype=torch.float64)
    angles = torch.arange(heads.shape[1]).unsqueeze(1) * frequencies
    a, b = heads[..., :half], heads[..., half:]
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)


def frequency(config: ModelConfig, i: int, local: bool = False) -> float:
    """Radians per position of pair i, case by case as the papers put it."""
    if local and config.rope_local_theta is not None:
        return config.rope_local_theta ** (-2 * i / config.head_dim)
    plain = config.rope_theta ** (-2 * i / config.head_dim)
    scaling = config.rope_scaling
    if scaling is None:
        return plain
    if scaling.kind == "linear":
        return plain / scaling.factor
    wavelength = 2 * math.pi / plain
    trained, low, high = scaling.original_max_position_embeddings, scaling.low_freq_factor, scaling.high_freq_factor
    if wavelength < trained / high:
        return plain
    if wavelength > trained / low:
        return plain / scaling.factor
    smooth = (trained / wavelength - low) / (high - low)
    return (1 - smooth) * plain / scaling.factor + smooth * plain


def _norm(x: torch.Tensor, weight: torch.Tensor, config: ModelConfig) -> torch.Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + config.rms_norm_eps) * weight
