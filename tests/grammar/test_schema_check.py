"""What of a schema or pattern would be ignored is refused with its place; the rest comes out in the same sense."""

from __future__ import annotations

import pytest
from schemas import DIGIT, record

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
    "#/x/s/not": {"x": {"s": {"type": "integer", "not": {"const": 3}}}, "$ref": "#/x/s"},
    "#/$defs/b/$id": {"$defs": {"b": {"$id": "http://example.com/", "type": "null"}}, "$ref": "#/$defs/b"},
    "#/items/$ref": {"type": "array", "items": {"$ref": "#name"}},
    "#/anyOf/0/$ref": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
    "#/propertyNames": {"type": "object", "propertyNames": {"pattern": "a"}, "additionalProperties": False},
    "#/minProperties": {"type": "object", "additionalProperties": DIGIT, "minProperties": 2},
    "#/maxProperties": record(a=DIGIT, b=DIGIT) | {"maxProperties": 1},
    "#/maxLength": {"type": "string", "maxLength": "1}|b{9"},
    "#/minItems": {"type": "array", "minItems": 2.5},
    "#/minimum": {"type": "number", "minimum": "5"},
    "#/maximum": {"type": "integer", "maximum": 2**63},
    "#/multipleOf": {"multipleOf": 1},
    "#/const": {"const": 12345678901234567891},
    "#/pattern": {"pattern": "(?i)abc"},
    "#/patternProperties/(a": {"type": "object", "patternProperties": {"(a": DIGIT}},
}
BESIDE = [
    {"anyOf": [DIGIT], "minimum": 3},
    {"$ref": "#/$defs/a", "$defs": {"a": {}}, "maxLength": 3},
    {"enum": [1, 2], "minimum": 2},
    {"type": "object", "oneOf": [record(a=DIGIT)]},
]
EMPTY = [
    {"type": "number", "exclusiveMinimum": 0, "maximum": 1e-7},
    {"type": "number", "minimum": 1.0000001, "maximum": 1.0000002},
    {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 4},
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


@pytest.mark.parametrize("schema", EMPTY, ids=str)
def test_limits_that_no_number_which_is_written_meets_are_refused(schema):
    with pytest.raises(InvalidRequestError, match=r"the schema at #: no .* is within its limits"):
        checked_schema(schema)


def test_cases_of_one_of_are_told_apart_as_json_does():
    with pytest.raises(InvalidRequestError, match="the schema at #/oneOf: "):
        checked_schema({"oneOf": [{"const": [1]}, {"const": [1.0]}]})
    assert checked_schema({"oneOf": [{"const": 1}, {"const": True}]}) == {"anyOf": [{"enum": [1]}, {"enum": [True]}]}


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
