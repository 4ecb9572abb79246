"""Makes the helpers beside these tests importable by their plain names, and keeps torch to one thread."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True, scope="package")
def one_torch_thread() -> Iterator[None]:
    """Tiny products gain nothing from threads, and lose a lot on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
