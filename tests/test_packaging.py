"""What an import costs, and that the wheel holds what the disk holds."""

import ast
import pydoc
import subprocess
import sys
import tomllib
from pathlib import Path

import callboard

ROOT = Path(__file__).parents[1]


def test_importing_the_package_imports_no_heavy_library():
    code = "import sys, callboard; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "callboard.pipeline.engine" in modules
    assert not {"torch", "xgrammar", "tokenizers", "gguf", "safetensors", "jinja2"}.intersection(modules)


def test_every_folder_with_modules_is_listed_as_a_package():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {path.parent for path in ROOT.glob("*/*.py")} - {ROOT / "tests", ROOT / "examples"}
    names = {"callboard" if folder.name == "callboard" else f"callboard.{folder.name}" for folder in folders}
    assert set(settings["packages"]) == names
    assert not [path for path in ROOT.glob("*/*/*.py") if path.parents[1] in folders]


# Modules that wait without being named for it.
SHELLS = {
    "pipeline/delivery.py",
    "pipeline/engine.py",
    "pipeline/trace.py",
    "runner/runner_thread.py",
    "runner/simulated.py",
}


def imported(path: Path) -> set[str]:
    """The libraries that a module names in its imports, at any depth."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def test_every_module_that_is_no_shell_is_a_core_and_imports_no_event_loop():
    modules = [path for folder in ("scheduler", "runner", "pipeline") for path in (ROOT / folder).glob("*.py")]
    waiting = {str(path.relative_to(ROOT)) for path in modules if imported(path) & {"anyio", "asyncio", "trio"}}
    assert {name for name in waiting if not name.endswith("_actor.py")} == SHELLS


def test_torch_is_imported_in_the_runner_alone():
    for folder in ("actors", "scheduler", "pipeline", "callboard"):
        for path in (ROOT / folder).glob("*.py"):
            assert "torch" not in imported(path), path.relative_to(ROOT)


def test_imports_run_one_way():
    order = ["actors", "scheduler", "runner", "pipeline"]
    for index, folder in enumerate(order):
        for path in (ROOT / folder).glob("*.py"):
            text = path.read_text()
            wrong = [later for later in order[index + 1 :] if f"from ..{later}" in text]
            assert not wrong, f"{path.relative_to(ROOT)} imports from {wrong}"


def test_help_lists_what_the_package_exports():
    imported = {name for name in vars(callboard) if name[0].isupper()}
    assert imported == set(callboard.__all__)
    text = pydoc.plain(pydoc.render_doc(callboard))
    assert [name for name in callboard.__all__ if f"class {name}(" not in text and f"class {name}\n" not in text] == []
