"""Writes tiny random models: a folder in Hugging Face layout, and the GGUF file that its converter would make of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save_file

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": True,
}
QWEN2 = LLAMA | {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 32}
QWEN3 = LLAMA | {"model_type": "qwen3", "head_dim": 8}
GEMMA3 = LLAMA | {
    "model_type": "gemma3_text",
    "hidden_act": None,
    "hidden_activation": "gelu_pytorch_tanh",
    "num_hidden_layers": 7,
    "head_dim": 8,
    "query_pre_attn_scalar": 8,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "sliding_window": 16,
}

_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_GEMMA3_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def random_tensors(config: dict[str, Any], seed: int = 0, tied: bool = True) -> dict[str, torch.Tensor]:
    """Every tensor of the model, by Hugging Face's names, float32."""
    random = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=random) for name, shape in _shapes(config, tied).items()}


def _shapes(config: dict[str, Any], tied: bool) -> dict[str, tuple[int, ...]]:
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    head = config.get("head_dim", hidden // config["num_attention_heads"])
    q, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    if not tied:
        shapes["lm_head.weight"] = (vocab, hidden)
    for i in range(config["num_hidden_layers"]):
        layer: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (hidden,)}
        layer["post_attention_layernorm.weight"] = (hidden,)
        for name, rows in (("q", q), ("k", kv), ("v", kv)):
            layer[f"self_attn.{name}_proj.weight"] = (rows, hidden)
            if config["model_type"] == "qwen2":
                layer[f"self_attn.{name}_proj.bias"] = (rows,)
        if config["model_type"] == "gemma3_text":
            names = ("pre_feedforward_layernorm", "post_feedforward_layernorm")
            layer |= {f"{name}.weight": (hidden,) for name in names}
        if config["model_type"] in ("qwen3", "gemma3_text"):
            layer |= {"self_attn.q_norm.weight": (head,), "self_attn.k_norm.weight": (head,)}
        layer |= {"self_attn.o_proj.weight": (hidden, q), "mlp.down_proj.weight": (hidden, inner)}
        layer |= {"mlp.gate_proj.weight": (inner, hidden), "mlp.up_proj.weight": (inner, hidden)}
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    return shapes


def write_folder(path: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor], shards: int = 1) -> Path:
    """A folder with config.json and safetensors, split over ``shards`` files when more than 1."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    if shards == 1:
        save_file(tensors, path / "model.safetensors")
        return path
    weight_map = {name: f"model-{i % shards + 1:05}-of-{shards:05}.safetensors" for i, name in enumerate(tensors)}
    for file in sorted(set(weight_map.values())):
        save_file({name: tensors[name] for name in tensors if weight_map[name] == file}, path / file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return path


def converter_rows(weights: np.ndarray, heads: int) -> np.ndarray:
    """The row order that converters give Q and K of llama: the halves of a head interleaved."""
    halves = weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
    return halves.swapaxes(1, 2).reshape(weights.shape)


def gguf_writer(path: Path, config: dict[str, Any], **options: Any) -> gguf.GGUFWriter:
    """A writer with the metadata of ``config`` and no tensors yet."""
    arch = {"mistral": "llama", "gemma3_text": "gemma3"}.get(config["model_type"], config["model_type"])
    writer = gguf.GGUFWriter(path, arch, **options)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    if arch == "gemma3":
        writer.add_key_length(config["head_dim"])
        writer.add_sliding_window(config["sliding_window"])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    return writer


def add_tensors(
    writer: gguf.GGUFWriter,
    config: dict[str, Any],
    tensors: dict[str, torch.Tensor],
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
) -> None:
    """Names, order of rows and quantization as a converter writes them; vectors stay F32, norms of Gemma get 1 more."""
    gemma = config["model_type"] == "gemma3_text"
    permuted = config["model_type"] in ("llama", "mistral")
    for name, tensor in tensors.items():
        values = tensor.numpy()
        if permuted and "q_proj" in name:
            values = converter_rows(values, config["num_attention_heads"])
        if permuted and "k_proj" in name:
            values = converter_rows(values, config["num_key_value_heads"])
        if gemma and values.ndim == 1:
            values = values + 1
        packed = kind if values.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(gguf_name(name, gemma), gguf.quantize(np.ascontiguousarray(values), packed), raw_dtype=packed)


def gguf_name(name: str, gemma: bool = False) -> str:
    stem, _, suffix = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, index, rest = stem.split(".", 3)
        return f"blk.{index}.{(_GGUF_NAMES | _GEMMA3_NAMES if gemma else _GGUF_NAMES)[rest]}.{suffix}"
    return f"{_GGUF_NAMES[stem]}.{suffix}"


def write_gguf(path: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor], **options: Any) -> Path:
    writer = gguf_writer(path, config)
    add_tensors(writer, config, tensors, **options)
    finish(writer)
    return path


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
