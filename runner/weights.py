"""Loads weights into torch tensors under neutral names, whatever the file calls and packs them.

Names: ``embed``, ``norm``, ``head`` (absent when the embedding is shared), and for each layer ``layers.{i}.`` with
``attn_norm, mlp_norm, q, k, v, o, gate, up, down`` and, where the model has them, ``q_bias, k_bias, v_bias, q_norm,
k_norm, attn_out_norm, mlp_out_norm``. A norm is the factor itself, also where a file holds it less 1. A matrix is
(outputs, inputs), as ``torch.nn.functional.linear`` takes it. Rows of Q and K are in Hugging Face's order: element i of
a head is rotated with element i + head_dim / 2.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Protocol

import numpy as np
import structlog
import torch

from ..scheduler.errors import ModelLoadError
from .gguf_file import GgufFile, GgufTensor
from .hf_folder import HfFolder
from .model_config import ModelConfig
from .model_source import ModelSource

log: Any = structlog.get_logger(__name__)

# neutral -> (Hugging Face, GGUF)
_TOP = {
    "embed": ("model.embed_tokens.weight", "token_embd.weight"),
    "norm": ("model.norm.weight", "output_norm.weight"),
    "head": ("lm_head.weight", "output.weight"),
}
_LAYER = {
    "attn_norm": ("input_layernorm.weight", "attn_norm.weight"),
    "mlp_norm": ("post_attention_layernorm.weight", "ffn_norm.weight"),
    "attn_out_norm": ("post_attention_layernorm.weight", "post_attention_norm.weight"),
    "mlp_out_norm": ("post_feedforward_layernorm.weight", "post_ffw_norm.weight"),
    "q": ("self_attn.q_proj.weight", "attn_q.weight"),
    "k": ("self_attn.k_proj.weight", "attn_k.weight"),
    "v": ("self_attn.v_proj.weight", "attn_v.weight"),
    "o": ("self_attn.o_proj.weight", "attn_output.weight"),
    "q_bias": ("self_attn.q_proj.bias", "attn_q.bias"),
    "k_bias": ("self_attn.k_proj.bias", "attn_k.bias"),
    "v_bias": ("self_attn.v_proj.bias", "attn_v.bias"),
    "q_norm": ("self_attn.q_norm.weight", "attn_q_norm.weight"),
    "k_norm": ("self_attn.k_norm.weight", "attn_k_norm.weight"),
    "gate": ("mlp.gate_proj.weight", "ffn_gate.weight"),
    "up": ("mlp.up_proj.weight", "ffn_up.weight"),
    "down": ("mlp.down_proj.weight", "ffn_down.weight"),
}
_HARMLESS = ("rotary_emb.inv_freq", "rope_freqs.weight")  # tables that the configuration already implies
_PERMUTED = ("llama", "mistral")  # architectures whose Q and K rows GGUF converters reorder
_LESS_ONE = ("gemma3",)  # architectures whose Hugging Face files hold norms less 1; GGUF converters add it
_CHUNK_ELEMENTS = 1 << 18  # 1 MiB of float32: the dequantizer's temporaries stay in the cache

Shape = tuple[int, ...]


class _TensorStore(Protocol):
    """Tensors by the names of their files."""

    def shapes(self) -> dict[str, Shape]: ...

    def read(self, name: str, dtype: torch.dtype, permuted_heads: int) -> torch.Tensor:
        """The tensor in ``dtype``; rows are put back in order when ``permuted_heads`` is not 0."""
        ...


def load_weights(
    source: ModelSource | HfFolder | GgufFile, config: ModelConfig, dtype: torch.dtype = torch.float32
) -> dict[str, torch.Tensor]:
    """Every tensor of the model under its neutral name, on the CPU.

    Tensors of a safetensors file that is already in ``dtype`` are views of the mapped file: do not write to them.

    Args:
        source: the opened files; ``resolve_model`` gives one.
        config: the same model's configuration.
        dtype: of the result; values are computed in float32 and rounded once. Norms of Gemma 3 stay float32.

    Raises:
        ModelLoadError: a tensor is missing, unexpected inside a layer, or has another shape; a file is damaged.
    """
    if isinstance(source, ModelSource):
        source = source.gguf if source.is_gguf else source.folder
    with ExitStack() as stack:
        store: _TensorStore = _GgufStore(source) if isinstance(source, GgufFile) else _HfStore(source, stack)
        if config.num_layers > len(found := store.shapes()):
            raise ModelLoadError(f"{source.path} has {len(found)} tensors, too few for {config.num_layers} layers")
        names = {neutral: gguf if isinstance(source, GgufFile) else hf for neutral, (hf, gguf) in _names(config)}
        wanted = _match(found, names, config, str(source.path))
        permuted = isinstance(source, GgufFile) and config.architecture in _PERMUTED
        weights = _read_all(store, wanted, config, dtype, permuted)
        if config.architecture in _LESS_ONE and not isinstance(source, GgufFile):
            weights |= {name: weight + 1.0 for name, weight in weights.items() if name.endswith("norm")}
        return _drop_equal_head(weights, config)


def expected_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Shape of every neutral name that the model computes with; ``head`` included, tied or not."""
    shapes: dict[str, Shape] = {
        "embed": (config.vocab_size, config.hidden_size),
        "norm": (config.hidden_size,),
        "head": (config.vocab_size, config.hidden_size),
    }
    layer = _layer_shapes(config)
    shapes.update({f"layers.{i}.{name}": shape for i in range(config.num_layers) for name, shape in layer.items()})
    return shapes


