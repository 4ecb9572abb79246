"""Objects of a schema."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .regex_dialect import Form
from .schema_errors import Schema, check_counts, drop_if_false, escaped, refuse, refuse_half
from .schema_other_names import other_names
from .schema_strings import compiled_pattern

Check = Callable[[Any, str], Any]  # a schema and its place -> the schema as the compiler is to read it

_NAMES = {"properties", "patternProperties", "propertyNames", "additionalProperties"}


def check_object(given: Schema, check: Check, form: Form, at: str) -> None:
    """Rewrite the keywords of an object; their schemas are put through ``check``."""
    drop_if_false(given, "unevaluatedProperties", at)
    for name in ("properties", "patternProperties"):
        if name in given:
            if not isinstance(given[name], dict):
                refuse(f"{at}/{name}", "an object of schemas is needed")
            given[name] = check_each(given[name], check, f"{at}/{name}")
    others = given.get("additionalProperties")
    if not isinstance(others, dict | bool | None):
        refuse(f"{at}/additionalProperties", "a schema is needed")
    if isinstance(others, dict):
        others = given["additionalProperties"] = check(others, f"{at}/additionalProperties")
    _check_names(given, others, check, form, at)
    _require(given, others, at)
    _check_count(given, others, at)
    if form == "json":
        _name_others(given, others)


def check_each(schemas: Schema, check: Check, at: str) -> Schema:
    """Schemas by name, each checked."""
    for name in schemas:
        refuse_half(name, at)
    return {name: check(one, f"{at}/{escaped(name)}") for name, one in schemas.items()}


def _check_names(given: Schema, others: Any, check: Check, form: Form, at: str) -> None:
    """Names by a pattern, or by a schema of their own: one of the two, without named properties."""
    patterns = given.get("patternProperties", {})
    if ("propertyNames" in given) + bool(patterns) + bool(given.get("properties")) > 1:
        refuse(at, "properties, patternProperties and propertyNames do not go together")
    if patterns:
        if len(patterns) > 1 or others not in (None, False):
            refuse(f"{at}/patternProperties", "one pattern is supported, without additionalProperties")
        given["patternProperties"] = {
            compiled_pattern(name, form, f"{at}/patternProperties/{escaped(name)}"): one
            for name, one in patterns.items()
        }
    if "propertyNames" not in given:
        return
    if others not in (None, True, {}):
        refuse(f"{at}/propertyNames", "with additionalProperties it is not supported")
    names = check(given.pop("propertyNames"), f"{at}/propertyNames")
    if names != {}:
        if names.get("type") != "string" and not all(isinstance(one, str) for one in names.get("enum", [0])):
            refuse(f"{at}/propertyNames", "a schema of strings is needed, with pattern, length, format or enum")
        given["propertyNames"] = names


def _require(given: Schema, others: Any, at: str) -> None:
    """Required properties that are not described are described by what holds for all others."""
    required = given.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        refuse(f"{at}/required", "a list of names is needed")
    missing = [name for name in required if name not in given.get("properties", {})]
    for name in missing:
        refuse_half(name, f"{at}/required")
    if not missing:
        return
    if others is False or "patternProperties" in given or "propertyNames" in given:
        refuse(f"{at}/required", f"{missing[0]!r} is not among the properties")
    given["properties"] = given.get("properties", {}) | {
        name: others if isinstance(others, dict) else {} for name in missing
    }


def _name_others(given: Schema, others: Any) -> None:
    """Beside named properties, give the others a pattern of names that are none of these."""
    if given.get("properties") and others not in (None, False):
        del given["additionalProperties"]
        given["patternProperties"] = {other_names(given["properties"]): {} if others is True else others}


def _check_count(given: Schema, others: Any, at: str) -> None:
    """Refuse counts that the object cannot have, or that a name which comes twice would meet in its place."""
    least, most = check_counts(given, "Properties", at)
    needed, named = len(set(given.get("required", []))), given.get("properties", {})
    if most is not None and most < needed:
        refuse(f"{at}/maxProperties", f"{most} is below the number of required properties, which is {needed}")
    if named and others in (None, False):
        if least > len(named):
            refuse(f"{at}/minProperties", f"{least} is above the number of properties, which is {len(named)}")
    elif least > max(1, needed):
        refuse(f"{at}/minProperties", "above 1 it is supported for named properties only: others may come twice")
    if ("minProperties" in given or "maxProperties" in given) and not given.keys() & _NAMES:
        given["additionalProperties"] = True  # or the compiler would count names where there are none
