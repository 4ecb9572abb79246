"""What grammars are compiled from: a constraint as text, a vocabulary, and limits."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from ..scheduler.errors import ConfigError, InvalidRequestError
from ..scheduler.params import CONSTRAINTS, StructuredOutput
from ..scheduler.setting_types import at_least, shown

MAX_SPEC_BYTES = 256 * 1024  # a grammar of this size takes longer than its time limit anyway


class GrammarSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One constraint.

    Args:
        kind: the name of its field in ``StructuredOutput``.
        text: the constraint; objects and lists as JSON.
        max_whitespace: most blanks in a row between the parts of a JSON text.
    """

    kind: str
    text: str
    max_whitespace: int = 8


class Vocabulary(msgspec.Struct, frozen=True, kw_only=True):
    """What masks are made for.

    Args:
        tokens: the bytes of each token; empty for tokens that may never stand in a constrained text.
        width: number of logits; tokens from ``len(tokens)`` on are never allowed.
        stop_token_ids: tokens that end a text; allowed where the grammar may end.
    """

    tokens: list[bytes]
    width: int
    stop_token_ids: list[int]


class GrammarConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the grammars of structured output.

    Args:
        compile_seconds: time that one grammar may take to compile.
        compile_memory: bytes of memory that it may take meanwhile.
        mask_seconds: time that one mask may take to make; a request whose grammar needs more ends.
        num_compilers: grammars that are compiled at once, each in a process of its own.
        cache_bytes: size of the cache of compiled grammars; those in use are not counted.
        preload: start the compilers and import their libraries with the engine, which takes seconds, and
            not with the first constrained request, whose imports disturb others for a tenth of one.
    """

    compile_seconds: float = 10.0
    compile_memory: int = 1 << 30
    mask_seconds: float = 0.25
    num_compilers: int = 2
    cache_bytes: int = 256 << 20
    preload: bool = False

    def __post_init__(self) -> None:
        for name in ("compile_seconds", "mask_seconds"):
            seconds: object = getattr(self, name)
            if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not seconds > 0:
                raise ConfigError(f"{name} is {shown(seconds)}, needed is a number above 0")
        if not isinstance(self.preload, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"preload is {shown(self.preload)}, needed is True or False")
        at_least("compile_memory", self.compile_memory, 1 << 20, most=2**63 - 1)
        at_least("num_compilers", self.num_compilers, 1)
        at_least("cache_bytes", self.cache_bytes, 0, most=2**63 - 1)


def spec_of(structured: StructuredOutput) -> GrammarSpec:
    """The constraint of a request. Raises InvalidRequestError for one that is too large, or cannot be written."""
    kind = next(name for name in CONSTRAINTS if getattr(structured, name) is not None)
    value = getattr(structured, kind)
    if kind == "json_object" and value is not True:
        raise InvalidRequestError(f"structured_output.json_object is {shown(value)}, needed is True")
    if kind == "choice":
        _check_choice(value)
    if kind == "json_schema" and isinstance(value, type):
        value = _schema_of(value)
    # Plain text: what a class of text adds to it cannot be sent to the process that compiles.
    text = str.__str__(value) if isinstance(value, str) else _json(kind, value)
    if kind in ("regex", "grammar") and not isinstance(value, str):
        raise InvalidRequestError(f"structured_output.{kind} is {type(value).__name__}, needed is text")
    _check_size(kind, text)
    return GrammarSpec(kind=kind, text=text, max_whitespace=int(structured.max_whitespace))


def _schema_of(kind: Any) -> Any:
    """The schema of a class: of msgspec's, a dataclass, or of pydantic's."""
    try:
        return kind.model_json_schema() if hasattr(kind, "model_json_schema") else msgspec.json.schema(kind)
    except TypeError as error:
        raise InvalidRequestError(f"structured_output.json_schema is a class without a schema: {error}") from None


def _check_choice(value: Any) -> None:
    if isinstance(value, list | tuple) and value and all(isinstance(one, str) for one in value):  # pyright: ignore[reportUnknownVariableType]
        return
    raise InvalidRequestError(
        f"structured_output.choice is {shown(value)}, needed is a list of texts that is not empty"
    )


def _json(kind: str, value: Any) -> str:
    try:
        # Not msgspec's own, which writes null for what is no number.
        return json.dumps(msgspec.to_builtins(value), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequestError(f"structured_output.{kind} cannot be written as JSON: {error}") from None


def _check_size(kind: str, text: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"structured_output.{kind} is no valid text: {error}") from None
    if size > MAX_SPEC_BYTES:
        raise InvalidRequestError(f"structured_output.{kind} has {size} bytes, limit is {MAX_SPEC_BYTES}")
