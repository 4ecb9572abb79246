"""Weights arrive under neutral names with the values that were saved, from either layout."""

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import structlog
import torch
from gguf import GGMLQuantizationType as Kind
from tiny_models import (
    GEMMA3,
    LLAMA,
    QWEN2,
    QWEN3,
    add_tensors,
    finish,
    gguf_writer,
    random_tensors,
    write_folder,
    write_gguf,
)

from callboard.runner.model_source import resolve_model
from callboard.runner.weights import load_weights
from callboard.scheduler.errors import ModelLoadError

CONFIGS = pytest.mark.parametrize("config", [LLAMA, QWEN2, QWEN3], ids=lambda config: config["model_type"])


def load(path: Path, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    source = resolve_model(path)
    return load_weights(source, source.config, dtype)


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@CONFIGS
def test_a_folder_gives_every_tensor_under_its_neutral_name(tmp_path: Path, config: dict) -> None:
    tensors = random_tensors(config)
    weights = load(write_folder(tmp_path / "m", config, tensors))
    assert len(weights) == len(tensors)
    assert torch.equal(weights["embed"], tensors["model.embed_tokens.weight"])
    assert torch.equal(weights["layers.1.q"], tensors["model.layers.1.self_attn.q_proj.weight"])
    assert torch.equal(weights["layers.0.mlp_norm"], tensors["model.layers.0.post_attention_layernorm.weight"])
    assert ("layers.0.k_bias" in weights) == (config is QWEN2)
    assert ("layers.0.q_norm" in weights) == (config is QWEN3)


def test_norms_of_gemma_are_the_factors_themselves(tmp_path: Path) -> None:
    tensors = random_tensors(GEMMA3)
    for weights in (
        load(write_folder(tmp_path / "m", GEMMA3, tensors), torch.bfloat16),
        load(write_gguf(tmp_path / "m.gguf", GEMMA3, tensors), torch.bfloat16),
    ):
        for ours, theirs in (
            ("norm", "model.norm"),
            ("layers.5.attn_out_norm", "model.layers.5.post_attention_layernorm"),
            ("layers.5.mlp_norm", "model.layers.5.pre_feedforward_layernorm"),
            ("layers.5.mlp_out_norm", "model.layers.5.post_feedforward_layernorm"),
            ("layers.5.k_norm", "model.layers.5.self_attn.k_norm"),
        ):
            assert torch.equal(weights[ours], tensors[f"{theirs}.weight"] + 1)
        assert weights["layers.0.q"].dtype == torch.bfloat16


@pytest.mark.parametrize("config", [LLAMA, QWEN2, QWEN3, GEMMA3], ids=lambda config: config["model_type"])
def test_a_gguf_file_gives_the_same_tensors_as_the_folder_it_was_made_from(tmp_path: Path, config: dict) -> None:
    tensors = random_tensors(config)
    folder = load(write_folder(tmp_path / "m", config, tensors))
    assert same(load(write_gguf(tmp_path / "m.gguf", config, tensors)), folder)


def test_shards_give_the_same_tensors_as_one_file(tmp_path: Path) -> None:
    tensors = random_tensors(LLAMA)
    whole = load(write_folder(tmp_path / "whole", LLAMA, tensors))
    assert same(load(write_folder(tmp_path / "shards", LLAMA, tensors, shards=3)), whole)


@pytest.mark.parametrize("config", [LLAMA, QWEN2], ids=lambda config: config["model_type"])
def test_rows_of_q_and_k_are_put_back_only_where_converters_reorder_them(tmp_path: Path, config: dict) -> None:
    tensors = random_tensors(config)
    name = "model.layers.0.self_attn.k_proj.weight"
    tensors[name] = torch.arange(16.0)[:, None].expand(16, 32).contiguous()  # 2 KV heads of 8 rows
    weights = load(write_gguf(tmp_path / "m.gguf", config, tensors))
    assert weights["layers.0.k"][:, 0].tolist() == list(range(16))


def test_a_square_matrix_is_not_transposed(tmp_path: Path) -> None:
    tensors = random_tensors(LLAMA)
    square = torch.arange(32.0 * 32).view(32, 32)
    tensors["model.layers.0.self_attn.o_proj.weight"] = square
    assert torch.equal(load(write_gguf(tmp_path / "m.gguf", LLAMA, tensors))["layers.0.o"], square)


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0, Kind.F16, Kind.BF16])
def test_quantized_matrices_have_the_values_of_the_reference_dequantizer(tmp_path: Path, kind: Kind) -> None:
    tensors = random_tensors(LLAMA)
    weights = load(write_gguf(tmp_path / "m.gguf", LLAMA, tensors, kind=kind))
    for neutral, name in (
        ("embed", "model.embed_tokens.weight"),
        ("layers.1.q", "model.layers.1.self_attn.q_proj.weight"),
    ):
        expected = gguf.dequantize(gguf.quantize(tensors[name].numpy(), kind), kind)
        assert np.array_equal(weights[neutral].numpy(), expected)


