"""Schemas of our own, one for each thing that JSON Schema can ask for and that is honoured."""

from __future__ import annotations

from typing import Any

WORD = {"type": "string", "maxLength": 6}
DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}


def record(**properties: Any) -> dict[str, Any]:
    """An object with these properties, all required."""
    return {"type": "object", "properties": properties, "required": list(properties)}


SCHEMAS: dict[str, Any] = {
    "flat": record(name=WORD, age={"type": "integer", "minimum": 0, "maximum": 130}),
    "nested": record(user=record(name=WORD, address=record(zip={"type": "string", "pattern": "^[0-9]{5}$"}))),
    "deep": record(a=record(b=record(c=record(d=record(e={"type": "null"}))))),
    "recursive list": {
        "$defs": {"node": record(value=DIGIT) | {"properties": {"value": DIGIT, "next": {"$ref": "#/$defs/node"}}}},
        "$ref": "#/$defs/node",
    },
    "recursive tree": {
        "type": "object",
        "properties": {"v": DIGIT, "kids": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}},
        "required": ["v"],
    },
    "string enum": record(colour={"enum": ["red", "green", "blue"]}),
    "mixed enum": {"enum": [1, "one", None, True, [1, 2], {"a": "b"}]},
    "enum of a type": {"type": "string", "enum": ["a", 1, "b"]},
    "constant": record(kind={"const": "point"}, x=DIGIT),
    "pattern": record(plate={"type": "string", "pattern": r"^[A-Z]{2}-\d{3}$"}),
    "pattern with a dot": {"type": "string", "pattern": "^a.{1,4}z$"},
    "pattern of alternatives": {"type": "string", "pattern": "^(cat|dog)s?$"},
    "integer limits": {"type": "integer", "minimum": -5, "maximum": 17},
    "exclusive limits": {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 6},
    "number limits": {"type": "number", "minimum": 0, "maximum": 1},
    "lower limit only": record(n={"type": "integer", "minimum": 1000}),
    "optional properties": {"type": "object", "properties": {"a": DIGIT, "b": WORD, "c": {"type": "boolean"}}},
    "some required": {"type": "object", "properties": {"a": DIGIT, "b": DIGIT, "c": DIGIT}, "required": ["b"]},
    "union of types": {"type": ["integer", "null", "boolean"]},
    "any of": {"anyOf": [DIGIT, {"type": "string", "maxLength": 3}, {"type": "null"}]},
    "any of objects": {"anyOf": [record(cat=DIGIT), record(dog=WORD)]},
    "one of by type": {"oneOf": [{"type": "boolean"}, DIGIT]},
    "one of by a constant": {
        "oneOf": [record(kind={"const": "circle"}, r=DIGIT), record(kind={"const": "square"}, side=DIGIT)]
    },
    "all of one": {"allOf": [record(a=DIGIT)]},
    "array": {"type": "array", "items": DIGIT, "maxItems": 4},
    "array with limits": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3},
    "array of arrays": {"type": "array", "items": {"type": "array", "items": DIGIT, "maxItems": 2}, "maxItems": 2},
    "tuple": {"type": "array", "prefixItems": [DIGIT, WORD, {"type": "null"}], "items": False, "minItems": 3},
    "length limits": {"type": "string", "minLength": 3, "maxLength": 5},
    "date": {"type": "string", "format": "date"},
    "date and time": record(at={"type": "string", "format": "date-time"}),
    "uuid": {"type": "string", "format": "uuid"},
    "ipv4": {"type": "string", "format": "ipv4"},
    "email": record(mail={"type": "string", "format": "email"}),
    "unicode keys": record(**{"größe": DIGIT, "名前": WORD, "🎂": {"type": "boolean"}}),
    "keys to be escaped": record(**{'a"b': DIGIT, "c\\d": DIGIT, "e/f~g": {"type": "null"}}),
    "values of one kind": {"type": "object", "additionalProperties": DIGIT, "maxProperties": 3},
    "keys of a pattern": {"type": "object", "patternProperties": {"^x[0-9]$": DIGIT}, "maxProperties": 2},
    "names of a pattern": {"type": "object", "propertyNames": {"pattern": "^[a-z]{1,3}$"}, "maxProperties": 2},
    "count of properties": {
        "type": "object", "properties": {"a": DIGIT, "b": DIGIT, "c": DIGIT}, "minProperties": 2, "maxProperties": 2,
    },
    "definitions": {
        "definitions": {"size/len~x": DIGIT},
        "type": "array", "items": {"$ref": "#/definitions/size~1len~0x"}, "minItems": 1, "maxItems": 2,
    },
    "required but not described": {"type": "object", "properties": {"a": DIGIT}, "required": ["a", "b"]},
    "named and further properties": {
        "type": "object", "properties": {"ab": DIGIT, "é": DIGIT, 'a"': DIGIT, "": DIGIT}, "required": ["ab"],
        "additionalProperties": {"type": "boolean"}, "maxProperties": 3,
    },
    "anything": {},
}  # fmt: skip

REGEXES = [
    r"\d{3}-\d{4}", r"[A-Z][a-z]{2,8}", r"(yes|no|maybe)", r"#[0-9a-fA-F]{6}", r"a.b.c", r"\w+@\w+\.(com|org)",
    r"[^a-z]{1,5}", r"(\d{1,3}\.){3}\d{1,3}", r"x*y+z?", r"^anchored$", r"\s?\S{2,4}\s?", r"[\w-]{1,6}",
    r"(?:ab|cd){2}", r"é{2}ñ?", r"[]a]{1,3}",
]  # fmt: skip

GRAMMARS: dict[str, tuple[str, str]] = {  # EBNF, and a pattern that says the same
    "sum": ('root ::= term ("+" term)*\nterm ::= [0-9]{1,2}', r"\d{1,2}(\+\d{1,2})*"),
    "greeting": ('root ::= ("Hello" | "Hi") ", " name "!"\nname ::= [A-Z] [a-z]{1,6}', r"(Hello|Hi), [A-Z][a-z]{1,6}!"),
    "list": ('root ::= ("- " line "\\n"){1,3}\nline ::= [a-z ]{1,12}', r"(- [a-z ]{1,12}\n){1,3}"),
    "move": ('root ::= piece? [a-h] [1-8]\npiece ::= [KQRBN]', r"[KQRBN]?[a-h][1-8]"),
    "pairs": ('root ::= pair (";" pair)?\npair ::= [a-z]+ "=" ("on" | "off")', r"[a-z]+=(on|off)(;[a-z]+=(on|off))?"),
}  # fmt: skip
