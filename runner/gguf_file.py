"""Reads GGUF files: metadata at once, tensor bytes by memory map.

The format is the one of ggml's ``docs/gguf.md`` (versions 2 and 3). The metadata is parsed here and not by the
``gguf`` package because its reader makes an array object for each token and merge (3 s for 98,000 strings, 0.04 s
here) and believes the lengths that the file states; here each one is compared with the bytes that are left.
"""

from __future__ import annotations

import hashlib
import mmap
import re
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from ..scheduler.errors import ModelLoadError
from .gguf_header import TENSOR_KINDS, Cursor, TensorInfo, read_alignment, read_metadata, read_tensor_info, short_text

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
            raise ModelLoadError(f"{self.path}: metadata {key} is {short_text(value)}, expected {kind.__name__}")
        return value

    def maybe(self, key: str, kind: type[T]) -> T | None:
        """The metadata value ``key``, or None when the file does not have it."""
        return self.get(key, kind) if key in self.metadata else None

    def array(self, key: str, of: type[T], default: list[T] | None = None) -> list[T]:
        """The metadata array ``key``, whose elements have one type; ints will do for floats."""
        values: list[Any] = self.get(key, list, default)
        if values and not isinstance(values[0], (int, float) if of is float else of):
            raise ModelLoadError(f"{self.path}: metadata {key} holds {short_text(values[0])}, expected {of.__name__}")
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
        cursor = Cursor(path, self.map)
        tensor_count, value_count = cursor.header()
        self.metadata = read_metadata(cursor, value_count)
        infos = [read_tensor_info(cursor) for _ in range(tensor_count)]
        self._start = _padded(cursor.at, read_alignment(cursor, self.metadata))
        self.tensors = self._place(cursor, infos, number)

    def _place(self, cursor: Cursor, infos: list[TensorInfo], number: int) -> list[GgufTensor]:
        """Check that the tensors follow each other without a gap, as every writer lays them out, and fit the file."""
        alignment, at, placed = read_alignment(cursor, self.metadata), 0, list[GgufTensor]()
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


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:  # mmap refuses an empty file
        raise ModelLoadError(f"{path}: the file is empty") from None
    except OSError as error:
        raise ModelLoadError(f"cannot read {path}: {error.strerror}") from error


def _padded(at: int, alignment: int) -> int:
    return -(-at // alignment) * alignment
