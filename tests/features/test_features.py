"""The features table tells the truth about the tests that it names."""

import ast
from functools import cache
from pathlib import Path

import pytest
from make_page import PAGE, STATES, WEIGHTS, Row, page, sections

TESTS = Path(__file__).parents[1]
ROWS = [row for section in sections() for row in section.rows]


@cache
def names_in(path: str) -> frozenset[str]:
    """The test functions of a file, which is read and not imported."""
    tree = ast.parse((TESTS / path).read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("row", [row for row in ROWS if row.tests], ids=lambda row: row.name)
def test_every_test_that_a_row_names_is_there(row: Row):
    for test in row.tests:
        path, name = test.split("::")
        assert name in names_in(path), f"{row.name!r} names {test}"


def test_states_and_weights_are_known_ones():
    assert {row.state for row in ROWS} <= set(STATES)
    assert {row.weight for row in ROWS} <= set(WEIGHTS)


def test_what_is_built_names_a_test_and_what_is_not_names_its_reason():
    assert [row.name for row in ROWS if row.state == "built" and not row.tests] == []
    assert [row.name for row in ROWS if row.state in ("refused", "later", "subsumed") and not row.decision] == []
    assert [row.name for row in ROWS if row.state == "building" and row.tests] == []


def test_no_feature_stands_twice_in_a_section():
    for section in sections():
        names = [row.name for row in section.rows]
        assert len(names) == len(set(names)), section.title


def test_the_page_is_made_from_the_table_as_it_is():
    assert PAGE.read_text() == page(sections()), "run python tests/features/make_page.py"
