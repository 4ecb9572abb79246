"""Reads a model's sizes and flags from the metadata of a GGUF file."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..scheduler.errors import ModelLoadError
from .gguf_file import GgufFile
from .model_config import ModelConfig, RopeScaling, check_architecture, every_nth_is_full, unique_ids

_GEMMA3_PATTERN = 6  # every sixth layer sees all tokens, when the file does not say
_GEMMA3_27B_LAYERS = 62  # the format has no key for the scale of scores, and only this size has one of its own
_LLAMA3_DEFAULTS = (1.0, 4.0, 8192)  # low and high frequency factor, trained length: of every published Llama 3.x


def from_gguf(file: GgufFile) -> ModelConfig:
    """As ``ModelConfig.from_gguf``."""
    architecture = check_architecture(file.get("general.architecture", str), file.path)
    embed, heads = _embedding_shape(file), file.get(f"{architecture}.attention.head_count", int)
    head_dim = file.get(f"{architecture}.attention.key_length", int, embed[1] // max(heads, 1))
    _refuse_gguf_variants(file, architecture, head_dim, embed[1])
    theta = file.get(f"{architecture}.rope.freq_base", float, 10_000.0)
    layers = file.get(f"{architecture}.block_count", int)
    gemma = _gemma3(file, layers, embed[1] / heads, head_dim) if architecture == "gemma3" else {}
    return ModelConfig(
        architecture=architecture,
        vocab_size=embed[0],
        hidden_size=embed[1],
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=file.get(f"{architecture}.attention.head_count_kv", int, heads),
        head_dim=head_dim,
        intermediate_size=file.get(f"{architecture}.feed_forward_length", int),
        max_position_embeddings=file.get(f"{architecture}.context_length", int),
        rope_theta=theta,
        rope_scaling=_gguf_scaling(file, architecture, theta, head_dim),
        rms_norm_eps=file.get(f"{architecture}.attention.layer_norm_rms_epsilon", float),
        tie_word_embeddings="output.weight" not in file.tensors,  # the format has no flag: absence means tied
        attention_bias=architecture == "qwen2",
        qk_norm=architecture in ("qwen3", "gemma3"),
        sliding_window=file.maybe(f"{architecture}.attention.sliding_window", int) or None,
        bos_token_id=file.maybe("tokenizer.ggml.bos_token_id", int),
        eos_token_ids=_gguf_eos(file),
        weights_id=file.identity(),
        **gemma,
    )


def _gemma3(file: GgufFile, layers: int, width: float, head_dim: int) -> dict[str, Any]:
    """What the architecture implies, and the few keys of its own."""
    if file.get("gemma3.final_logit_softcapping", float, 0.0) or file.get("gemma3.attn_logit_softcapping", float, 0.0):
        raise ModelLoadError(f"{file.path}: soft-capping of logits is not supported")
    pattern = file.get("gemma3.attention.sliding_window_pattern", int, _GEMMA3_PATTERN)
    return {
        "output_norms": True,
        "scale_embedding": True,
        "hidden_act": "gelu_tanh",
        "sliding_layers": every_nth_is_full(layers, pattern),
        "rope_local_theta": file.get("gemma3.rope.freq_base_swa", float, 10_000.0),
        "query_pre_attn_scalar": width if layers == _GEMMA3_27B_LAYERS else float(head_dim),
    }


def _embedding_shape(file: GgufFile) -> tuple[int, ...]:
    tensor = file.tensors.get("token_embd.weight")
    if tensor is None or len(tensor.shape) != 2:
        got = "none" if tensor is None else f"shape {tensor.shape}"
        raise ModelLoadError(f"{file.path}: tensor token_embd.weight: got {got}, expected a matrix")
    return tensor.shape


def _refuse_gguf_variants(file: GgufFile, architecture: str, head_dim: int, hidden: int) -> None:
    if file.get(f"{architecture}.embedding_length", int, hidden) != hidden:
        stated = file.metadata[f"{architecture}.embedding_length"]
        raise ModelLoadError(f"{file.path}: embedding_length is {stated}, but token_embd.weight has {hidden} columns")
    if file.get(f"{architecture}.expert_count", int, 0):
        raise ModelLoadError(f"{file.path}: mixtures of experts are not supported")
    for key in ("rope.dimension_count", "attention.value_length"):
        if (size := file.get(f"{architecture}.{key}", int, head_dim)) != head_dim:
            raise ModelLoadError(f"{file.path}: {key} is {size}, supported only equal to the head size {head_dim}")


def _gguf_scaling(file: GgufFile, architecture: str, theta: float, head_dim: int) -> RopeScaling | None:
    """From ``rope.scaling.*``, or from the divisors that converters of Llama 3.x write as ``rope_freqs.weight``."""
    kind = file.get(f"{architecture}.rope.scaling.type", str, "none")
    if kind not in ("none", "linear"):
        raise ModelLoadError(f"{file.path}: rope scaling {kind!r} is not supported; supported: linear, llama3")
    if "rope_freqs.weight" in file.tensors:
        return _llama3_from_divisors(file, theta, head_dim)
    old_key = file.get(f"{architecture}.rope.scale_linear", float, 1.0)
    factor = file.get(f"{architecture}.rope.scaling.factor", float, old_key)
    return None if factor in (0.0, 1.0) else RopeScaling(kind="linear", factor=factor)


def _llama3_from_divisors(file: GgufFile, theta: float, head_dim: int) -> RopeScaling:
    """Find the factor whose llama3 divisors are those of the file, since the parameters themselves are not in it."""
    if file.tensors["rope_freqs.weight"].kind != "F32":
        raise ModelLoadError(f"{file.path}: rope_freqs.weight is not F32")
    stated = file.data("rope_freqs.weight").view(np.float32).ravel()
    low, high, length = _LLAMA3_DEFAULTS
    factor = float(stated.max())
    turns = length * theta ** (-np.arange(0, head_dim, 2) / head_dim) / (2 * np.pi)  # over the trained length
    blend = np.clip((turns - low) / (high - low), 0, 1)
    if stated.shape != turns.shape or not np.allclose(stated, 1 / ((1 - blend) / factor + blend), rtol=1e-3):
        raise ModelLoadError(f"{file.path}: rope_freqs.weight is not llama3 scaling of a trained length of {length}")
    return RopeScaling(
        kind="llama3",
        factor=round(factor, 4),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position_embeddings=length,
    )


def _gguf_eos(file: GgufFile) -> tuple[int, ...]:
    """End of text, of turn and of message: any of them ends an answer."""
    return unique_ids(*(file.maybe(f"tokenizer.ggml.{name}_token_id", int) for name in ("eos", "eot", "eom")))
