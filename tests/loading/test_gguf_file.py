"""GGUF files are read as the reference reader reads them; broken ones are refused with a reason, and cheaply."""

import contextlib
import struct
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_models import LLAMA, add_tensors, finish, gguf_writer, random_tensors, write_gguf

from callboard.runner.gguf_file import GgufFile
from callboard.runner.model_config import ModelConfig
from callboard.scheduler.errors import ModelLoadError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "m.gguf", LLAMA, random_tensors(LLAMA))


def header(tensors: int = 0, values: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, values)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def refused(path: Path, content: bytes) -> str:
    """The reason; opening must also not make anything large."""
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(ModelLoadError) as caught:
        GgufFile(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20
    return str(caught.value)


def test_metadata_and_tensors_are_those_of_the_reference_reader(tmp_path: Path) -> None:
    writer = gguf_writer(tmp_path / "m.gguf", LLAMA)
    writer.add_token_list(["a", "é", "", "Ġthe"])
    writer.add_array("numbers", [1, -2, 3])
    writer.add_array("flags", [True, False])
    writer.add_float64("double", 0.1)
    add_tensors(writer, LLAMA, random_tensors(LLAMA))
    finish(writer)
    ours, reference = GgufFile(tmp_path / "m.gguf"), gguf.GGUFReader(tmp_path / "m.gguf")
    expected = {key: field.contents() for key, field in reference.fields.items() if not key.startswith("GGUF.")}
    assert ours.metadata == expected
    for tensor in reference.tensors:
        assert ours.tensors[tensor.name].shape == tuple(tensor.shape.tolist())[::-1]
        assert np.array_equal(ours.data(tensor.name).ravel(), tensor.data.view(np.uint8).ravel())


def test_a_file_with_another_alignment_is_read(tmp_path: Path) -> None:
    writer = gguf_writer(tmp_path / "m.gguf", LLAMA)
    writer.add_custom_alignment(64)
    values = np.arange(10, dtype=np.float32)
    writer.add_tensor("a", values)
    writer.add_tensor("b", values + 1)
    finish(writer)
    assert GgufFile(tmp_path / "m.gguf").data("b").view(np.float32).ravel().tolist() == (values + 1).tolist()


def test_every_cut_of_a_file_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    for length in [*range(0, 1500, 31), len(whole) // 2, len(whole) - 1]:
        assert "m.gguf" in refused(path, whole[:length])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"cannot read .*none\.gguf: No such file"):
        GgufFile(tmp_path / "none.gguf")


def test_wrong_magic_version_and_byte_order_are_told_apart(path: Path) -> None:
    assert "starts with b'PK\\x03\\x04', expected b'GGUF'" in refused(path, b"PK\x03\x04" + bytes(60))
    assert "GGUF version 1 is not supported, expected 2 or 3" in refused(path, header(version=1))
    assert "big-endian" in refused(path, b"GGUF" + struct.pack(">IQQ", 3, 0, 0))


@pytest.mark.parametrize("length", [2**40, 2**63, 2**64 - 1])
def test_silly_lengths_are_refused_without_allocation(path: Path, length: int) -> None:
    silly = struct.pack("<Q", length)
    assert f"needs {length} bytes, but 0 are left" in refused(path, header(values=1) + silly)
    assert "0 are left" in refused(path, header(values=length))
    assert "0 are left" in refused(path, header(tensors=length))
    strings = header(values=1) + text("words") + struct.pack("<II", 9, 8) + silly
    assert f"words: string 0 of {length} ends after the file" in refused(path, strings)
    numbers = header(values=1) + text("numbers") + struct.pack("<II", 9, 5) + silly
    assert "numbers at byte" in refused(path, numbers)


def test_a_tensor_larger_than_the_file_is_refused(path: Path) -> None:
    info = text("w") + struct.pack("<IQQIQ", 2, 2**40, 2**20, 0, 0)
    assert "the file is cut: tensor w ends" in refused(path, header(tensors=1) + info)


def test_a_tensor_at_another_place_than_its_turn_is_refused(path: Path) -> None:
    info = text("w") + struct.pack("<IQIQ", 1, 8, 0, 32)
    assert "tensor w is at offset 32 of the data, expected 0" in refused(path, header(tensors=1) + info + bytes(200))


def test_rows_that_do_not_fill_blocks_are_refused(path: Path) -> None:
    info = text("w") + struct.pack("<IQQIQ", 2, 40, 2, 8, 0)
    assert "tensor w has shape (2, 40), but Q8_0 rows are multiples of 32" in refused(path, header(tensors=1) + info)


@pytest.mark.parametrize(("kind", "name"), [(Kind.IQ4_NL, "IQ4_NL"), (Kind.TQ1_0, "TQ1_0"), (999, "number 999")])
def test_another_kind_of_tensor_is_refused_by_name(path: Path, kind: int, name: str) -> None:
    info = text("blk.0.ffn_up.weight") + struct.pack("<IQIQ", 1, 256, kind, 0)
    reason = refused(path, header(tensors=1) + info + bytes(400))
    assert f"tensor blk.0.ffn_up.weight is of kind {name}, which is not supported; supported: F32, F16, Q4_0" in reason


def test_a_metadata_value_of_the_wrong_type_is_named(path: Path) -> None:
    file = GgufFile(path)
    with pytest.raises(ModelLoadError, match=r"metadata general\.architecture is 'llama', expected int"):
        file.get("general.architecture", int)
    with pytest.raises(ModelLoadError, match=r"metadata has no tokenizer\.ggml\.tokens"):
        file.array("tokenizer.ggml.tokens", str)


def split(tmp_path: Path) -> list[Path]:
    writer = gguf_writer(tmp_path / "m", LLAMA, split_max_tensors=8)
    add_tensors(writer, LLAMA, random_tensors(LLAMA))
    finish(writer)
    return sorted(tmp_path.glob("*.gguf"))


def test_a_split_file_is_read_from_its_first_part(tmp_path: Path, path: Path) -> None:
    whole = GgufFile(path)
    path.unlink()
    parts = split(tmp_path)
    assert len(parts) == 3
    joined = GgufFile(parts[0])
    assert joined.tensors.keys() == whole.tensors.keys()
    assert all(np.array_equal(joined.data(name), whole.data(name)) for name in whole.tensors)


def test_a_split_file_needs_all_parts_and_the_first_one_first(tmp_path: Path) -> None:
    parts = split(tmp_path)
    with pytest.raises(ModelLoadError, match="is part 2 of 3: give the first part"):
        GgufFile(parts[1])
    parts[2].unlink()
    with pytest.raises(ModelLoadError, match=r"cannot read .*-00003-of-00003\.gguf: No such file"):
        GgufFile(parts[0])


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 1400), st.integers(0, 255)), min_size=1, max_size=4))
def test_damaged_headers_are_refused_or_read_but_never_crash(path: Path, flips: list[tuple[int, int]]) -> None:
    content = bytearray(path.read_bytes())
    for at, value in flips:
        content[at] = value
    damaged = path.with_name("damaged.gguf")
    damaged.write_bytes(content)
    with contextlib.suppress(ModelLoadError):
        ModelConfig.from_gguf(damaged)
