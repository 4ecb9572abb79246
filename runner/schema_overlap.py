"""Whether a value could fit two schemas, as far as their types and required constants tell."""

from __future__ import annotations

from typing import Any

from .schema_values import same, type_of


def may_overlap(one: Any, other: Any) -> bool:
    """False where no value fits both."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        return True
    values, others = _values(one), _values(other)
    if values is not None and others is not None:
        return any(same(value, another) for value in values for another in others)
    types, more = _types(one), _types(other)
    if types and more and not types & more:
        return False
    return not (types == more == {"object"} and _told_apart(one, other))


def _told_apart(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether a property that both require has no value in common."""
    both = set(one.get("required", ())) & set(other.get("required", ()))
    properties, more = one.get("properties", {}), other.get("properties", {})
    return any(name in properties and name in more and not may_overlap(properties[name], more[name]) for name in both)


def _values(schema: dict[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    return schema.get("enum")


def _types(schema: dict[str, Any]) -> set[str]:
    values = _values(schema)
    if values is not None:
        return {type_of(value) for value in values}
    types = schema.get("type", [])
    return {"number" if one == "integer" else one for one in (types if isinstance(types, list) else [types])}
