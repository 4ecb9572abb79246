"""What of a JSON schema the compiler would ignore or loosen is refused, with its place, before it is compiled.

The compiler understands a part of JSON Schema and passes over the rest. Here each keyword is
either known to be honoured, or without effect on validity, or the schema is refused. Some that
say the same in other words are rewritten. A schema that passes may still allow less than it
says: objects take no properties but those that are named, unless ``additionalProperties`` is there.
"""

from __future__ import annotations

from typing import Any, NoReturn
from urllib.parse import unquote

from ..scheduler.errors import InvalidRequestError
from .regex_dialect import to_ascii_classes
from .schema_overlap import may_overlap

Schema = dict[str, Any]

_HEADS = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")  # one of them says all that the compiler reads
_NUMBER = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_FAMILIES: dict[str, frozenset[str]] = {
    "object": frozenset({
        "properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties",
        "maxProperties", "unevaluatedProperties",
    }),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems", "unevaluatedItems", "uniqueItems"}),
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "number": _NUMBER,
    "integer": _NUMBER,
    "boolean": frozenset(),
    "null": frozenset(),
}  # fmt: skip
# All that says what is valid; other words are notes, which change nothing.
_ASSERTIONS = frozenset().union(*_FAMILIES.values(), _HEADS, {
    "type", "not", "if", "then", "else", "contains", "minContains", "maxContains", "dependentRequired",
    "dependentSchemas", "dependencies", "additionalItems", "$dynamicRef", "$recursiveRef",
})  # fmt: skip
FORMATS = frozenset({
    "email", "date", "time", "date-time", "duration", "ipv4", "ipv6", "hostname", "uuid", "uri", "uri-reference",
    "uri-template", "json-pointer", "relative-json-pointer",
})  # fmt: skip
_PLAIN_CHARACTER = r'[^"\\\x00-\x1f]'  # needs no escape in a JSON string


def checked_schema(schema: Any) -> Any:
    """The schema as the compiler is to read it. Raises InvalidRequestError naming the place of what it would ignore."""
    return _Walk(schema).node(schema, "#")


