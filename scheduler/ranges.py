"""Checks of single values of requests and settings, which name what they refuse."""

from __future__ import annotations

from .errors import InvalidRequestError
from .setting_types import is_number, is_whole, shown

TOKEN_LIMIT = 2**31  # tables hold tokens as 32-bit numbers; counts of tokens go as far


def of_kind(name: str, value: object, kinds: tuple[type, ...], needed: str) -> None:
    """Raise InvalidRequestError unless ``value`` is of one of these types."""
    if not isinstance(value, kinds):
        raise InvalidRequestError(f"{name} is {shown(value)}, needed is {needed}")


def whole(name: str, value: object, low: int, limit: int, whose: str = "") -> None:
    """Raise InvalidRequestError unless ``value`` is a whole number from ``low`` to ``limit - 1``.

    ``whose`` stands at the text's end, to name the request.
    """
    if not isinstance(value, int) or not is_whole(value):
        raise InvalidRequestError(f"{name} is {shown(value)}, a whole number is needed{whose}")
    if not low <= value < limit:
        raise InvalidRequestError(f"{name} is {shown(value)}, the limits are {low} and {limit - 1}{whose}")


def number(name: str, value: object, low: float, high: float) -> None:
    """Raise InvalidRequestError unless ``value`` is a number from ``low`` to ``high``."""
    if not isinstance(value, int | float) or not is_number(value):
        raise InvalidRequestError(f"{name} is {shown(value)}, a number is needed")
    if not low <= value <= high:  # also refuses NaN, which compares false
        raise InvalidRequestError(f"{name} is {shown(value)}, the limits are {low} and {high}")
