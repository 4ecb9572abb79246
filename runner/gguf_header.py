"""The header of a GGUF file, from mapped bytes: metadata and the places of tensors (ggml's ``docs/gguf.md``)."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

import numpy as np

from ..scheduler.errors import ModelLoadError

# number in the file -> name, elements in a block, bytes of a block
TENSOR_KINDS: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    30: ("BF16", 1, 2),
}
# number of a metadata value's type -> struct code; bool is one byte
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_DIMENSIONS = 4  # ggml's own limit

TensorInfo = tuple[str, tuple[int, ...], int, int]  # name, shape, kind, offset in the data


class Cursor:
    """A position in the mapped file. Every length is checked before anything is made of it."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.size, self.at = path, data, len(data), 0

    def error(self, text: str) -> ModelLoadError:
        return ModelLoadError(f"{self.path}: {text}")

    def advance(self, length: int, what: str) -> int:
        """Step over ``length`` bytes, which must be there; returns where they start."""
        start = self.at
        if length > self.size - start:
            left = self.size - start
            raise self.error(f"{what} at byte {start} needs {length} bytes, but {left} are left: cut or damaged")
        self.at = start + length
        return start

    def scalar(self, code: str, what: str = "a number") -> Any:
        return struct.unpack_from("<" + code, self.data, self.advance(struct.calcsize("<" + code), what))[0]

    def string(self, what: str = "a name") -> str:
        start = self.advance(self.scalar("Q", what), what)
        return self.data[start : self.at].decode("utf-8", "replace")

    def header(self) -> tuple[int, int]:
        """Counts of tensors and of metadata values."""
        magic = self.data[:4]
        if magic != b"GGUF":
            raise self.error(f"not a GGUF file: it starts with {magic!r}, expected b'GGUF'")
        self.at = 4
        version = self.scalar("I", "the version")
        if version in (2 << 24, 3 << 24):
            raise self.error("big-endian GGUF files are not supported")
        if version not in (2, 3):
            raise self.error(f"GGUF version {version} is not supported, expected 2 or 3")
        return self.scalar("Q", "the tensor count"), self.scalar("Q", "the metadata count")

    def strings(self, count: int, what: str) -> list[str]:
        """An array of strings; written flat because vocabularies make it the bulk of the time."""
        data, size, at, unpack = self.data, self.size, self.at, struct.Struct("<Q").unpack_from
        found: list[str] = []
        for _ in range(count):
            start = at + 8
            if start > size or (end := start + unpack(data, at)[0]) > size:
                raise self.error(f"{what}: string {len(found)} of {count} ends after the file: cut or damaged")
            found.append(data[start:end].decode("utf-8", "replace"))
            at = end
        self.at = at
        return found


def read_metadata(cursor: Cursor, count: int) -> dict[str, Any]:
    """The next ``count`` pairs of key and value."""
    metadata: dict[str, Any] = {}
    for _ in range(count):
        key = cursor.string("a metadata key")
        if key in metadata:
            raise cursor.error(f"metadata {key} appears twice")
        metadata[key] = _read_value(cursor, cursor.scalar("I"), key)
    return metadata


def _read_value(cursor: Cursor, kind: int, key: str) -> Any:
    if kind == _STRING:
        return cursor.string(key)
    if kind == _ARRAY:
        return _read_array(cursor, key)
    if kind not in _SCALARS:
        raise cursor.error(f"metadata {key} has the unknown type {kind}")
    return cursor.scalar(_SCALARS[kind], key)


def _read_array(cursor: Cursor, key: str) -> list[Any]:
    kind, count = cursor.scalar("I", key), cursor.scalar("Q", key)
    if kind == _STRING:
        return cursor.strings(count, key)
    if kind not in _SCALARS:  # ggml has no arrays of arrays either
        raise cursor.error(f"metadata {key} is an array of the unknown type {kind}")
    dtype = np.dtype("<" + _SCALARS[kind]) if kind != 7 else np.dtype(bool)
    start = cursor.advance(count * dtype.itemsize, key)
    return np.frombuffer(cursor.data, dtype, count, start).tolist()


def read_tensor_info(cursor: Cursor) -> TensorInfo:
    """The next tensor; its place is still to be checked against the file."""
    name = cursor.string("a tensor name")
    dimensions = cursor.scalar("I", name)
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise cursor.error(f"tensor {name} has {dimensions} dimensions, expected 1 to {_MAX_DIMENSIONS}")
    shape = tuple(cursor.scalar("Q", name) for _ in range(dimensions))[::-1]  # the file has the fastest first
    kind, offset = cursor.scalar("I", name), cursor.scalar("Q", name)
    if kind not in TENSOR_KINDS:
        known = ", ".join(label for label, _, _ in TENSOR_KINDS.values())
        raise cursor.error(f"tensor {name} is of kind {_kind_name(kind)}, which is not supported; supported: {known}")
    if 0 in shape or shape[-1] % TENSOR_KINDS[kind][1]:
        label, elements, _ = TENSOR_KINDS[kind]
        raise cursor.error(f"tensor {name} has shape {shape}, but {label} rows are multiples of {elements}")
    return name, shape, kind, offset


def _kind_name(kind: int) -> str:
    from gguf import GGMLQuantizationType  # noqa: PLC0415  only for the text of an error

    return GGMLQuantizationType(kind).name if kind in set(GGMLQuantizationType) else f"number {kind}"


def read_alignment(cursor: Cursor, metadata: dict[str, Any]) -> int:
    """What tensors' offsets are multiples of, in bytes."""
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        raise cursor.error(f"general.alignment is {short_text(alignment)}, expected a power of two")
    return alignment


def short_text(value: object) -> str:
    """A value for the text of an error."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
