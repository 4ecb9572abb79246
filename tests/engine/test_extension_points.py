"""What users build themselves: each way to do it is shown by a short example that runs."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", ["shortest_first", "stop_rule", "own_runner", "own_stage"])
def test_each_extension_point_has_an_example_of_less_than_sixty_lines(name: str):
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 60


@pytest.mark.parametrize(
    ("name", "said"),
    [("own_runner", "[20, 104, 629, 409, 279]"), ("own_stage", "kept:\nquestion 1\nquestion 3")],
)
def test_the_example_says_what_its_model_gives_by_definition(name: str, said: str):
    run = subprocess.run([sys.executable, EXAMPLES / f"{name}.py"], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == said
