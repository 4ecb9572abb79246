"""Reads a model's sizes and flags from a Hugging Face folder's ``config.json`` and ``generation_config.json``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ..scheduler.errors import ModelLoadError
from .hf_folder import HfFolder
from .model_config import ModelConfig, RopeScaling, check_architecture, unique_ids

T = TypeVar("T")


class _Json:
    """A JSON object read with types; null counts as absent."""

    def __init__(self, values: dict[str, Any], where: Path) -> None:
        self.values, self.where = values, where

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        value = self.maybe(key, kind)
        if value is None and default is None:
            raise ModelLoadError(f"{self.where} has no {key}")
        return default if value is None else value  # pyright: ignore[reportReturnType]  narrowed above

    def maybe(self, key: str, kind: Any) -> Any:
        value = self.values.get(key)
        if value is None:
            return None
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            raise ModelLoadError(f"{self.where}: {key} is {value!r}: {error}") from None


def from_hf(folder: HfFolder) -> ModelConfig:
    """As ``ModelConfig.from_hf``."""
    where = folder.path / "config.json"
    c = _Json(folder.config, where)
    generation = _Json(folder.json("generation_config.json") or {}, folder.path / "generation_config.json")
    architecture = check_architecture(c.maybe("model_type", str), where)
    _refuse_hf_variants(c, architecture)
    heads, hidden = c.get("num_attention_heads", int), c.get("hidden_size", int)
    theta, scaling = _hf_rope(c)
    ids = int | list[int]
    return ModelConfig(
        architecture=architecture,
        vocab_size=c.get("vocab_size", int),
        hidden_size=hidden,
        num_layers=c.get("num_hidden_layers", int),
        num_heads=heads,
        num_kv_heads=c.get("num_key_value_heads", int, heads),
        head_dim=c.get("head_dim", int, 128 if architecture == "qwen3" else hidden // max(heads, 1)),
        intermediate_size=c.get("intermediate_size", int),
        max_position_embeddings=c.get("max_position_embeddings", int),
        rope_theta=theta,
        rope_scaling=scaling,
        rms_norm_eps=c.get("rms_norm_eps", float, 1e-6),
        tie_word_embeddings=c.get("tie_word_embeddings", bool, False),
        attention_bias=architecture == "qwen2",
        qk_norm=architecture == "qwen3",
        sliding_window=_hf_window(c, architecture),
        bos_token_id=_first(c.maybe("bos_token_id", ids), generation.maybe("bos_token_id", ids)),
        eos_token_ids=unique_ids(c.maybe("eos_token_id", ids), generation.maybe("eos_token_id", ids)),
        weights_id=folder.identity(),
    )


def _first(*groups: int | list[int] | None) -> int | None:
    return next(iter(unique_ids(*groups)), None)


def _refuse_hf_variants(c: _Json, architecture: str) -> None:
    """Flags of the family that would change the numbers and are not computed."""
    if (activation := c.get("hidden_act", str, "silu")) != "silu":
        raise ModelLoadError(f"{c.where}: hidden_act {activation!r} is not supported; supported: silu")
    for flag in ("mlp_bias", "attention_bias"):  # attention_bias would add one to the output projection too
        if c.get(flag, bool, False):
            raise ModelLoadError(f"{c.where}: {flag} is not supported for {architecture}")
    if (partial := c.get("partial_rotary_factor", float, 1.0)) != 1.0:
        raise ModelLoadError(f"{c.where}: partial_rotary_factor {partial} is not supported; supported: 1.0")
    if "quantization_config" in c.values:
        raise ModelLoadError(f"{c.where}: quantized safetensors (quantization_config) are not supported")


def _hf_rope(c: _Json) -> tuple[float, RopeScaling | None]:
    """Base and scaling: ``rope_theta`` with ``rope_scaling``, or both inside ``rope_parameters`` (version 5)."""
    values = c.maybe("rope_parameters", dict) or c.maybe("rope_scaling", dict) or {}
    r = _Json(values, c.where)
    theta = r.get("rope_theta", float, c.get("rope_theta", float, 10_000.0))
    kind = r.maybe("rope_type", str) or r.maybe("type", str) or "default"
    if kind == "default":
        return theta, None
    if kind == "linear":
        return theta, RopeScaling(kind="linear", factor=r.get("factor", float))
    if kind == "llama3":
        return theta, RopeScaling(
            kind="llama3",
            factor=r.get("factor", float),
            low_freq_factor=r.get("low_freq_factor", float),
            high_freq_factor=r.get("high_freq_factor", float),
            original_max_position_embeddings=r.get("original_max_position_embeddings", int),
        )
    raise ModelLoadError(f"{c.where}: rope scaling {kind!r} is not supported; supported: linear, llama3")


def _hf_window(c: _Json, architecture: str) -> int | None:
    """Qwen files name a window that ``use_sliding_window`` turns on; in the others naming it is enough."""
    used = c.get("use_sliding_window", bool, not architecture.startswith("qwen"))
    return c.maybe("sliding_window", int) if used else None
