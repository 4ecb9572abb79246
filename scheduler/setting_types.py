"""Types of settings: one table says what each needs, whichever record or class holds it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

from .errors import ConfigError

MOST = 2**31 - 1  # of a setting that counts; two such multiplied still fit a column
SHOWN = 200  # characters of a value in an error

Kind = tuple[Callable[[object], bool], str]  # whether a value is of it; what the error says is needed


def is_whole(value: object) -> bool:
    """Whether a value is a whole number; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether a value is a number; True and False are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _are_tokens(value: object) -> bool:
    if not isinstance(value, tuple | list):
        return False
    return all(is_whole(token) and token >= 0 for token in cast("Sequence[int]", value))


TEXT: Kind = (lambda value: isinstance(value, str), "text")
FLAG: Kind = (lambda value: isinstance(value, bool), "True or False")
NUMBER: Kind = (is_number, "a number")

# Whole numbers have their types checked with their limits, by ``at_least``.
KINDS: dict[str, Kind] = {
    "enable_chunked_prefill": FLAG,
    "enable_prefix_caching": FLAG,
    "priority_preemption": FLAG,
    "merge_equal_blocks": FLAG,
    "watermark": NUMBER,
    "weights_id": TEXT,
    "prefix_hash": TEXT,
    "eos_token_ids": (_are_tokens, "a tuple of token ids"),
}


def check_types(settings: Iterable[tuple[str, object]], more: Mapping[str, Kind] | None = None) -> None:
    """Raise ConfigError for the first setting whose value is not of the kind that its name has; others pass."""
    kinds = KINDS if more is None else KINDS | dict(more)
    for name, value in settings:
        is_it, needed = kinds.get(name, (None, ""))
        if is_it is not None and not is_it(value):
            raise ConfigError(f"{name} is {shown(value)}, needed is {needed}")


def shown(value: object) -> str:
    """A value as errors quote it; a number or text of any length, cut."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a whole number of more than 4,300 digits, or an object with faults of its own
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def at_least(name: str, value: object, low: int, most: int = MOST) -> None:
    """Raise ConfigError unless ``value`` is a whole number from ``low`` to ``most``."""
    if not isinstance(value, int) or not is_whole(value):
        raise ConfigError(f"{name} is {shown(value)}, a whole number is needed")
    if not low <= value <= most:
        limit = f"least is {low}" if value < low else f"most is {most}"
        raise ConfigError(f"{name} is {shown(value)}, the {limit}")
