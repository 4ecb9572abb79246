"""Checks of single values, which name what they refuse."""

from __future__ import annotations

from .errors import InvalidRequestError


def whole(name: str, value: object, low: int, limit: int) -> None:
    """Raise InvalidRequestError unless ``value`` is a whole number from ``low`` to ``limit - 1``."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidRequestError(f"{name} is {value!r}, a whole number is needed")
    if not low <= value < limit:
        raise InvalidRequestError(f"{name} is {value}, the limits are {low} and {limit - 1}")


def number(name: str, value: object, low: float, high: float) -> None:
    """Raise InvalidRequestError unless ``value`` is a number from ``low`` to ``high``."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InvalidRequestError(f"{name} is {value!r}, a number is needed")
    if not low <= value <= high:  # also refuses NaN, which compares false
        raise InvalidRequestError(f"{name} is {value}, the limits are {low} and {high}")
