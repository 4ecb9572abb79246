"""What of a schema or pattern would be ignored is refused with its place; the rest comes out in the same sense."""

from __future__ import annotations

import pytest
from schemas import DIGIT, record

from callboard.runner.regex_dialect import to_ascii_classes
from callboard.runner.schema_check import checked_schema
from callboard.scheduler.errors import InvalidRequestError

REFUSED = {
    "#/not": {"not": {"type": "string"}},
    "#/properties/a/not": record(a={"type": "integer", "not": {"const": 3}}),
    "#/properties/a~1b/multipleOf": record(**{"a/b": {"type": "number", "multipleOf": 0.5}}),
    "#/items/uniqueItems": {"type": "array", "items": {"type": "array", "uniqueItems": True}},
    "#/contains": {"type": "array", "contains": {}},
    "#/if": {"type": "object", "if": {}, "then": {}},
    "#/allOf": {"allOf": [{"type": "integer"}, {"minimum": 3}]},
    "#/oneOf": {"oneOf": [{"type": "number"}, {"type": "integer"}]},
    "#/anyOf/1/format": {"anyOf": [DIGIT, {"type": "string", "format": "colour"}]},
    "#/$ref": {"$ref": "http://example.com/schema"},
    "#/$defs/a/$ref": {"$defs": {"a": {"$ref": "#/$defs/b"}}, "type": "null"},
    "#/type": {"type": "str"},
    "#/dependentRequired": {"type": "object", "dependentRequired": {"a": ["b"]}},
    "#/unevaluatedProperties": {"type": "object", "unevaluatedProperties": DIGIT},
    "#/patternProperties": {"type": "object", "patternProperties": {"a": DIGIT, "b": DIGIT}},
    "#/required": {"type": "object", "properties": {}, "additionalProperties": False, "required": ["a"]},
    "#/additionalProperties/not": {"type": "object", "additionalProperties": {"not": {}}},
    "#/prefixItems/0/not": {"type": "array", "prefixItems": [{"not": {}}]},
    "#/minLength": {"type": "integer", "minLength": 2},
    "#/enum": {"type": "integer", "enum": ["a"]},
    "#/properties/a": record(a=False),
}
BESIDE = [
    {"anyOf": [DIGIT], "minimum": 3},
    {"$ref": "#/$defs/a", "$defs": {"a": {}}, "maxLength": 3},
    {"enum": [1, 2], "minimum": 2},
    {"type": "object", "oneOf": [record(a=DIGIT)]},
]


@pytest.mark.parametrize("place", REFUSED)
def test_what_would_be_ignored_is_refused_with_its_place(place: str):
    with pytest.raises(InvalidRequestError, match="the schema at") as refused:
        checked_schema(REFUSED[place])
    assert str(refused.value).startswith(f"the schema at {place}: ")


@pytest.mark.parametrize("schema", BESIDE, ids=str)
def test_keywords_that_another_one_would_hide_are_refused(schema):
    with pytest.raises(InvalidRequestError, match=r"the schema at #: \['\w+'\] beside '.+', which would be ignored"):
        checked_schema(schema)


@pytest.mark.parametrize("schema", [{"minLength": 2, "minimum": 3}, {"type": "string", "pattern": "a", "maxLength": 3}])
def test_keywords_that_do_not_go_together_are_refused(schema):
    with pytest.raises(InvalidRequestError, match="the schema at #: "):
        checked_schema(schema)


def test_notes_change_nothing_and_are_kept():
    schema = record(a=DIGIT | {"title": "t", "description": "d", "default": 3, "x-mine": [1]}) | {"$schema": "s"}
    assert checked_schema(schema) == schema


def test_the_same_is_said_in_words_that_are_honoured():
    assert checked_schema({"const": 3}) == {"enum": [3]}
    assert checked_schema({"type": "string", "enum": ["a", 1]}) == {"enum": ["a"]}
    assert checked_schema({"allOf": [DIGIT]}) == DIGIT
    assert checked_schema({"oneOf": [DIGIT, {"type": "null"}]}) == {"anyOf": [DIGIT, {"type": "null"}]}
    assert checked_schema({"type": "array", "uniqueItems": False}) == {"type": "array"}
    assert checked_schema({"type": "object", "required": ["a"]})["properties"] == {"a": {}}
    assert checked_schema(True) == {}


def test_the_callers_schema_is_left_as_it_is():
    schema = record(a={"const": 3}, b={"type": "string", "maxLength": 3}) | {"required": ["a", "c"]}
    before = repr(schema)
    checked_schema(schema)
    assert repr(schema) == before


def test_classes_and_the_dot_are_spelled_out_and_all_else_stays():
    assert to_ascii_classes(r"a.b") == r"a[^\n]b"
    assert to_ascii_classes(r"\d\W") == "[0-9][^a-zA-Z0-9_]"
    assert to_ascii_classes(r"[\d.\]x]\.") == r"[0-9.\]x]\."
    assert to_ascii_classes(r"[^]a]") == r"[^\]a]"
    assert to_ascii_classes(r"é\n\u00e9{2,3}(?:x|y)$") == r"é\n\u00e9{2,3}(?:x|y)$"


@pytest.mark.parametrize("pattern", [r"\bword", r"\Aword\Z", r"(a)\1", r"[\S]", "a\\"])
def test_escapes_with_another_meaning_there_are_refused(pattern: str):
    with pytest.raises(InvalidRequestError, match="which is not supported"):
        to_ascii_classes(pattern)
