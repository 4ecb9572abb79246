"""Numbers of a schema: limits are brought to a form that the compiler keeps, or refused."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any

from .schema_errors import Schema, refuse

_LIMITS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
_PLACES = 6  # digits behind the point that the compiler writes where a number has limits
_LARGEST = 2**63 - 1
_EXACT = Context(prec=800)  # more than a double has digits


def check_number(given: Schema, types: list[str], at: str) -> None:
    """Rewrite the limits of numbers; refuse those that no number that can be written meets."""
    if "multipleOf" in given and ("number" in types or given.pop("multipleOf") != 1):
        refuse(f"{at}/multipleOf", "not supported")
    for name in _LIMITS:
        if name in given and not _is_number(given[name]):
            refuse(f"{at}/{name}", f"{given[name]!r} is no number")
    if "number" in types:
        _check_reals(given, at)
    else:
        _whole_limits(given, at)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _whole_limits(given: Schema, at: str) -> None:
    """All limits of an integer as whole numbers that are included."""
    lows = [math.ceil(given["minimum"])] if "minimum" in given else []
    highs = [math.floor(given["maximum"])] if "maximum" in given else []
    if "exclusiveMinimum" in given:
        lows.append(math.floor(given.pop("exclusiveMinimum")) + 1)
    if "exclusiveMaximum" in given:
        highs.append(math.ceil(given.pop("exclusiveMaximum")) - 1)
    for name, limits, pick in (("minimum", lows, max), ("maximum", highs, min)):
        if limits:
            given[name] = pick(limits)
            if abs(given[name]) > _LARGEST:
                refuse(f"{at}/{name}", f"{given[name]} has more than 64 bits, which is not supported")
    if lows and highs and given["minimum"] > given["maximum"]:
        refuse(at, f"no integer is within its limits ({given['minimum']} to {given['maximum']})")


def _check_reals(given: Schema, at: str) -> None:
    """Between the limits there must be a number of few decimals: the compiler writes no others."""
    lows = [_grid(given[name], name == "exclusiveMinimum", 1) for name in _LIMITS[:2] if name in given]
    highs = [_grid(given[name], name == "exclusiveMaximum", -1) for name in _LIMITS[2:] if name in given]
    if lows and highs and max(lows) > min(highs):
        limits = ", ".join(f"{name} {given[name]}" for name in _LIMITS if name in given)
        refuse(at, f"no number of at most {_PLACES} decimals is within its limits ({limits})")


def _grid(limit: float, excluded: bool, inwards: int) -> Decimal:
    """The nearest number of few decimals that is within a limit, in units of the last decimal."""
    scaled = Decimal(repr(limit)).scaleb(_PLACES, _EXACT)
    nearest = scaled.to_integral_value(ROUND_CEILING if inwards > 0 else ROUND_FLOOR, _EXACT)
    return _EXACT.add(nearest, inwards) if excluded and nearest == scaled else nearest
