"""What an import costs, and that the wheel holds what the disk holds."""

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


def test_cores_import_neither_torch_nor_anyio():
    cores = ["scheduler/scheduler.py", "scheduler/kv_cache_manager.py", "scheduler/block_pool.py", "scheduler/draft.py"]
    for core in cores:
        text = (ROOT / core).read_text()
        assert "import torch" not in text
        assert "import anyio" not in text


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
