"""What of a JSON schema the compiler would ignore or loosen is refused, with its place, before it is compiled.

The compiler understands a part of JSON Schema and passes over the rest. Here each keyword is
either known to be honoured, or without effect on validity, or the schema is refused. Some that
say the same in other words are rewritten. A schema that passes may still allow less than it
says: objects take no properties but those that are named, unless ``additionalProperties`` is there,
whose names beside named ones need no escape in JSON, keywords without a type allow the type that
they speak of and no other, and a pattern is matched by the whole of a string.
"""

from __future__ import annotations

from typing import Any

from .regex_dialect import Form
from .schema_arrays import check_array
from .schema_errors import Schema, refuse
from .schema_numbers import check_number
from .schema_objects import check_each, check_object
from .schema_overlap import may_overlap
from .schema_refs import References
from .schema_strings import check_string
from .schema_values import check_values

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


def checked_schema(schema: Any, at: str = "#", form: Form = "json") -> Any:
    """The schema as the compiler is to read it. Raises InvalidRequestError naming the place of what it would ignore.

    Args:
        at: the place of the schema itself.
        form: how strings are written: as JSON, or "plain", with nothing that JSON and XML write differently.
    """
    return _Walk(schema, at, form).whole()


class _Walk:
    """Goes through a schema and writes it anew; a ``$ref`` is looked up from its root."""

    def __init__(self, root: Any, at: str, form: Form) -> None:
        self._root, self._at = root, at
        self._form: Form = form
        self._references = References(root)
        self._moved: dict[str, str] = {}  # targets of references -> their names in $defs
        self._one_ofs: list[tuple[list[Any], str]] = []

    def whole(self) -> Any:
        checked = self.node(self._root, self._at)
        done: Schema = {}
        while len(done) < len(self._moved):  # checking a target may reach others
            for target, name in list(self._moved.items())[len(done) :]:
                _, schema = self._references.resolve({"$ref": target}, target)
                done[name] = self.node(schema, self._at + target[1:])
        for parts, at in self._one_ofs:  # last, when all that they refer to is known to be well formed
            self._refuse_overlap(parts, at)
        return checked | {"$defs": checked.get("$defs", {}) | done} if done else checked

    def node(self, schema: Any, at: str) -> Any:
        if schema is True or schema == {}:
            return {}
        if schema is False:
            refuse(at, "nothing is valid here")
        if not isinstance(schema, dict):
            refuse(at, f"a schema is an object or True, got {type(schema).__name__}")
        given: Schema = dict(schema)
        if "$id" in given and at != self._at:
            refuse(f"{at}/$id", "not supported inside a schema")
        for name in ("$defs", "definitions"):
            if isinstance(given.get(name), dict):
                given[name] = check_each(given[name], self.node, f"{at}/{name}")
        asserting = {name for name in given if name in _ASSERTIONS}
        heads = [name for name in _HEADS if name in asserting]
        if heads:
            return self._headed(given, heads[0], asserting - {heads[0]}, at)
        return self._typed(given, asserting, at)

    # --- nodes with one keyword that says it all

    def _headed(self, given: Schema, head: str, beside: set[str], at: str) -> Schema:
        match head:
            case "const" | "enum":
                given = check_values(given, head, at)
                beside -= {"type"}
            case "$ref":
                given["$ref"] = self._reference(given, at)
            case "allOf":
                given = self._all_of(given, at)
            case _:
                given = self._any_of(given, head, at)
        if beside:
            refuse(at, f"{sorted(beside)} beside {head!r}, which would be ignored")
        return given

    def _reference(self, given: Schema, at: str) -> str:
        """Where the reference leads in what is compiled: its target is checked, and kept among the definitions."""
        target, _ = self._references.resolve(given, at)
        self._references.refuse_loop(given, at)
        if target == "#":
            return target
        if (name := self._references.definition(target)) is not None:
            return f"#/{name}"
        taken = self._root.get("$defs", {})
        if target not in self._moved:
            self._moved[target] = next(
                name for i in range(len(taken) + 1) if (name := f"moved {len(self._moved)}{'.' * i}") not in taken
            )
        return f"#/$defs/{self._moved[target]}"

    def _all_of(self, given: Schema, at: str) -> Schema:
        parts = given.pop("allOf")
        if not isinstance(parts, list) or len(parts) != 1:
            refuse(f"{at}/allOf", "of several schemas one would be ignored; write one schema")
        return given | self.node(parts[0], f"{at}/allOf/0")

    def _any_of(self, given: Schema, head: str, at: str) -> Schema:
        parts = given.pop(head)
        if not isinstance(parts, list) or not parts:
            refuse(f"{at}/{head}", "a list of schemas is needed")
        if head == "oneOf":
            self._one_ofs.append((parts, f"{at}/oneOf"))
        given["anyOf"] = [self.node(one, f"{at}/{head}/{i}") for i, one in enumerate(parts)]
        return given

    def _refuse_overlap(self, parts: list[Any], at: str) -> None:
        """The compiler reads oneOf as anyOf: the same only where no value fits two of them."""
        whole = [self._references.resolve(part, f"{at}/{i}")[1] for i, part in enumerate(parts)]
        for i, one in enumerate(whole):
            for j, other in enumerate(whole[:i]):
                if may_overlap(one, other):
                    refuse(
                        at, f"a value may fit number {j} and {i}: give both a type, or a required constant, that differ"
                    )

    # --- nodes of a type

    def _typed(self, given: Schema, asserting: set[str], at: str) -> Schema:
        types = _types(given, asserting, at)
        known = frozenset({"type"}).union(*(_FAMILIES[one] for one in types))
        if foreign := sorted(asserting - known):
            refuse(f"{at}/{foreign[0]}", f"not supported here (type {', '.join(types) or 'any'})")
        if types:
            given["type"] = types[0] if len(types) == 1 else types
        if "object" in types:
            check_object(given, self.node, self._form, at)
        if "array" in types:
            check_array(given, self.node, at)
        if "string" in types:
            check_string(given, self._form, at)
        if {"number", "integer"} & set(types):
            check_number(given, types, at)
        return given


def _types(given: Schema, asserting: set[str], at: str) -> list[str]:
    if "type" not in given:
        return _types_meant(asserting, at)
    types: Any = given["type"]
    types = types if isinstance(types, list) else [types]
    if unknown := [one for one in types if not isinstance(one, str) or one not in _FAMILIES]:
        refuse(f"{at}/type", f"{unknown[0]!r} is no type; types are {', '.join(_FAMILIES)}")
    if not types:
        refuse(f"{at}/type", "a list of types that is not empty is needed")
    return [one for one in dict.fromkeys(types) if one != "integer" or "number" not in types]  # an integer is a number


def _types_meant(asserting: set[str], at: str) -> list[str]:
    """The type that keywords without one are about: the only one for which they say anything."""
    if not asserting:
        return []
    meant = [one for one, names in _FAMILIES.items() if asserting <= names]
    if not meant:
        first = next((name for name in sorted(asserting) if not any(name in f for f in _FAMILIES.values())), None)
        refuse(
            f"{at}/{first}" if first else at,
            "not supported" if first else "keywords of several types need a type",
        )
    return meant[:1]