@pytest.mark.parametrize("kind", [Kind.Q2_K, Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K])
def test_k_quants_have_the_values_of_the_reference_dequantizer(tmp_path: Path, kind: Kind) -> None:
    tensors = random_tensors(LLAMA | {"intermediate_size": 256})
    raw = random_blocks(kind, rows=32)
    del tensors["model.layers.0.mlp.down_proj.weight"]
    writer = gguf_writer(tmp_path / "m.gguf", LLAMA | {"intermediate_size": 256})
    add_tensors(writer, LLAMA, tensors)
    writer.add_tensor("blk.0.ffn_down.weight", raw, raw_dtype=kind)
    finish(writer)
    assert np.array_equal(load(tmp_path / "m.gguf")["layers.0.down"].numpy(), gguf.dequantize(raw, kind))


def random_blocks(kind: Kind, rows: int) -> np.ndarray:
    """Rows of one block each: random bits with float16 scales of ordinary size (the format puts them at an end)."""
    raw = np.random.default_rng(kind).integers(0, 256, (rows, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8)
    scales = np.array([0.5, 0.25], np.float16).view(np.uint8)
    places = {Kind.Q2_K: slice(-4, None), Kind.Q3_K: slice(-2, None), Kind.Q6_K: slice(-2, None)}
    place = places.get(kind, slice(0, 4))
    raw[:, place] = scales[: len(raw[0, place])]
    return raw


def test_a_q6_k_block_laid_out_by_hand_has_its_values(tmp_path: Path) -> None:
    config = LLAMA | {"hidden_size": 256, "head_dim": 64}
    block = np.zeros(210, np.uint8)
    block[0] = 0x21  # low 4 bits of element 0 are 1, of element 64 are 2
    block[128] = 0b11  # high 2 bits of element 0
    block[192:208] = np.int8(3).view(np.uint8)  # scales of the 16 groups
    block[208:] = np.array([0.5], np.float16).view(np.uint8)
    writer = gguf_writer(tmp_path / "m.gguf", config)
    tensors = random_tensors(config)
    del tensors["model.embed_tokens.weight"]
    add_tensors(writer, config, tensors)
    writer.add_key_length(64)
    writer.add_tensor("token_embd.weight", np.tile(block, (64, 1)), raw_dtype=Kind.Q6_K)
    finish(writer)
    row = load(tmp_path / "m.gguf")["embed"][5]
    assert row[[0, 64, 1]].tolist() == [1.5 * (0b110001 - 32), 1.5 * (2 - 32), 1.5 * -32]


def test_values_are_rounded_once_to_the_type_asked_for(tmp_path: Path) -> None:
    tensors = random_tensors(LLAMA)
    path = write_gguf(tmp_path / "m.gguf", LLAMA, tensors, kind=Kind.Q8_0)
    exact, rounded = load(path), load(path, torch.bfloat16)
    assert all(torch.equal(exact[name].bfloat16(), rounded[name]) for name in exact)


@pytest.mark.parametrize("flag", [True, False, None])
def test_an_output_matrix_in_the_file_is_used_whatever_the_flag_says(tmp_path: Path, flag: bool | None) -> None:
    tensors = random_tensors(LLAMA, tied=False)
    config = LLAMA | {"tie_word_embeddings": flag}
    assert torch.equal(load(write_folder(tmp_path / "m", config, tensors))["head"], tensors["lm_head.weight"])


def test_an_output_matrix_equal_to_a_tied_embedding_is_kept_once(tmp_path: Path) -> None:
    tensors = random_tensors(LLAMA)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    assert "head" not in load(write_folder(tmp_path / "m", LLAMA, tensors))


@pytest.mark.parametrize("flag", [False, None])
def test_a_model_that_is_not_tied_needs_an_output_matrix(tmp_path: Path, flag: bool | None) -> None:
    config = LLAMA | {"tie_word_embeddings": flag}
    with pytest.raises(ModelLoadError, match=r"no tensor lm_head\.weight, and the model does not tie"):
        load(write_folder(tmp_path / "m", config, random_tensors(LLAMA)))


def test_a_gguf_output_matrix_is_used_and_its_absence_means_tied(tmp_path: Path) -> None:
    tensors = random_tensors(LLAMA, tied=False)
    untied = write_gguf(tmp_path / "untied.gguf", LLAMA, tensors)
    assert torch.equal(load(untied)["head"], tensors["lm_head.weight"])
    assert "head" not in load(write_gguf(tmp_path / "tied.gguf", LLAMA, random_tensors(LLAMA)))


def test_a_missing_tensor_is_named_with_its_shape(tmp_path: Path) -> None:
    tensors = random_tensors(LLAMA)
    del tensors["model.layers.1.self_attn.k_proj.weight"]
    reason = r"tensor model\.layers\.1\.self_attn\.k_proj\.weight: got none, expected shape \(16, 32\)"
    with pytest.raises(ModelLoadError, match=reason):
        load(write_folder(tmp_path / "m", LLAMA, tensors))
    with pytest.raises(ModelLoadError, match=r"tensor blk\.1\.attn_k\.weight: got none, expected shape \(16, 32\)"):
        load(write_gguf(tmp_path / "m.gguf", LLAMA, tensors))


def test_a_tensor_of_another_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    tensors = random_tensors(LLAMA)
    tensors["model.layers.0.mlp.up_proj.weight"] = torch.zeros(32, 96)
    with pytest.raises(ModelLoadError, match=r"up_proj\.weight: got shape \(32, 96\), expected shape \(96, 32\)"):
        load(write_folder(tmp_path / "m", LLAMA, tensors))


def test_more_layers_than_tensors_are_refused_at_once(tmp_path: Path) -> None:
    config = LLAMA | {"num_hidden_layers": 4_000_000_000}
    with pytest.raises(ModelLoadError, match="has 20 tensors, too few for 4000000000 layers"):
        load(write_folder(tmp_path / "m", config, random_tensors(LLAMA)))


def test_an_unexpected_tensor_inside_a_layer_is_refused(tmp_path: Path) -> None:
    tensors = random_tensors(LLAMA) | {"model.layers.0.self_attn.o_proj.bias": torch.zeros(32)}
    with pytest.raises(ModelLoadError, match=r"unexpected tensor model\.layers\.0\.self_attn\.o_proj\.bias in llama"):
        load(write_folder(tmp_path / "m", LLAMA, tensors))


def test_an_unexpected_tensor_elsewhere_is_logged(tmp_path: Path) -> None:
    extra = {
        "vision.weight": torch.zeros(2),
        "model.layers.0.rotary_emb.inv_freq": torch.ones(4),
    }
    with structlog.testing.capture_logs() as logs:
        load(write_folder(tmp_path / "m", LLAMA, random_tensors(LLAMA) | extra))
    assert [(entry["event"], entry["count"], entry["first"]) for entry in logs] == [
        ("unexpected_tensors", 1, ["vision.weight"])
    ]


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    path = write_folder(tmp_path / "m", LLAMA, random_tensors(LLAMA), shards=3)
    (path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"model-00002-of-00003\.safetensors is missing, which model"):
        load(path)


def test_an_index_may_not_name_files_outside_the_folder(tmp_path: Path) -> None:
    path = write_folder(tmp_path / "m", LLAMA, random_tensors(LLAMA), shards=2)
    (path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../other.safetensors"}}')
    with pytest.raises(ModelLoadError, match=r"names the file '\.\./other\.safetensors', expected a plain file name"):
        load(path)


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"\xff" * 8 + data[8:]])
def test_a_damaged_safetensors_file_is_refused(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    file = write_folder(tmp_path / "m", LLAMA, random_tensors(LLAMA)) / "model.safetensors"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ModelLoadError, match=r"model\.safetensors is damaged or no safetensors file"):
        load(file.parent)


def test_the_model_in_the_wheel_loads_whole() -> None:
    weights = load(resolve_model("smollm2").path, torch.bfloat16)
    assert len(weights) == 272
    assert sum(tensor.numel() for tensor in weights.values()) == 134_515_008
    assert "head" not in weights
