"""A model folder in Hugging Face layout: JSON files and safetensors weights, whole or in shards."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from ..scheduler.errors import ModelLoadError

_WHOLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_MAX_JSON_BYTES = 256 << 20  # a tokenizer.json has some 20 MB
_SAMPLES, _SAMPLE_BYTES = 256, 4096  # of each weights file, for the model's identity


class HfFolder:
    """Reads the small files now and then, and says where the tensors lie.

    Args:
        path: the folder; it must hold ``config.json``.

    Raises:
        ModelLoadError: the folder or its ``config.json`` is missing or is no JSON object.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        config = self.json("config.json")
        if config is None:
            raise ModelLoadError(f"{self.path} has no config.json")
        self.config: dict[str, Any] = config

    def text(self, name: str) -> str | None:
        """The file's text, or None when there is no such file."""
        path = self.path / name
        if not path.is_file():
            return None
        if (size := path.stat().st_size) > _MAX_JSON_BYTES:
            raise ModelLoadError(f"{path} has {size} bytes, limit is {_MAX_JSON_BYTES}")
        try:
            return path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelLoadError(f"cannot read {path}: {error}") from error

    def json(self, name: str) -> dict[str, Any] | None:
        """The file's JSON object, or None when there is no such file."""
        text = self.text(name)
        if text is None:
            return None
        try:
            return msgspec.json.decode(text, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise ModelLoadError(f"{self.path / name} is no JSON object: {error}") from error

    def weight_files(self) -> list[Path]:
        """The safetensors files, in the order of their names; all of them exist."""
        index = self.json(_INDEX)
        if index is None:
            files = [self.path / _WHOLE]
        else:
            files = sorted({self.path / _file_name(self.path, name) for name in _weight_map(self.path, index).values()})
        for file in files:
            if not file.is_file():
                raise ModelLoadError(f"{file} is missing" + (f", which {_INDEX} names" if index else ""))
        return files

    def identity(self) -> str:
        """Digest of config, file sizes, headers and samples of the weights: cheap, and apart for two fine-tunes."""
        digest = hashlib.sha256((self.text("config.json") or "").encode())
        for file in self.weight_files():
            size = file.stat().st_size
            digest.update(f"{file.name}:{size}:".encode())
            for sample in _samples(file, size):
                digest.update(sample)
        return digest.hexdigest()


def _weight_map(path: Path, index: dict[str, Any]) -> dict[str, Any]:
    found = index.get("weight_map")
    if not isinstance(found, dict) or not found:
        raise ModelLoadError(f"{path / _INDEX} has no weight_map")
    return found


def _file_name(path: Path, name: object) -> str:
    """A shard's name must stay inside the folder: the index comes from elsewhere."""
    if not isinstance(name, str) or Path(name).name != name:
        raise ModelLoadError(f"{path / _INDEX} names the file {name!r}, expected a plain file name")
    return name


def _samples(file: Path, size: int) -> Iterator[bytes]:
    step = max(_SAMPLE_BYTES, size // _SAMPLES)
    with file.open("rb") as stream:
        for at in range(0, size, step):
            stream.seek(at)
            yield stream.read(_SAMPLE_BYTES)