class _Walk:
    """Goes through a schema and writes it anew; a ``$ref`` is looked up from its root."""

    def __init__(self, root: Any) -> None:
        self._root = root

    def node(self, schema: Any, at: str) -> Any:
        if schema is True or schema == {}:
            return {}
        if schema is False:
            _refuse(at, "nothing is valid here")
        if not isinstance(schema, dict):
            _refuse(at, f"a schema is an object or True, got {type(schema).__name__}")
        given: Schema = dict(schema)
        for name in ("$defs", "definitions"):
            if isinstance(given.get(name), dict):
                given[name] = self._each(given[name], f"{at}/{name}")
        asserting = {name for name in given if name in _ASSERTIONS}
        heads = [name for name in _HEADS if name in asserting]
        if heads:
            return self._headed(given, heads[0], asserting - {heads[0]}, at)
        return self._typed(given, asserting, at)

    def _each(self, schemas: Schema, at: str) -> Schema:
        return {name: self.node(one, f"{at}/{_escaped(name)}") for name, one in schemas.items()}

    # --- nodes with one keyword that says it all

    def _headed(self, given: Schema, head: str, beside: set[str], at: str) -> Schema:
        match head:
            case "const" | "enum":
                given = _values_of_type(given, head, at)
                beside -= {"type"}
            case "$ref":
                self.resolve(given, at)
            case "allOf":
                given = self._all_of(given, at)
            case _:
                given = self._any_of(given, head, at)
        if beside:
            _refuse(at, f"{sorted(beside)} beside {head!r}, which would be ignored")
        return given

    def _all_of(self, given: Schema, at: str) -> Schema:
        parts = given.pop("allOf")
        if not isinstance(parts, list) or len(parts) != 1:
            _refuse(f"{at}/allOf", "of several schemas one would be ignored; write one schema")
        return given | self.node(parts[0], f"{at}/allOf/0")

    def _any_of(self, given: Schema, head: str, at: str) -> Schema:
        parts = given.pop(head)
        if not isinstance(parts, list) or not parts:
            _refuse(f"{at}/{head}", "a list of schemas is needed")
        if head == "oneOf":
            self._refuse_overlap(parts, f"{at}/oneOf")
        given["anyOf"] = [self.node(one, f"{at}/{head}/{i}") for i, one in enumerate(parts)]
        return given

    def _refuse_overlap(self, parts: list[Any], at: str) -> None:
        """The compiler reads oneOf as anyOf: the same only where no value fits two of them."""
        whole = [self.resolve(part, f"{at}/{i}") for i, part in enumerate(parts)]
        for i, one in enumerate(whole):
            for j, other in enumerate(whole[:i]):
                if may_overlap(one, other):
                    _refuse(
                        at, f"a value may fit number {j} and {i}: give both a type, or a required constant, that differ"
                    )

    def resolve(self, schema: Any, at: str) -> Any:
        """Follow references to a schema that is none."""
        seen: set[str] = set()
        while isinstance(schema, dict) and "$ref" in schema:
            target = schema["$ref"]
            if not isinstance(target, str) or not target.startswith("#"):
                _refuse(f"{at}/$ref", f"{target!r} is not in this schema")
            if target in seen:
                _refuse(f"{at}/$ref", f"{target!r} refers to itself")
            seen.add(target)
            schema = self._find(target, at)
        return schema

    def _find(self, target: str, at: str) -> Any:
        found = self._root
        for step in unquote(target[1:]).split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            elif isinstance(found, dict) and name in found:
                found = found[name]
            else:
                _refuse(f"{at}/$ref", f"{target!r} leads nowhere")
        return found

    # --- nodes of a type

    def _typed(self, given: Schema, asserting: set[str], at: str) -> Schema:
        types = given.get("type", [])
        types = types if isinstance(types, list) else [types]
        if unknown := [one for one in types if one not in _FAMILIES]:
            _refuse(f"{at}/type", f"{unknown[0]!r} is no type; types are {', '.join(_FAMILIES)}")
        if not types:
            types = _types_meant(asserting, at)
        known = frozenset({"type"}).union(*(_FAMILIES[one] for one in types))
        if foreign := sorted(asserting - known):
            _refuse(f"{at}/{foreign[0]}", f"is not supported here (type {', '.join(types) or 'any'})")
        if "object" in types:
            self._object(given, at)
        if "array" in types:
            self._array(given, at)
        if "string" in types:
            _string(given, at)
        if {"number", "integer"} & set(types):
            _number(given, at)
        return given

    def _object(self, given: Schema, at: str) -> None:
        _drop_if_false(given, "unevaluatedProperties", at)
        names = given.get("properties", {})
        patterns = given.get("patternProperties", {})
        if not isinstance(names, dict) or not isinstance(patterns, dict):
            _refuse(at, "properties and patternProperties are objects of schemas")
        if ("propertyNames" in given) + bool(patterns) + bool(names) > 1:
            _refuse(at, "properties, patternProperties and propertyNames do not go together")
        others = given.get("additionalProperties")
        if patterns and (len(patterns) > 1 or others not in (None, False)):
            _refuse(f"{at}/patternProperties", "one pattern is supported, without additionalProperties")
        if "properties" in given:
            given["properties"] = self._each(names, f"{at}/properties")
        if patterns:
            schemas = self._each(patterns, f"{at}/patternProperties")
            given["patternProperties"] = {to_ascii_classes(name): one for name, one in schemas.items()}
        if "propertyNames" in given:
            given["propertyNames"] = self.node(given["propertyNames"], f"{at}/propertyNames")
        if isinstance(others, dict):
            others = given["additionalProperties"] = self.node(others, f"{at}/additionalProperties")
        _require(given, others, at)

    def _array(self, given: Schema, at: str) -> None:
        _drop_if_false(given, "unevaluatedItems", at)
        if given.pop("uniqueItems", False) is not False:
            _refuse(f"{at}/uniqueItems", "is not supported")
        if isinstance(given.get("items"), dict):
            given["items"] = self.node(given["items"], f"{at}/items")
        elif not isinstance(given.get("items", True), bool):
            _refuse(f"{at}/items", "a schema is needed; places have schemas of their own in prefixItems")
        if "prefixItems" in given:
            parts = given["prefixItems"]
            if not isinstance(parts, list):
                _refuse(f"{at}/prefixItems", "a list of schemas is needed")
            given["prefixItems"] = [self.node(one, f"{at}/prefixItems/{i}") for i, one in enumerate(parts)]


