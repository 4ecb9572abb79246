"""Texts made under a grammar are what their constraint asks for: random walks over a vocabulary of bytes."""

from __future__ import annotations

import re

import jsonschema
import pytest
from schemas import GRAMMARS, REGEXES, SCHEMAS
from small_grammars import as_json, matcher, walk

from callboard import InvalidRequestError, StructuredOutput
from callboard.runner.grammar_spec import spec_of

WALKS = 25


def walks(**constraint) -> list[bytes]:
    """Ended texts of many random walks; at least some end."""
    found = [walk(matcher(**constraint), seed) for seed in range(WALKS)]
    ended = [data for data in found if data is not None]
    assert len(ended) >= WALKS // 5, f"{len(ended)} of {WALKS} walks have ended"
    return ended


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_text_is_valid_under_its_schema(name: str):
    judge = jsonschema.Draft202012Validator(SCHEMAS[name])
    for data in walks(json_schema=SCHEMAS[name]):
        judge.validate(as_json(data))


def test_any_object_is_json():
    for data in walks(json_object=True):
        assert isinstance(as_json(data), dict)


@pytest.mark.parametrize("pattern", REGEXES)
def test_every_text_matches_its_pattern(pattern: str):
    for data in walks(regex=pattern):
        try:
            found = data.decode()
        except UnicodeDecodeError as error:
            raise AssertionError(f"{data!r} is half a character") from error
        assert re.fullmatch(pattern, found, re.ASCII), repr(found)


@pytest.mark.parametrize("name", GRAMMARS)
def test_every_text_follows_its_grammar(name: str):
    grammar, pattern = GRAMMARS[name]
    for data in walks(grammar=grammar):
        assert re.fullmatch(pattern, data.decode()), data


def test_a_choice_is_one_of_the_choices_with_all_their_signs():
    choices = ['say "hi"', "back\\slash", "two\nlines", "größe", "🎂", "a"]
    found = {walk(matcher(choice=choices), seed).decode() for seed in range(100)}
    assert found == set(choices)


def test_blanks_in_a_row_are_bounded_and_blanks_in_strings_are_free():
    for limit in (1, 3):
        for data in walks(json_schema=SCHEMAS["nested"], max_whitespace=limit):
            outside = re.sub(rb'"(\\.|[^"\\])*"', b'""', data)
            assert max(map(len, re.findall(rb"\s+", outside)), default=0) <= limit, data


def test_a_structural_tag_constrains_what_is_inside_it():
    tag = {
        "type": "structural_tag",
        "format": {
            "type": "tag",
            "begin": "<f>",
            "content": {"type": "json_schema", "json_schema": SCHEMAS["flat"]},
            "end": "</f>",
        },
    }
    for data in walks(structural_tag=tag):
        inside = re.fullmatch(rb"<f>(.*)</f>", data, re.DOTALL)
        assert inside, data
        jsonschema.validate(as_json(inside[1]), SCHEMAS["flat"])


@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=str)
def test_what_is_no_number_of_json_is_refused_in_an_object_as_in_a_text(value: float):
    with pytest.raises(InvalidRequestError, match="cannot be written as JSON"):
        spec_of(StructuredOutput(json_schema={"const": value}))
