"""What a compiler may read otherwise than JSON Schema and Python: pairs of a constraint and a text, byte by byte."""

from __future__ import annotations

import json
import re

import jsonschema
import msgspec
import pytest
from schema_pairs import ALLOWED, DIALECT, NO_PATTERNS, NO_UTF8, NOT_ALLOWED, TEXTS
from small_grammars import allows

from callboard.runner.grammar_spec import spec_of
from callboard.runner.regex_dialect import as_compiled
from callboard.runner.tag_check import checked_tag
from callboard.scheduler import StructuredOutput
from callboard.scheduler.errors import InvalidRequestError


def _allows(text: str | bytes, **constraint) -> bool:
    """Whether a constraint is compiled and its grammar takes the text."""
    try:
        return allows(text, **constraint)
    except InvalidRequestError:
        return False


@pytest.mark.parametrize(("schema", "text"), NOT_ALLOWED, ids=str)
def test_a_text_that_is_not_valid_is_not_allowed(schema, text):
    assert not _allows(text, json_schema=schema)


@pytest.mark.parametrize(("schema", "text"), ALLOWED, ids=str)
def test_a_text_that_is_valid_is_allowed(schema, text):
    jsonschema.Draft202012Validator(schema).validate(json.loads(text))
    assert allows(text, json_schema=schema)


@pytest.mark.parametrize("pattern", DIALECT)
def test_a_pattern_takes_the_texts_that_python_takes(pattern: str):
    for text in TEXTS:
        both = re.fullmatch(pattern, text) and re.fullmatch(pattern, text, re.ASCII)
        if text == "\ufeff" and "\\S" in pattern:
            both = None  # white space in JavaScript
        assert allows(text, regex=pattern) == bool(both), ascii(text)


@pytest.mark.parametrize("pattern", DIALECT)
def test_a_pattern_in_json_takes_the_same_texts_but_those_with_escapes(pattern: str):
    for text in TEXTS:
        written = json.dumps(text, ensure_ascii=False)
        if "\\" not in written:
            assert allows(written, json_schema={"pattern": pattern}) == allows(text, regex=pattern), ascii(text)
        elif allows(written, json_schema={"pattern": pattern}):
            assert allows(text, regex=pattern), ascii(text)


@pytest.mark.parametrize("pattern", NO_PATTERNS)
def test_patterns_that_python_or_the_compiler_cannot_read_are_refused(pattern: str):
    with pytest.raises(InvalidRequestError, match="the pattern"):
        as_compiled(pattern)


@pytest.mark.parametrize("data", NO_UTF8, ids=bytes.hex)
def test_no_bytes_but_utf8_stand_for_a_character(data: bytes):
    for pattern in ("[^a]", ".", r"\W", r"[^\d]"):
        assert not allows(data, regex=pattern)
    assert not allows(b'"' + data + b'"', json_schema={"maxLength": 1})


TAGS = {
    "#/format/type": {"json_schema": {}},
    "#/format/foo": {"type": "const_string", "value": "a", "foo": 1},
    "#/format/any_order": {"type": "json_schema", "json_schema": {}, "any_order": True},
    "#/format/json_schema/uniqueItems": {"type": "qwen_xml_parameter", "json_schema": {"uniqueItems": True}},
    "#/format/elements/0/pattern": {"type": "sequence", "elements": [{"type": "regex", "pattern": r"\b"}]},
    "#/format/rules/0/1/content/type": {"type": "dispatch", "rules": [["a", {"type": "star", "content": {}}]]},
    "#/format/json_schema/pattern": {"type": "json_schema", "style": "qwen_xml", "json_schema": {"pattern": "^<$"}},
}


@pytest.mark.parametrize("place", TAGS)
def test_what_would_be_ignored_in_a_structural_tag_is_refused_with_its_place(place: str):
    with pytest.raises(InvalidRequestError, match=r"^the (structural tag|schema) at ") as refused:
        checked_tag({"type": "structural_tag", "format": TAGS[place]}, 8)
    assert f" at {place}: " in str(refused.value)


def test_a_pattern_inside_a_tag_means_what_python_makes_of_it():
    tag = {"type": "structural_tag", "format": {"type": "regex", "pattern": "."}}
    assert allows("a", structural_tag=tag)
    assert not allows("\n", structural_tag=tag)


class City(msgspec.Struct):
    name: str
    size: int


def test_a_class_stands_for_its_schema():
    assert allows('{"name":"a","size":3}', json_schema=City)
    assert not allows('{"name":"a","size":"b"}', json_schema=City)
    with pytest.raises(InvalidRequestError, match="json_schema is a class without a schema"):
        spec_of(StructuredOutput(json_schema=object))