def _layer_shapes(config: ModelConfig) -> dict[str, Shape]:
    hidden, inner = config.hidden_size, config.intermediate_size
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, Shape] = {"attn_norm": (hidden,), "mlp_norm": (hidden,)}
    shapes |= {"q": (q, hidden), "k": (kv, hidden), "v": (kv, hidden), "o": (hidden, q)}
    if config.attention_bias:
        shapes |= {"q_bias": (q,), "k_bias": (kv,), "v_bias": (kv,)}
    if config.qk_norm:
        shapes |= {"q_norm": (config.head_dim,), "k_norm": (config.head_dim,)}
    if config.output_norms:
        shapes |= {"attn_out_norm": (hidden,), "mlp_out_norm": (hidden,)}
    return shapes | {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}


def _names(config: ModelConfig) -> Iterator[tuple[str, tuple[str, str]]]:
    yield from _TOP.items()
    for i in range(config.num_layers):
        for name in _layer_shapes(config):
            hf, gguf = _LAYER[name]
            if name == "mlp_norm" and config.output_norms:  # there the other name is that of attention's output
                hf = "pre_feedforward_layernorm.weight"
            yield f"layers.{i}.{name}", (f"model.layers.{i}.{hf}", f"blk.{i}.{gguf}")


def _match(found: dict[str, Shape], names: dict[str, str], config: ModelConfig, where: str) -> dict[str, str]:
    """Neutral name -> file's name for every tensor to read, after all of them were checked."""
    wanted = dict(names)
    if names["head"] not in found:
        if not config.tie_word_embeddings:
            raise ModelLoadError(f"{where}: no tensor {names['head']}, and the model does not tie its embeddings")
        del wanted["head"]
    for neutral, shape in expected_shapes(config).items():
        if neutral in wanted and found.get(wanted[neutral]) != shape:
            got = f"shape {found[wanted[neutral]]}" if wanted[neutral] in found else "none"
            raise ModelLoadError(f"{where}: tensor {wanted[neutral]}: got {got}, expected shape {shape}")
    _report_unexpected(found.keys() - set(names.values()), config, where)
    return wanted


def _report_unexpected(extra: set[str], config: ModelConfig, where: str) -> None:
    """A tensor inside a layer that is not computed with would change the numbers: refused. Others are logged."""
    extra = {name for name in extra if not name.endswith(_HARMLESS)}
    layers = tuple(f"{prefix}.{i}." for i in range(config.num_layers) for prefix in ("model.layers", "blk"))
    if inside := sorted(name for name in extra if name.startswith(layers)):
        raise ModelLoadError(f"{where}: unexpected tensor {inside[0]} in {config.architecture} ({len(inside)} in all)")
    if extra:
        log.warning("unexpected_tensors", path=where, count=len(extra), first=sorted(extra)[:5])


def _read_all(
    store: _TensorStore, wanted: dict[str, str], config: ModelConfig, dtype: torch.dtype, permuted: bool
) -> dict[str, torch.Tensor]:
    def read(neutral: str) -> torch.Tensor:
        heads = _rotated_heads(neutral, config) if permuted else 0
        # Rounded after 1 is added, these norms would lose most of their digits.
        exact = config.architecture in _LESS_ONE and neutral.endswith("norm")
        return store.read(wanted[neutral], torch.float32 if exact else dtype, heads)

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1), thread_name_prefix="weights") as threads:
        return dict(zip(wanted, threads.map(read, wanted), strict=True))


