"""What a model's files say of its shape: one record for the whole llama family, whose members differ by flags."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from ..scheduler.errors import ConfigError, ModelLoadError
from .gguf_file import GgufFile
from .hf_folder import HfFolder

SUPPORTED = ("llama", "mistral", "qwen2", "qwen3")


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


def unique_ids(*groups: int | list[int] | None) -> tuple[int, ...]:
    """All ids once, in the order in which they are named."""
    ids: list[int] = []
    for group in groups:
        ids += [] if group is None else group if isinstance(group, list) else [group]
    return tuple(dict.fromkeys(ids))
