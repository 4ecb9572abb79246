"""Writes FEATURES.md beside this file from table.toml.

python tests/features/make_page.py
"""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path

import msgspec

FOLDER = Path(__file__).parent
PAGE = FOLDER / "FEATURES.md"

STATES = {
    "built": "held by the tests named",
    "subsumed": "another part gives what it is for",
    "refused": "decided against, or refused by name",
    "later": "comes with the part named",
    "building": "under way",
}
WEIGHTS = ("core", "important", "niche")

HEAD = """# Features

What the reference (vLLM's v1 scheduler) does, in words of our own, and what became of it here. "Core" is what an
engine is wrong without, "important" what users notice, "niche" what is special to a model or a deployment. This page
is made from [`table.toml`](table.toml) by `make_page.py`; a test holds that it is up to date and that every test it
names exists.

Missing are the sections of what is not begun: the encoder cache (11), speculation (13), connectors of the KV cache and
of the encoder cache (14, 15), and which features exclude each other (21). Rows of other sections that wait for these
are marked "later".
"""


class Row(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One feature; ``tests`` are "file below tests/::name"."""

    name: str
    weight: str
    state: str
    decision: str
    tests: list[str]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Features of one subject."""

    number: int
    title: str
    rows: list[Row]


def sections() -> list[Section]:
    """The table."""
    data = tomllib.loads((FOLDER / "table.toml").read_text())
    return msgspec.convert(data["section"], list[Section])


def page(table: list[Section]) -> str:
    """The page of a table."""
    return "\n".join([HEAD, _counts(table), *map(_section, table)])


def _counts(table: list[Section]) -> str:
    counts = Counter((row.state, row.weight) for section in table for row in section.rows)
    lines = ["| state | core | important | niche | all | |", "|---|---|---|---|---|---|"]
    for state, meaning in STATES.items():
        numbers = [counts[state, weight] for weight in WEIGHTS]
        lines.append(f"| {state} | {' | '.join(map(str, numbers))} | {sum(numbers)} | {meaning} |")
    totals = [sum(counts[state, weight] for state in STATES) for weight in WEIGHTS]
    lines.append(f"| all | {' | '.join(map(str, totals))} | {sum(totals)} | |")
    return "\n".join(lines) + "\n"


def _section(section: Section) -> str:
    lines = [
        f"## {section.number}. {section.title}",
        "",
        "| feature | weight | state | | tests |",
        "|---|---|---|---|---|",
    ]
    for row in section.rows:
        tests = "<br>".join(f"`{test}`" for test in row.tests)
        lines.append(f"| {row.name} | {row.weight} | {row.state} | {row.decision} | {tests} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(sections()))
