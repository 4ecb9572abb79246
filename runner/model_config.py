"""What a model's files say of its shape: one record for the whole llama family, whose members differ by flags."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from ..scheduler.errors import ConfigError, ModelLoadError
from .gguf_file import GgufFile
from .hf_folder import HfFolder

SUPPORTED = ("llama", "mistral", "qwen2", "qwen3")
_LLAMA3_DEFAULTS = (1.0, 4.0, 8192)  # low and high frequency factor, trained length: of every published Llama 3.x
T = TypeVar("T")


class RopeScaling(msgspec.Struct, frozen=True, kw_only=True):
    """How rotation frequencies are stretched beyond the trained length.

    Args:
        kind: "linear" divides every frequency by ``factor``; "llama3" only those whose wavelength is longer than
            ``original_max_position_embeddings / low_freq_factor``, none of those shorter than
            ``.. / high_freq_factor``, and blends between (Llama 3.1's reference ``model.py``, ``apply_scaling``).
        original_max_position_embeddings: length in tokens that the model was trained on; only for "llama3".
    """

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 0


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and flags of a decoder of the llama family.

    Args:
        architecture: "llama", "mistral", "qwen2" or "qwen3".
        intermediate_size: width inside the gated MLP.
        max_position_embeddings: most tokens of a text that the model was made for.
        rms_norm_eps: added to the mean square under the root.
        tie_word_embeddings: the output matrix is the embedding when the weights hold no other.
        attention_bias: Q, K and V have biases (qwen2).
        qk_norm: Q and K heads are normalized before the rotation (qwen3).
        sliding_window: a token sees only so many; None for all. See ``check_length``.
        eos_token_ids: every token that ends a text, without repeats.
        weights_id: digest that tells these weights from others.

    Raises:
        ModelLoadError: sizes that contradict each other.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    max_position_embeddings: int
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    hidden_act: Literal["silu"] = "silu"
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    weights_id: str = ""

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if getattr(self, name) <= 0:
                raise ModelLoadError(f"{name} is {getattr(self, name)}, expected more than 0")
        if self.num_heads % self.num_kv_heads:
            raise ModelLoadError(f"num_heads {self.num_heads} is no multiple of num_kv_heads {self.num_kv_heads}")
        if self.head_dim % 2:
            raise ModelLoadError(f"head_dim is {self.head_dim}, expected an even number")

    def check_length(self, max_model_len: int) -> None:
        """Refuse a length that the model was not made for.

        Raises:
            ConfigError: longer than ``max_position_embeddings``, or than the sliding window: attention here is over
                all tokens, which is the same only while the text fits the window.
        """
        if max_model_len > self.max_position_embeddings:
            limit = self.max_position_embeddings
            raise ConfigError(f"max_model_len is {max_model_len}, but the model was made for {limit} tokens")
        if self.sliding_window is not None and max_model_len > self.sliding_window:
            raise ConfigError(
                f"max_model_len is {max_model_len}, but the model attends through a sliding window of "
                f"{self.sliding_window} tokens, which is not supported: set max_model_len to at most that"
            )

    @classmethod
    def from_hf(cls, folder: HfFolder | str | Path) -> ModelConfig:
        """From ``config.json`` and ``generation_config.json`` (Hugging Face's names, of version 4 and 5).

        Raises:
            ModelLoadError: an architecture, rope scaling, activation or bias that is not supported; a value missing
                or of the wrong type.
        """
        return _from_hf(folder if isinstance(folder, HfFolder) else HfFolder(folder))

    @classmethod
    def from_gguf(cls, file: GgufFile | str | Path) -> ModelConfig:
        """From a GGUF file's metadata (names of ggml's ``docs/gguf.md``).

        Raises:
            ModelLoadError: as for ``from_hf``.
        """
        return _from_gguf(file if isinstance(file, GgufFile) else GgufFile(file))


_POSITIVE = (
    *("vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "intermediate_size"),
    *("max_position_embeddings", "rope_theta", "rms_norm_eps"),
)


def _check_architecture(name: object, where: Path) -> str:
    if name not in SUPPORTED:
        raise ModelLoadError(f"{where}: architecture {name!r} is not supported; supported: {', '.join(SUPPORTED)}")
    return str(name)


def _unique(*groups: int | list[int] | None) -> tuple[int, ...]:
    """All ids once, in the order in which they are named."""
    ids: list[int] = []
    for group in groups:
        ids += [] if group is None else group if isinstance(group, list) else [group]
    return tuple(dict.fromkeys(ids))


# --- Hugging Face ---


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


def _from_hf(folder: HfFolder) -> ModelConfig:
    where = folder.path / "config.json"
    c = _Json(folder.config, where)
    generation = _Json(folder.json("generation_config.json") or {}, folder.path / "generation_config.json")
    architecture = _check_architecture(c.maybe("model_type", str), where)
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
        eos_token_ids=_unique(c.maybe("eos_token_id", ids), generation.maybe("eos_token_id", ids)),
        weights_id=folder.identity(),
    )


def _first(*groups: int | list[int] | None) -> int | None:
    return next(iter(_unique(*groups)), None)


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


# --- GGUF ---


def _from_gguf(file: GgufFile) -> ModelConfig:
    architecture = _check_architecture(file.get("general.architecture", str), file.path)
    embed, heads = _embedding_shape(file), file.get(f"{architecture}.attention.head_count", int)
    head_dim = file.get(f"{architecture}.attention.key_length", int, embed[1] // max(heads, 1))
    _refuse_gguf_variants(file, architecture, head_dim, embed[1])
    theta = file.get(f"{architecture}.rope.freq_base", float, 10_000.0)
    return ModelConfig(
        architecture=architecture,
        vocab_size=embed[0],
        hidden_size=embed[1],
        num_layers=file.get(f"{architecture}.block_count", int),
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
        qk_norm=architecture == "qwen3",
        sliding_window=file.maybe(f"{architecture}.attention.sliding_window", int) or None,
        bos_token_id=file.maybe("tokenizer.ggml.bos_token_id", int),
        eos_token_ids=_gguf_eos(file),
        weights_id=file.identity(),
    )


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
    import numpy as np  # noqa: PLC0415

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
    return _unique(*(file.maybe(f"tokenizer.ggml.{name}_token_id", int) for name in ("eos", "eot", "eom")))
