"""The pages tell the truth about what is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("actors", "scheduler", "runner", "pipeline")


def test_the_architecture_page_names_every_module_and_no_other():
    named = set(re.findall(r"`((?:actors|scheduler|runner|pipeline)/\w+\.py)`", (ROOT / "ARCHITECTURE.md").read_text()))
    there = {f"{folder}/{path.name}" for folder in FOLDERS for path in (ROOT / folder).glob("[a-z]*.py")}
    assert named == there


def test_every_example_that_the_readme_names_is_there():
    named = set(re.findall(r"\((examples/\w+\.py)\)", (ROOT / "README.md").read_text()))
    assert len(named) >= 4
    assert all((ROOT / name).exists() for name in named)
