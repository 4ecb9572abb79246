"""Checks of single values, which name what they refuse."""

from __future__ import annotations

from .errors import InvalidRequestError
from .setting_types import is_number, is_whole

TOKEN_LIMIT = 2**31  # tables hold tokens as 32-bit numbers; counts of tokens go as far


def whole(name: str, value: object, low: int, limit: int, whose: str = "") -> None:
    """Raise InvalidRequestError unless ``value`` is a whole number from ``low`` to ``limit - 1``.

    ``whose`` stands at the text's end, to name the request.
    """
    if not isinstance(value, int) or not is_whole(value):
        raise InvalidRequestError(f"{name} is {value!r}, a whole number is needed{whose}")
    if not low <= value < limit:
        raise InvalidRequestError(f"{name} is {value}, the limits are {low} and {limit - 1}{whose}")


def number(name: str, value: object, low: float, high: float) -> None:
    """Raise InvalidRequestError unless ``value`` is a number from ``low`` to ``high``."""
    if not isinstance(value, int | float) or not is_number(value):
        raise InvalidRequestError(f"{name} is {value!r}, a number is needed")
    if not low <= value <= high:  # also refuses NaN, which compares false
        raise InvalidRequestError(f"{name} is {value}, the limits are {low} and {high}")
