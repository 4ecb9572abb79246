"""Checks of single values of requests and settings, which name what they refuse."""

from __future__ import annotations

from .errors import ConfigError, InvalidRequestError

MOST = 2**31 - 1  # of a setting that counts; two such multiplied still fit a column
SHOWN = 200  # characters of a value in an error


def of_kind(name: str, value: object, kinds: tuple[type, ...], needed: str) -> None:
    """Raise InvalidRequestError unless ``value`` is of one of these types."""
    if not isinstance(value, kinds):
        raise InvalidRequestError(f"{name} is {shown(value)}, needed is {needed}")


def shown(value: object) -> str:
    """A value as errors quote it; a number or text of any length, cut."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a whole number of more than 4,300 digits, or an object with faults of its own
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def whole(name: str, value: object, low: int, limit: int) -> None:
    """Raise InvalidRequestError unless ``value`` is a whole number from ``low`` to ``limit - 1``."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidRequestError(f"{name} is {shown(value)}, a whole number is needed")
    if not low <= value < limit:
        raise InvalidRequestError(f"{name} is {shown(value)}, the limits are {low} and {limit - 1}")


def number(name: str, value: object, low: float, high: float) -> None:
    """Raise InvalidRequestError unless ``value`` is a number from ``low`` to ``high``."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InvalidRequestError(f"{name} is {shown(value)}, a number is needed")
    if not low <= value <= high:  # also refuses NaN, which compares false
        raise InvalidRequestError(f"{name} is {shown(value)}, the limits are {low} and {high}")


def at_least(name: str, value: object, low: int, most: int = MOST) -> None:
    """Raise ConfigError unless ``value`` is a whole number from ``low`` to ``most``."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"{name} is {shown(value)}, a whole number is needed")
    if not low <= value <= most:
        limit = f"least is {low}" if value < low else f"most is {most}"
        raise ConfigError(f"{name} is {shown(value)}, the {limit}")