def _require(given: Schema, others: Any, at: str) -> None:
    """Required properties that are not described are described by what holds for all others."""
    required = given.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        _refuse(f"{at}/required", "a list of names is needed")
    missing = [name for name in required if name not in given.get("properties", {})]
    if not missing:
        return
    if others is False or "patternProperties" in given or "propertyNames" in given:
        _refuse(f"{at}/required", f"{missing[0]!r} is not among the properties")
    given["properties"] = given.get("properties", {}) | {
        name: others if isinstance(others, dict) else {} for name in missing
    }


def _values_of_type(given: Schema, head: str, at: str) -> Schema:
    """Of constants beside a type those that have it; then the type says nothing more."""
    values = given["enum"] if head == "enum" else [given["const"]]
    if not isinstance(values, list) or not values:
        _refuse(f"{at}/enum", "a list of values that is not empty is needed")
    types = given.pop("type", None)
    if types is not None:
        types = types if isinstance(types, list) else [types]
        values = [value for value in values if _has_type(value, types)]
        if not values:
            _refuse(f"{at}/{head}", f"no value is of type {types}")
    given.pop(head)
    return given | {"enum": values}


def _has_type(value: Any, types: list[str]) -> bool:
    if isinstance(value, bool) or value is None:
        return ("null" if value is None else "boolean") in types
    if isinstance(value, int | float):
        return "number" in types or ("integer" in types and float(value).is_integer())
    return {str: "string", list: "array", dict: "object"}[type(value)] in types


def _types_meant(asserting: set[str], at: str) -> list[str]:
    """The type that keywords without one are about: the only one for which they say anything."""
    if not asserting:
        return []
    meant = [one for one, names in _FAMILIES.items() if asserting <= names]
    if not meant:
        first = next((name for name in sorted(asserting) if not any(name in f for f in _FAMILIES.values())), None)
        _refuse(
            f"{at}/{first}" if first else at, "is not supported" if first else "keywords of several types need a type"
        )
    return meant[:1]


def _string(given: Schema, at: str) -> None:
    form = given.get("format")
    if form is not None and form not in FORMATS:
        _refuse(f"{at}/format", f"{form!r} is not supported; supported are {', '.join(sorted(FORMATS))}")
    length = [name for name in ("minLength", "maxLength") if name in given]
    if ("pattern" in given) + ("format" in given) + bool(length) > 1:
        _refuse(at, "of pattern, format and limits of length one is supported at a time")
    if "pattern" in given:
        given["pattern"] = to_ascii_classes(given["pattern"])
    elif length:
        # By itself the compiler would let control characters into a string of limited length.
        low, high = given.pop("minLength", 0), given.pop("maxLength", "")
        given["pattern"] = rf"^{_PLAIN_CHARACTER}{{{low},{high}}}$"


def _number(given: Schema, at: str) -> None:
    step = given.pop("multipleOf", None)
    if step is not None and (step != 1 or given.get("type") != "integer"):
        _refuse(f"{at}/multipleOf", "is not supported")


def _drop_if_false(given: Schema, name: str, at: str) -> None:
    if given.pop(name, False) is not False:
        _refuse(f"{at}/{name}", "only false is supported")


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _refuse(at: str, why: str) -> NoReturn:
    raise InvalidRequestError(f"the schema at {at}: {why}")
