"""Reads GGUF files: metadata at once, tensor bytes by memory map.

The format is the one of ggml's ``docs/gguf.md`` (versions 2 and 3). The metadata is parsed here and not by the
``gguf`` package because its reader makes an array object for each token and merge (3 s for 98,000 strings, 0.06 s
here) and believes the lengths that the file states; here each one is compared with the bytes that are left.
"""

from __future__ import annotations

import hashlib
import mmap
import re
import struct
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import msgspec
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
_SAMPLES, _SAMPLE_BYTES = 256, 4096  # of the tensor data, for the file's identity

T = TypeVar("T")


class GgufTensor(msgspec.Struct, frozen=True):
    """Where a tensor lies. ``shape`` has the slowest dimension first: (rows, columns), as in numpy and torch."""

    name: str
    shape: tuple[int, ...]
    kind: str  # "Q4_1"
    block: tuple[int, int]  # elements, bytes
    offset: int  # from the start of its file
    nbytes: int
    part: int  # which of the files of a split model


class GgufFile:
    """A GGUF model: one file, or all parts of a split one when given the first.

    Args:
        path: the file; read now up to its tensor data, which is only mapped.

    Raises:
        ModelLoadError: missing, damaged, cut, big-endian, of another version, or with a tensor of a kind that is not
            supported.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        first = _Part(self.path, 0)
        self.metadata: dict[str, Any] = first.metadata
        self._parts = [first, *self._other_parts()]
        self.tensors: dict[str, GgufTensor] = {}
        for part in self._parts:
            self._add(part)
        self._check_count()

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        """The metadata value ``key``; without a default it must be there. An int will do for a float."""
        value: Any = self.metadata.get(key, default)
        if value is None:
            raise ModelLoadError(f"{self.path}: metadata has no {key}")
        if kind is float and type(value) is int:
            value = float(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ModelLoadError(f"{self.path}: metadata {key} is {_short(value)}, expected {kind.__name__}")
        return value

    def maybe(self, key: str, kind: type[T]) -> T | None:
        """The metadata value ``key``, or None when the file does not have it."""
        return self.get(key, kind) if key in self.metadata else None

    def array(self, key: str, of: type[T], default: list[T] | None = None) -> list[T]:
        """The metadata array ``key``, whose elements have one type; ints will do for floats."""
        values: list[Any] = self.get(key, list, default)
        if values and not isinstance(values[0], (int, float) if of is float else of):
            raise ModelLoadError(f"{self.path}: metadata {key} holds {_short(values[0])}, expected {of.__name__}")
        return values

    def data(self, name: str) -> np.ndarray:
        """The tensor's packed bytes, read-only and mapped: uint8 (rows, bytes of a row); one row for a vector."""
        tensor = self.tensors[name]
        raw = np.frombuffer(self._parts[tensor.part].map, np.uint8, tensor.nbytes, tensor.offset)
        return raw.reshape(prod(tensor.shape[:-1]), -1)

    def identity(self) -> str:
        """Digest of sizes, headers and samples of the tensor data: tells models apart without reading them whole."""
        digest = hashlib.sha256()
        for part in self._parts:
            part.add_to(digest)
        return digest.hexdigest()

    def _other_parts(self) -> list[_Part]:
        count, number = self.get("split.count", int, 1), self.get("split.no", int, 0)
        if count <= 1:
            return []
        if number != 0:
            raise ModelLoadError(f"{self.path} is part {number + 1} of {count}: give the first part")
        stem = re.fullmatch(r"(.*)-00001-of-(\d{5})\.gguf", self.path.name)
        if stem is None or int(stem[2]) != count:
            raise ModelLoadError(f"{self.path} has {count} parts, so its name must end in -00001-of-{count:05}.gguf")
        return [_Part(self.path.with_name(f"{stem[1]}-{i + 1:05}-of-{stem[2]}.gguf"), i) for i in range(1, count)]

    def _add(self, part: _Part) -> None:
        for tensor in part.tensors:
            if tensor.name in self.tensors:
                raise ModelLoadError(f"{part.path}: tensor {tensor.name} appears twice")
            self.tensors[tensor.name] = tensor

    def _check_count(self) -> None:
        expected = self.get("split.tensors.count", int, len(self.tensors))
        if len(self.tensors) != expected:
            raise ModelLoadError(f"{self.path}: parts hold {len(self.tensors)} tensors, expected {expected}")


