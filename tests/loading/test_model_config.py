"""Sizes and flags come from the files; what is not computed is refused by name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
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

from callboard.runner.model_config import ModelConfig, RopeScaling
from callboard.scheduler.errors import ConfigError, ModelLoadError


def from_config(tmp_path: Path, config: dict[str, Any]) -> ModelConfig:
    return ModelConfig.from_hf(write_folder(tmp_path / "m", config, random_tensors(LLAMA)))


@pytest.mark.parametrize("config", [LLAMA, QWEN2, QWEN3, GEMMA3], ids=lambda config: config["model_type"])
def test_a_folder_and_its_gguf_file_give_one_configuration(tmp_path: Path, config: dict) -> None:
    tensors = random_tensors(config)
    folder = ModelConfig.from_hf(write_folder(tmp_path / "m", config, tensors))
    file = ModelConfig.from_gguf(write_gguf(tmp_path / "m.gguf", config, tensors))
    for name in ModelConfig.__struct_fields__:
        if name not in ("weights_id", "rms_norm_eps"):
            assert getattr(folder, name) == getattr(file, name), name
    assert (folder.num_kv_heads, folder.head_dim, folder.eos_token_ids) == (2, 8, (2,))
    assert (folder.attention_bias, folder.qk_norm) == (config is QWEN2, config in (QWEN3, GEMMA3))


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({}, (16, 16, 16, 16, 16, None, 16)),
        ({"sliding_window_pattern": 3}, (16, 16, None, 16, 16, None, 16)),
        ({"layer_types": ["full_attention"] * 6 + ["sliding_attention"]}, (None,) * 6 + (16,)),
        ({"sliding_window": None}, (None,) * 7),
    ],
)
def test_gemma3_has_a_window_in_most_layers(
    tmp_path: Path, changes: dict[str, Any], windows: tuple[int | None, ...]
) -> None:
    config = from_config(tmp_path, GEMMA3 | changes)
    assert config.windows == windows
    assert (config.rope_theta, config.rope_local_theta, config.query_pre_attn_scalar) == (1e6, 1e4, 8.0)
    assert (config.hidden_act, config.output_norms, config.scale_embedding) == ("gelu_tanh", True, True)


def test_gemma3_rotations_may_be_named_for_each_kind_of_layer(tmp_path: Path) -> None:
    kinds = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 3e4},
    }
    config = from_config(tmp_path, GEMMA3 | {"rope_parameters": kinds})
    assert (config.rope_theta, config.rope_local_theta) == (2e6, 3e4)
    assert config.rope_scaling == RopeScaling(kind="linear", factor=8.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gemma3"}, r"architecture 'gemma3 \(with images\)' is not supported"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping is not supported"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention is not supported"),
        ({"hidden_activation": "silu"}, "hidden_activation 'silu' is not supported"),
        ({"layer_types": ["sliding_attention"]}, "1 layer types are named for 7 layers"),
        ({"layer_types": ["chunked_attention"] * 7}, "layer type 'chunked_attention' is not supported"),
        ({"sliding_window_pattern": 0}, "the pattern of sliding windows is 0, the least is 1"),
    ],
)
def test_what_gemma3_does_not_compute_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        from_config(tmp_path, GEMMA3 | changes)


def test_an_unknown_architecture_is_refused_with_the_supported_ones(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="architecture 'mamba' is not supported; supported: llama, mistral, qwen2"):
        from_config(tmp_path, LLAMA | {"model_type": "mamba"})
    writer = gguf_writer(tmp_path / "m.gguf", LLAMA | {"model_type": "gemma2"})
    finish(writer)
    with pytest.raises(ModelLoadError, match="architecture 'gemma2' is not supported"):
        ModelConfig.from_gguf(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported; supported: silu"),
        ({"mlp_bias": True}, "mlp_bias is not supported for llama"),
        ({"attention_bias": True}, "attention_bias is not supported for llama"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported"),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
            "rope scaling 'yarn' is not supported; supported",
        ),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "rope scaling 'dynamic' is not supported"),
        ({"quantization_config": {"bits": 4}}, "quantized safetensors"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers is 'two': Expected `int`, got `str`"),
        ({"vocab_size": None}, "config.json has no vocab_size"),
        ({"num_key_value_heads": 3}, "num_heads 4 is no multiple of num_kv_heads 3"),
        ({"num_hidden_layers": 0}, "num_layers is 0, expected more than 0"),
        ({"head_dim": 7}, "head_dim is 7, expected an even number"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(tmp_path: Path, change: dict, reason: str) -> None:
    with pytest.raises(ModelLoadError) as caught:
        from_config(tmp_path, LLAMA | change)
    assert reason in str(caught.value)


def test_rope_scaling_is_read_in_the_old_and_the_new_spelling(tmp_path: Path) -> None:
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    llama3 |= {"original_max_position_embeddings": 8192}
    expected = RopeScaling(kind="llama3", factor=8.0, original_max_position_embeddings=8192)
    assert from_config(tmp_path, LLAMA | {"rope_scaling": llama3}).rope_scaling == expected
    new = from_config(tmp_path, LLAMA | {"rope_parameters": llama3 | {"rope_theta": 5e5}, "rope_theta": None})
    assert (new.rope_scaling, new.rope_theta) == (expected, 5e5)
    linear = from_config(tmp_path, LLAMA | {"rope_scaling": {"type": "linear", "factor": 2}})
    assert linear.rope_scaling == RopeScaling(kind="linear", factor=2.0)


def test_gguf_states_llama3_scaling_as_divisors_of_the_frequencies(tmp_path: Path) -> None:
    writer = gguf_writer(tmp_path / "m.gguf", LLAMA | {"rope_theta": 500000.0})
    add_tensors(writer, LLAMA, random_tensors(LLAMA))
    # head size 8: wavelengths 6, 167, 4443, 118,142 tokens; below 2,048 nothing changes, above 8,192 all does
    blend = (8192 / 4442.88 - 1) / 3
    writer.add_tensor("rope_freqs.weight", np.array([1, 1, 1 / ((1 - blend) / 32 + blend), 32], np.float32))
    finish(writer)
    scaling = ModelConfig.from_gguf(tmp_path / "m.gguf").rope_scaling
    assert scaling == RopeScaling(kind="llama3", factor=32.0, original_max_position_embeddings=8192)


def test_divisors_of_another_kind_are_refused(tmp_path: Path) -> None:
    writer = gguf_writer(tmp_path / "m.gguf", LLAMA)
    add_tensors(writer, LLAMA, random_tensors(LLAMA))
    writer.add_tensor("rope_freqs.weight", np.array([1, 2, 3, 4], np.float32))
    finish(writer)
    with pytest.raises(ModelLoadError, match=r"rope_freqs\.weight is not llama3 scaling"):
        ModelConfig.from_gguf(tmp_path / "m.gguf")


def test_end_tokens_of_all_files_are_joined(tmp_path: Path) -> None:
    path = write_folder(tmp_path / "m", LLAMA, random_tensors(LLAMA))
    (path / "generation_config.json").write_text('{"eos_token_id": [7, 2, 5]}')
    assert ModelConfig.from_hf(path).eos_token_ids == (2, 7, 5)
    writer = gguf_writer(tmp_path / "m.gguf", LLAMA)
    writer.add_eot_token_id(9)
    add_tensors(writer, LLAMA, random_tensors(LLAMA))
    finish(writer)
    assert ModelConfig.from_gguf(tmp_path / "m.gguf").eos_token_ids == (2, 9)


def test_a_length_beyond_the_model_is_refused(tmp_path: Path) -> None:
    config = from_config(tmp_path, LLAMA | {"model_type": "mistral", "sliding_window": 32})
    assert config.windows == (32, 32)
    config.check_length(128)
    with pytest.raises(ConfigError, match="max_model_len is 129, but the model was made for 128 tokens"):
        config.check_length(129)


@pytest.mark.parametrize(("used", "window"), [(False, None), (True, 32)])
def test_a_window_counts_for_qwen_only_when_it_is_used(tmp_path: Path, used: bool, window: int | None) -> None:
    config = QWEN2 | {"use_sliding_window": used}
    found = ModelConfig.from_hf(write_folder(tmp_path / "m", config, random_tensors(config)))
    assert found.sliding_window == window
    assert found.windows == (None, None)  # the first 28 layers have none


def test_the_upper_layers_of_qwen_have_the_window(tmp_path: Path) -> None:
    config = QWEN2 | {"use_sliding_window": True, "max_window_layers": 1}
    found = ModelConfig.from_hf(write_folder(tmp_path / "m", config, random_tensors(config)))
    assert found.windows == (None, 32)


def test_other_weights_of_the_same_shape_have_another_identity(tmp_path: Path) -> None:
    paths = [write_gguf(tmp_path / f"{seed}.gguf", LLAMA, random_tensors(LLAMA, seed)) for seed in (0, 1)]
    folders = [write_folder(tmp_path / f"{seed}", LLAMA, random_tensors(LLAMA, seed)) for seed in (0, 1)]
    ids = [*map(ModelConfig.from_gguf, paths), *map(ModelConfig.from_hf, folders)]
    assert len({config.weights_id for config in ids}) == 4
    assert ModelConfig.from_gguf(paths[0]).weights_id == ids[0].weights_id
