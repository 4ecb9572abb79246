"""Reads a model's sizes and flags from a Hugging Face folder's ``config.json`` and ``generation_config.json``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ..scheduler.errors import ModelLoadError
from .hf_folder import HfFolder
from .model_config import ModelConfig, RopeScaling, check_architecture, every_nth_is_full, unique_ids

T = TypeVar("T")

_HEAD_DIM = {"qwen3": 128, "gemma3": 256}  # when the file does not say; elsewhere the heads share the width


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
    architecture = _architecture(c)
    gemma = architecture == "gemma3"
    _refuse_hf_variants(c, architecture)
    heads, hidden = c.get("num_attention_heads", int), c.get("hidden_size", int)
    layers, window = c.get("num_hidden_layers", int), _hf_window(c, architecture)
    theta, scaling = _gemma3_rope(c) if gemma else _hf_rope(c, c.maybe("rope_parameters", dict))
    ids = int | list[int]
    return ModelConfig(
        architecture=architecture,
        vocab_size=c.get("vocab_size", int),
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=c.get("num_key_value_heads", int, heads),
        head_dim=c.get("head_dim", int, _HEAD_DIM.get(architecture, hidden // max(heads, 1))),
        intermediate_size=c.get("intermediate_size", int),
        max_position_embeddings=c.get("max_position_embeddings", int),
        rope_theta=theta,
        rope_scaling=scaling,
        rms_norm_eps=c.get("rms_norm_eps", float, 1e-6),
        tie_word_embeddings=c.get("tie_word_embeddings", bool, gemma),
        attention_bias=architecture == "qwen2",
        qk_norm=architecture in ("qwen3", "gemma3"),
        output_norms=gemma,
        scale_embedding=gemma,
        sliding_window=window,
        sliding_layers=_sliding_layers(c, architecture, layers) if window else (),
        rope_local_theta=_gemma3_local_theta(c) if gemma else None,
        query_pre_attn_scalar=c.get("query_pre_attn_scalar", float, 256.0) if gemma else None,
        hidden_act="gelu_tanh" if gemma else "silu",
        bos_token_id=_first(c.maybe("bos_token_id", ids), generation.maybe("bos_token_id", ids)),
        eos_token_ids=unique_ids(c.maybe("eos_token_id", ids), generation.maybe("eos_token_id", ids)),
        weights_id=folder.identity(),
    )


def _first(*groups: int | list[int] | None) -> int | None:
    return next(iter(unique_ids(*groups)), None)


def _architecture(c: _Json) -> str:
    """The name that GGUF has for it too; a Gemma 3 that sees is another one than that of text alone."""
    kind = c.maybe("model_type", str)
    return check_architecture({"gemma3_text": "gemma3", "gemma3": "gemma3 (with images)"}.get(kind, kind), c.where)


def _refuse_hf_variants(c: _Json, architecture: str) -> None:
    """Flags of the family that would change the numbers and are not computed."""
    key, wanted = ("hidden_activation", "gelu_pytorch_tanh") if architecture == "gemma3" else ("hidden_act", "silu")
    if (activation := c.get(key, str, wanted)) != wanted:
        raise ModelLoadError(f"{c.where}: {key} {activation!r} is not supported; supported: {wanted}")
    for flag in ("final_logit_softcapping", "attn_logit_softcapping", "use_bidirectional_attention"):
        if c.values.get(flag):
            raise ModelLoadError(f"{c.where}: {flag} is not supported")
    for flag in ("mlp_bias", "attention_bias"):  # attention_bias would add one to the output projection too
        if c.get(flag, bool, False):
            raise ModelLoadError(f"{c.where}: {flag} is not supported for {architecture}")
    if (partial := c.get("partial_rotary_factor", float, 1.0)) != 1.0:
        raise ModelLoadError(f"{c.where}: partial_rotary_factor {partial} is not supported; supported: 1.0")
    if "quantization_config" in c.values:
        raise ModelLoadError(f"{c.where}: quantized safetensors (quantization_config) are not supported")


def _hf_rope(
    c: _Json, parameters: dict[str, Any] | None, default: float = 10_000.0
) -> tuple[float, RopeScaling | None]:
    """Base and scaling: ``rope_theta`` with ``rope_scaling``, or both inside ``rope_parameters`` (version 5)."""
    r = _Json(parameters or c.maybe("rope_scaling", dict) or {}, c.where)
    theta = r.get("rope_theta", float, c.get("rope_theta", float, default))
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


def _gemma3_rope(c: _Json) -> tuple[float, RopeScaling | None]:
    """Of the layers that see all tokens; version 5 has parameters for each kind of layer."""
    kinds = _Json(c.maybe("rope_parameters", dict) or {}, c.where)
    return _hf_rope(c, kinds.maybe("full_attention", dict), default=1_000_000.0)


def _gemma3_local_theta(c: _Json) -> float:
    kinds = _Json(c.maybe("rope_parameters", dict) or {}, c.where)
    local = _Json(kinds.maybe("sliding_attention", dict) or {}, c.where)
    if (kind := local.get("rope_type", str, "default")) != "default":
        raise ModelLoadError(f"{c.where}: rope scaling {kind!r} of windows is not supported; supported: default")
    return local.get("rope_theta", float, c.get("rope_local_base_freq", float, 10_000.0))


def _sliding_layers(c: _Json, architecture: str, layers: int) -> tuple[bool, ...]:
    """From ``layer_types``, or from what stood for them in version 4."""
    if (types := c.maybe("layer_types", list[str])) is not None:
        if unknown := set(types) - {"sliding_attention", "full_attention"}:
            raise ModelLoadError(f"{c.where}: layer type {min(unknown)!r} is not supported")
        return tuple(kind == "sliding_attention" for kind in types)
    if architecture == "gemma3":
        return every_nth_is_full(layers, c.get("sliding_window_pattern", int, 6))
    if architecture.startswith("qwen"):
        first = c.get("max_window_layers", int, 28)
        return tuple(i >= first for i in range(layers))
    return ()


def _hf_window(c: _Json, architecture: str) -> int | None:
    """Qwen files name a window that ``use_sliding_window`` turns on; in the others naming it is enough."""
    used = c.get("use_sliding_window", bool, not architecture.startswith("qwen"))
    return c.maybe("sliding_window", int) if used else None