class _Part:
    """One file: its map, metadata and the places of its tensors."""

    def __init__(self, path: Path, number: int) -> None:
        self.path = path
        self.map = _map(path)
        cursor = _Cursor(path, self.map)
        tensor_count, value_count = cursor.header()
        self.metadata = _read_metadata(cursor, value_count)
        infos = [_read_tensor_info(cursor) for _ in range(tensor_count)]
        self._start = _padded(cursor.at, _alignment(cursor, self.metadata))
        self.tensors = self._place(cursor, infos, number)

    def _place(self, cursor: _Cursor, infos: list[_TensorInfo], number: int) -> list[GgufTensor]:
        """Check that the tensors follow each other without a gap, as every writer lays them out, and fit the file."""
        alignment, at, placed = _alignment(cursor, self.metadata), 0, list[GgufTensor]()
        for name, shape, kind, offset in infos:
            label, elements, size = TENSOR_KINDS[kind]
            nbytes = prod(shape) // elements * size
            if offset != at:
                raise cursor.error(f"tensor {name} is at offset {offset} of the data, expected {at}")
            if self._start + at + nbytes > len(self.map):
                missing = self._start + at + nbytes - len(self.map)
                raise cursor.error(f"the file is cut: tensor {name} ends {missing} bytes after it")
            placed.append(GgufTensor(name, shape, label, (elements, size), self._start + at, nbytes, number))
            at = _padded(at + nbytes, alignment)
        return placed

    def add_to(self, digest: hashlib._Hash) -> None:
        digest.update(len(self.map).to_bytes(8, "little"))
        digest.update(self.map[: self._start])
        for at in np.linspace(self._start, max(self._start, len(self.map) - _SAMPLE_BYTES), _SAMPLES).astype(int):
            digest.update(self.map[at : at + _SAMPLE_BYTES])


_TensorInfo = tuple[str, tuple[int, ...], int, int]  # name, shape, kind, offset in the data


class _Cursor:
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


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:  # mmap refuses an empty file
        raise ModelLoadError(f"{path}: the file is empty") from None
    except OSError as error:
        raise ModelLoadError(f"cannot read {path}: {error.strerror}") from error


def _read_metadata(cursor: _Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(count):
        key = cursor.string("a metadata key")
        if key in metadata:
            raise cursor.error(f"metadata {key} appears twice")
        metadata[key] = _read_value(cursor, cursor.scalar("I"), key)
    return metadata


def _read_value(cursor: _Cursor, kind: int, key: str) -> Any:
    if kind == _STRING:
        return cursor.string(key)
    if kind == _ARRAY:
        return _read_array(cursor, key)
    if kind not in _SCALARS:
        raise cursor.error(f"metadata {key} has the unknown type {kind}")
    return cursor.scalar(_SCALARS[kind], key)


def _read_array(cursor: _Cursor, key: str) -> list[Any]:
    kind, count = cursor.scalar("I", key), cursor.scalar("Q", key)
    if kind == _STRING:
        return cursor.strings(count, key)
    if kind not in _SCALARS:  # ggml has no arrays of arrays either
        raise cursor.error(f"metadata {key} is an array of the unknown type {kind}")
    dtype = np.dtype("<" + _SCALARS[kind]) if kind != 7 else np.dtype(bool)
    start = cursor.advance(count * dtype.itemsize, key)
    return np.frombuffer(cursor.data, dtype, count, start).tolist()


def _read_tensor_info(cursor: _Cursor) -> _TensorInfo:
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


def _alignment(cursor: _Cursor, metadata: dict[str, Any]) -> int:
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        raise cursor.error(f"general.alignment is {_short(alignment)}, expected a power of two")
    return alignment


def _padded(at: int, alignment: int) -> int:
    return -(-at // alignment) * alignment


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
