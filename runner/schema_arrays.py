"""Arrays of a schema."""

from __future__ import annotations

from typing import Any

from .schema_errors import Schema, check_counts, drop_if_false, refuse
from .schema_objects import Check


def check_array(given: Schema, check: Check, at: str) -> None:
    """Rewrite the keywords of an array; their schemas are put through ``check``."""
    drop_if_false(given, "unevaluatedItems", at)
    if given.pop("uniqueItems", False) is not False:
        refuse(f"{at}/uniqueItems", "not supported")
    items: Any = given.get("items", True)
    if isinstance(items, dict):
        given["items"] = check(items, f"{at}/items")
    elif not isinstance(items, bool):
        refuse(f"{at}/items", "a schema is needed; places have schemas of their own in prefixItems")
    if "prefixItems" in given:
        parts: Any = given["prefixItems"]
        if not isinstance(parts, list) or not parts:
            refuse(f"{at}/prefixItems", "a list of schemas is needed")
        given["prefixItems"] = [check(one, f"{at}/prefixItems/{i}") for i, one in enumerate(parts)]
    _check_count(given, at)


def _check_count(given: Schema, at: str) -> None:
    """The compiler writes all of prefixItems, and others behind them only where ``items`` is there."""
    least, most = check_counts(given, "Items", at)
    places = len(given.get("prefixItems", []))
    if most is not None and most < places:
        refuse(f"{at}/maxItems", f"{most} is below the number of prefixItems, which is {places}")
    closed = given.get("items") is False or (places and "items" not in given)
    if closed and least > places:
        refuse(f"{at}/minItems", f"{least} is above the number of items that are described, which is {places}")