def _rotated_heads(neutral: str, config: ModelConfig) -> int:
    """Heads whose rows the converter reordered; 0 for tensors that are not rotated."""
    match neutral.rpartition(".")[2]:
        case "q" | "q_bias":
            return config.num_heads
        case "k" | "k_bias":
            return config.num_kv_heads
        case _:
            return 0


def _drop_equal_head(weights: dict[str, torch.Tensor], config: ModelConfig) -> dict[str, torch.Tensor]:
    """A tied model whose file repeats the embedding as its output matrix needs it once."""
    if config.tie_word_embeddings and "head" in weights and torch.equal(weights["head"], weights["embed"]):
        del weights["head"]
    return weights


class _HfStore:
    """Tensors of the safetensors files of a folder, memory-mapped."""

    def __init__(self, folder: HfFolder, stack: ExitStack) -> None:
        from safetensors import SafetensorError, safe_open  # noqa: PLC0415  only for models in this layout

        self._opened: dict[str, Any] = {}
        for file in folder.weight_files():
            try:
                opened = stack.enter_context(safe_open(file, framework="pt"))
            except (SafetensorError, OSError) as error:
                raise ModelLoadError(f"{file} is damaged or no safetensors file: {error}") from error
            self._opened.update(dict.fromkeys(opened.keys(), opened))

    def shapes(self) -> dict[str, Shape]:
        return {name: tuple(file.get_slice(name).get_shape()) for name, file in self._opened.items()}

    def read(self, name: str, dtype: torch.dtype, permuted_heads: int) -> torch.Tensor:  # noqa: ARG002
        tensor: torch.Tensor = self._opened[name].get_tensor(name)
        if not tensor.is_floating_point():
            raise ModelLoadError(f"tensor {name} is {tensor.dtype}, expected a floating type")
        return tensor.to(dtype)


class _GgufStore:
    """Tensors of a GGUF file, dequantized piece by piece."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file

    def shapes(self) -> dict[str, Shape]:
        return {name: tensor.shape for name, tensor in self._file.tensors.items()}

    def read(self, name: str, dtype: torch.dtype, permuted_heads: int) -> torch.Tensor:
        tensor, packed = self._file.tensors[name], self._file.data(name)
        if permuted_heads:
            packed = _restore_rows(packed.reshape(tensor.shape[0], -1), permuted_heads)
        return _dequantize(packed, tensor, dtype).view(tensor.shape)


def _restore_rows(packed: np.ndarray, heads: int) -> np.ndarray:
    """Undo the converter's reordering of Q and K rows, on packed bytes: a row's quantization is its own.

    The converter interleaves the two halves of a head (llama.cpp's ``convert_hf_to_gguf.py``, ``permute``).
    """
    rows, width = packed.shape
    return packed.reshape(heads, rows // heads // 2, 2, width).swapaxes(1, 2).reshape(rows, width)


def _dequantize(packed: np.ndarray, tensor: GgufTensor, dtype: torch.dtype) -> torch.Tensor:
    """All elements in a row, computed in pieces: the package's own grouping is some 16 rows, 5 times slower."""
    unpack = _unpacker(tensor.kind)
    elements, size = tensor.block
    blocks = packed.reshape(-1, size)
    out = torch.empty(len(blocks) * elements, dtype=dtype)
    plain = out.numpy() if dtype == torch.float32 else None  # numpy's copy starts no threads of its own
    step = max(1, _CHUNK_ELEMENTS // elements)
    for at in range(0, len(blocks), step):
        values = unpack(blocks[at : at + step].reshape(1, -1)).ravel()
        piece = slice(at * elements, at * elements + len(values))
        if plain is not None:
            plain[piece] = values
        else:
            out[piece] = torch.from_numpy(values)
    return out


def _unpacker(kind: str) -> Callable[[np.ndarray], np.ndarray]:
    if kind == "F32":
        return lambda raw: raw.view(np.float32).copy()  # a copy: torch warns of memory that it must not write to
    from gguf import GGMLQuantizationType, dequantize  # noqa: PLC0415  only for models in this format

    return lambda raw: dequantize(raw, GGMLQuantizationType[kind])
