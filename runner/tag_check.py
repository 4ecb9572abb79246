"""Structural tags before they are compiled: their schemas and patterns are checked, and no field is passed over."""

from __future__ import annotations

from typing import Any, NoReturn

from ..scheduler.errors import InvalidRequestError
from .regex_dialect import as_compiled
from .schema_check import checked_schema

Tag = dict[str, Any]

# The fields of each format; what the compiler does not know it would ignore.
_FIELDS: dict[str, frozenset[str]] = {
    "const_string": frozenset({"value"}),
    "json_schema": frozenset({"json_schema", "style", "max_whitespace_cnt"}),
    "qwen_xml_parameter": frozenset({"json_schema"}),
    "any_text": frozenset({"excludes", "max_tokens", "max_chars"}),
    "token": frozenset({"token"}),
    "exclude_token": frozenset({"exclude_tokens"}),
    "any_tokens": frozenset({"exclude_tokens", "max_tokens"}),
    "grammar": frozenset({"grammar", "syntax"}),
    "regex": frozenset({"pattern"}),
    "sequence": frozenset({"elements"}),
    "or": frozenset({"elements"}),
    "tag": frozenset({"begin", "content", "end"}),
    "triggered_tags": frozenset({"triggers", "tags", "at_least_one", "stop_after_first", "excludes"}),
    "token_triggered_tags": frozenset({
        "trigger_tokens", "tags", "exclude_tokens", "at_least_one", "stop_after_first",
    }),
    "tags_with_separator": frozenset({"tags", "separator", "at_least_one", "stop_after_first"}),
    "optional": frozenset({"content"}),
    "plus": frozenset({"content"}),
    "star": frozenset({"content"}),
    "repeat": frozenset({"min", "max", "content"}),
    "dispatch": frozenset({"rules", "loop", "excludes"}),
    "token_dispatch": frozenset({"rules", "loop", "exclude_tokens"}),
}  # fmt: skip


def checked_tag(tag: Any, max_whitespace: int) -> Tag:
    """The tag as the compiler is to read it. Raises InvalidRequestError naming the place of what it would ignore."""
    if not isinstance(tag, dict) or tag.get("type") != "structural_tag":
        _refuse("#", "needed is an object with type 'structural_tag' and a format")
    if unknown := sorted(tag.keys() - {"type", "format"}):
        _refuse(f"#/{unknown[0]}", "not supported")
    if "format" not in tag:
        _refuse("#/format", "is missing")
    return tag | {"format": _format(tag["format"], "#/format", max_whitespace)}


def _format(given: Any, at: str, blanks: int, default: str | None = None) -> Tag:
    if not isinstance(given, dict):
        _refuse(at, f"a format is an object, got {type(given).__name__}")
    kind = given.get("type", default)
    if not isinstance(kind, str) or kind not in _FIELDS:
        _refuse(f"{at}/type", f"{kind!r} is no format; formats are {', '.join(_FIELDS)}")
    if unknown := sorted(given.keys() - _FIELDS[kind] - {"type"}):
        _refuse(f"{at}/{unknown[0]}", f"not supported in a format {kind!r}")
    found: Tag = given | {"type": kind}
    if "json_schema" in _FIELDS[kind]:
        _schema(found, kind, at, blanks)
    elif kind == "regex":
        _regex(found, at)
    _inside(found, at, blanks)
    return found


def _inside(found: Tag, at: str, blanks: int) -> None:
    """Check the formats that a format is made of."""
    if "content" in found:
        found["content"] = _format(found["content"], f"{at}/content", blanks)
    for name, default in (("elements", None), ("tags", "tag")):
        if name in found:
            found[name] = [
                _format(one, f"{at}/{name}/{i}", blanks, default) for i, one in enumerate(_list(found, name, at))
            ]
    for name in ("begin", "end"):
        if isinstance(found.get(name), dict):
            found[name] = _format(found[name], f"{at}/{name}", blanks, "token")
    if "rules" in found:
        found["rules"] = [_rule(one, f"{at}/rules/{i}", blanks) for i, one in enumerate(_list(found, "rules", at))]


def _rule(rule: Any, at: str, blanks: int) -> list[Any]:
    if not isinstance(rule, list) or len(rule) != 2:
        _refuse(at, "a rule is a list of two: what triggers it, and a format")
    return [rule[0], _format(rule[1], f"{at}/1", blanks)]


def _schema(found: Tag, kind: str, at: str, blanks: int) -> None:
    if "json_schema" not in found:
        _refuse(f"{at}/json_schema", "is missing")
    is_json = kind == "json_schema" and found.get("style", "json") == "json"
    found["json_schema"] = checked_schema(found["json_schema"], f"{at}/json_schema", "json" if is_json else "plain")
    if kind == "json_schema" and found.get("max_whitespace_cnt") is None:
        found["max_whitespace_cnt"] = blanks


def _regex(found: Tag, at: str) -> None:
    if not isinstance(found.get("pattern"), str):
        _refuse(f"{at}/pattern", f"{found.get('pattern')!r} is no text")
    try:
        found["pattern"] = as_compiled(found["pattern"])
    except InvalidRequestError as error:
        _refuse(f"{at}/pattern", str(error))


def _list(found: Tag, name: str, at: str) -> list[Any]:
    if not isinstance(found[name], list):
        _refuse(f"{at}/{name}", "a list is needed")
    return found[name]


def _refuse(at: str, why: str) -> NoReturn:
    raise InvalidRequestError(f"the structural tag at {at}: {why}")
