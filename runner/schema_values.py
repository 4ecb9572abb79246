"""Constants of a schema: which can be written as they are, and when two are the same to JSON."""

from __future__ import annotations

import math
from typing import Any

from .schema_errors import Schema, refuse, refuse_half


def check_values(given: Schema, head: str, at: str) -> Schema:
    """``const`` or ``enum`` as an enum; beside a type of those values that have it, so the type says nothing more."""
    values = [given["const"]] if head == "const" else given["enum"]
    if not isinstance(values, list) or not values:
        refuse(f"{at}/enum", "a list of values that is not empty is needed")
    types = given.pop("type", None)
    if types is not None:
        types = types if isinstance(types, list) else [types]
        values = [value for value in values if _has_type(value, types)]
        if not values:
            refuse(f"{at}/{head}", f"no value is of type {types}")
    for value in values:
        _check(value, f"{at}/{head}")
    given.pop(head)
    return given | {"enum": values}


def _check(value: Any, at: str) -> None:
    """Refuse numbers that would come out as others, and texts that no file can hold."""
    if isinstance(value, dict):
        for name, one in value.items():
            _check(name, at)
            _check(one, at)
    elif isinstance(value, list):
        for one in value:
            _check(one, at)
    elif isinstance(value, float) and not math.isfinite(value):
        refuse(at, f"{value} is no number of JSON")
    elif isinstance(value, int) and not _is_kept(value):
        refuse(at, f"{value} has more than 64 bits, which is not supported")
    elif isinstance(value, str):
        refuse_half(value, at)


def _is_kept(value: int) -> bool:
    """The compiler keeps 64 bits, and what a double holds."""
    if -(2**63) <= value < 2**63:
        return True
    try:
        return int(float(value)) == value
    except OverflowError:
        return False


def _has_type(value: Any, types: list[Any]) -> bool:
    kind = type_of(value)
    return kind in types or (kind == "number" and "integer" in types and math.isfinite(value) and value == int(value))


def type_of(value: Any) -> str:
    """The JSON type of a value."""
    if isinstance(value, bool) or value is None:
        return "null" if value is None else "boolean"
    if isinstance(value, int | float):
        return "number"
    return {str: "string", list: "array", dict: "object"}[type(value)]


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal to JSON Schema: 1 and 1.0 are, 1 and true are not."""
    if type_of(one) != type_of(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    return one == other
