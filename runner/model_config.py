"""What a model's files say of its shape: one record for all decoders that are computed here, which differ by flags."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from ..scheduler.errors import ConfigError, ModelLoadError
from .gguf_file import GgufFile
from .hf_folder import HfFolder

SUPPORTED = ("llama", "mistral", "qwen2", "qwen3", "gemma3")


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
    """Sizes and flags of a decoder.

    Args:
        architecture: "llama", "mistral", "qwen2", "qwen3" or "gemma3".
        intermediate_size: width inside the gated MLP.
        max_position_embeddings: most tokens of a text that the model was made for.
        rms_norm_eps: added to the mean square under the root.
        tie_word_embeddings: the output matrix is the embedding when the weights hold no other.
        attention_bias: Q, K and V have biases (qwen2).
        qk_norm: Q and K heads are normalized before the rotation (qwen3, gemma3).
        output_norms: what attention and MLP give is normalized before it is added (gemma3).
        scale_embedding: the embedding is multiplied by the root of its width (gemma3).
        sliding_window: how many tokens a token sees in the layers that have a window, itself included; None: no layer
            has one.
        sliding_layers: for each layer whether it has the window; empty: all have it.
        rope_local_theta: the rotation's base in layers with a window, which then take no scaling; None: as elsewhere.
        query_pre_attn_scalar: scores are divided by its root; None: by that of ``head_dim``.
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
    output_norms: bool = False
    scale_embedding: bool = False
    sliding_window: int | None = None
    sliding_layers: tuple[bool, ...] = ()
    rope_local_theta: float | None = None
    query_pre_attn_scalar: float | None = None
    hidden_act: Literal["silu", "gelu_tanh"] = "silu"
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
        if self.sliding_window is not None and self.sliding_window < 1:
            raise ModelLoadError(f"sliding_window is {self.sliding_window}, the least is 1")
        if self.sliding_layers and len(self.sliding_layers) != self.num_layers:
            raise ModelLoadError(f"{len(self.sliding_layers)} layer types are named for {self.num_layers} layers")

    @property
    def windows(self) -> tuple[int | None, ...]:
        """For each layer how many tokens a token sees, None for all."""
        return tuple(self.sliding_window if slides else None for slides in self.sliding_layers) or (
            (self.sliding_window,) * self.num_layers
        )

    def check_length(self, max_model_len: int) -> None:
        """Raise ConfigError for a length that the model was not made for."""
        if max_model_len > self.max_position_embeddings:
            limit = self.max_position_embeddings
            raise ConfigError(f"max_model_len is {max_model_len}, but the model was made for {limit} tokens")

    @classmethod
    def from_hf(cls, folder: HfFolder | str | Path) -> ModelConfig:
        """From ``config.json`` and ``generation_config.json`` (Hugging Face's names, of version 4 and 5).

        Raises:
            ModelLoadError: an architecture, rope scaling, activation or bias that is not supported; a value missing
                or of the wrong type.
        """
        from .hf_config import from_hf  # noqa: PLC0415  it imports this module

        return from_hf(folder if isinstance(folder, HfFolder) else HfFolder(folder))

    @classmethod
    def from_gguf(cls, file: GgufFile | str | Path) -> ModelConfig:
        """From a GGUF file's metadata (names of ggml's ``docs/gguf.md``).

        Raises:
            ModelLoadError: as for ``from_hf``.
        """
        from .gguf_config import from_gguf  # noqa: PLC0415  it imports this module

        return from_gguf(file if isinstance(file, GgufFile) else GgufFile(file))


_POSITIVE = (
    *("vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "intermediate_size"),
    *("max_position_embeddings", "rope_theta", "rms_norm_eps"),
)


def check_architecture(name: object, where: Path) -> str:
    """Raises ModelLoadError for an architecture that is not of the family."""
    if name not in SUPPORTED:
        raise ModelLoadError(f"{where}: architecture {name!r} is not supported; supported: {', '.join(SUPPORTED)}")
    return str(name)


def every_nth_is_full(num_layers: int, n: int) -> tuple[bool, ...]:
    """``sliding_layers`` of models that name a pattern: of ``n`` layers the last has no window."""
    if n < 1:
        raise ModelLoadError(f"the pattern of sliding windows is {n}, the least is 1")
    return tuple(bool((i + 1) % n) for i in range(num_layers))


def unique_ids(*groups: int | list[int] | None) -> tuple[int, ...]:
    """All ids once, in the order in which they are named."""
    ids: list[int] = []
    for group in groups:
        ids += [] if group is None else group if isinstance(group, list) else [group]
    return tuple(dict.fromkeys(ids))
