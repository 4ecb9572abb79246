"""Pairs of a constraint and a text that it must not allow, or must allow: what a compiler may read otherwise."""

from __future__ import annotations

from typing import Any

from schemas import record

FLAG = {"type": "boolean"}
FURTHER = record(**{"ab": {"type": "integer"}, "é": {"type": "integer"}, 'c"': {"type": "integer"}}) | {
    "required": ["ab"],
    "additionalProperties": FLAG,
}


def _pattern(pattern: str) -> dict[str, str]:
    return {"type": "string", "pattern": pattern}


# Each is refused when it is compiled, or its texts are others.
NOT_ALLOWED: list[tuple[Any, str]] = [
    (_pattern('^a"b$'), '"a"b"'),
    (_pattern(r"^\\d$"), '"\\d"'),
    (_pattern("^a\\nb$"), '"a\nb"'),
    (_pattern(r"^\x00$"), '"\x00"'),
    (_pattern('^["\\\\]$'), '"""'),
    (_pattern(r"^[\012]$"), '"1"'),
    (_pattern(r"^\W$"), '"\u06cb"'),
    (_pattern("(?i)abc"), '"abc"'),
    (_pattern("^a{1,2}+$"), '"aaa"'),
    (_pattern("^a{2}{3}$"), '"aaaaaa"'),
    ({"patternProperties": {'^a"$': FLAG}}, '{"a"":true}'),
    (record(a={"minimum": 3, "maximum": 5}), '{"a":97}'),
    ({"exclusiveMinimum": 3}, "-146"),
    ({"minLength": 5}, '"x"'),
    ({"pattern": "^a$"}, '"b"'),
    ({"maxItems": 1}, "[1,2]"),
    ({"minProperties": 1}, "{}"),
    ({"x": {"s": {"type": "string", "maxLength": 1}}, "$ref": "#/x/s"}, '"\x05"'),
    ({"$defs": {"moved 0": FLAG}, "x": {"s": {"type": "null"}}, "$ref": "#/x/s"}, "true"),
    ({"type": "number", "minimum": 0, "maximum": 1e-7}, ""),
    ({"type": "integer", "minimum": 0.5, "exclusiveMaximum": 2.5}, "0"),
    (FURTHER, '{"ab":1,"ab":true}'),
    (FURTHER, '{"ab":1,"é":true}'),
    (FURTHER, '{"ab":1,"\\u0061b":true}'),
    (FURTHER, '{"ab":1,"c\\"":true}'),
    (FURTHER, '{"ab":1,"c\\u0022":true}'),
    (FURTHER, '{"ab":1,"x":true,"ab":2}'),
    (FURTHER | {"additionalProperties": True}, '{"ab":1,"\\u0061b":2}'),
    (FURTHER | {"maxProperties": 2}, '{"ab":1,"x":true,"y":true}'),
]

ALLOWED: list[tuple[Any, str]] = [
    (_pattern('^say "hi"$'), r'"say \"hi\""'),
    (_pattern(r"^C:\\dir\\[a-z]{2}$"), r'"C:\\dir\\my"'),
    (_pattern(r"^\x00$"), r'"\u0000"'),
    (_pattern(r"^[\n\t]$"), r'"\n"'),
    (_pattern("^(?P<word>a+?)$"), '"aa"'),
    ({"propertyNames": {"pattern": '^"$'}}, r'{"\"":1}'),
    ({"minimum": 3, "maximum": 5}, "4"),
    ({"minProperties": 1}, '{"b":1}'),
    ({"type": "string", "minLength": 2.0, "maxLength": 2.0}, '"\u00e9\U0001f382"'),
    ({"type": "array", "items": FLAG, "minItems": 2.0}, "[true,true]"),
    ({"type": "number", "minimum": 0.1, "maximum": 0.1}, "0.1"),
    ({"type": "integer", "minimum": 0.5, "exclusiveMaximum": 2.5}, "2"),
    ({"x": {"s": {"type": "null"}}, "$ref": "#/x/s"}, "null"),
    (record(a={"oneOf": [FLAG, {"type": "null"}]}, b={"$ref": "#/properties/a/oneOf/0"}), '{"a":null,"b":true}'),
    (record(a={"allOf": [FLAG]}, b={"$ref": "#/properties/a/allOf/0"}), '{"a":true,"b":true}'),
    ({"enum": [2**70, 2**63 - 1]}, "9223372036854775807"),
    (FURTHER, '{"ab":1,"é":2,"c\\"":3,"":true,"a":true,"abc":true,"Ã":true,"éb":true,"/":true,"🎂":true}'),
    (FURTHER | {"additionalProperties": True}, '{"ab":1,"x":{"ab":"\\u0061"}}'),
    (FURTHER | {"maxProperties": 2}, '{"ab":1,"x":true}'),
]

# Each of these bytes begins or is a character that UTF-8 does not have.
NO_UTF8 = [b"\xed\xb2\xa3", b"\xed\xa0\x80", b"\xe0\x8d\xa6", b"\xc0\x80", b"\xf0\x80\x80\x80", b"\xf4\x90\x80\x80"]

# Patterns and texts, whose match is what Python makes of it.
DIALECT = [
    r"\012", r"[\012]", r"\0", r"\00", r"[\0-\x1fab]", r"\x41", r"\u0041", r"\N{DIGIT ONE}", r"[^]a]", r"[]a]", "[a^]",
    r"[\^-`]", "[$^]", r"[\b]", r"a{,3}", "a{", "a{x}", "a{1", "{}", "a{,}b", "(^a|b$)", "(?:(^a))", r"\Aa\Z", "|a",
    "a||b", "()", "(a|)b", r"\/\-\"", r"[\d\-x]", r"[^\w]", r"[^\W]", r"\W", r"\D", r"\S", ".", "a.b", "(a*)*b", "x{0}",
    r"[\t1\x0b2]", r"[\w-]", "[a-c-e]",
]  # fmt: skip
TEXTS = [
    "", "a", "aa", "aaa", "b", "ab", "1", "A", "\n", "\0", "\x0012", "\x01", "\x08", "\x0b", "^", "_", "`", "]", "$",
    "{}", "a{", "a{x}", "a{1", "aab", '/-"', "-", "x", "+", ",", "\u00e9", "a\u00e9b", "a\nb", "\ufeff", " ", "d", "c",
    "\x7f", "\U0010ffff", "\u2028",
]  # fmt: skip
NO_PATTERNS = [
    r"[\d-z]", r"\u{41}", r"\x4", "a{2}{3}", "a**", "a\\", "(", "[z-a]", r"\p{L}",  # Python refuses them too
    "(?i)abc", "a{1,2}+", "a*+", r"(a)\1", r"\bword", "a$b", "(^a)*", "(?:a$)?b", "a^b", "(?=a)a", "(?#c)a", r"[^\s\S]",
]  # fmt: skip
