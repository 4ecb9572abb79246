"""From a model's name to the parts of an engine; the only module here that names torch's runner."""

from __future__ import annotations

import os

from ..runner.model_source import resolve_model
from ..runner.runner import Runner
from .config import EngineConfig
from .tokenizer import Tokenizer

# torch's OpenMP threads spin while they wait for each other. Beside a busy event loop, or a second
# process, they then take the processor from the thread that they wait for, and a step takes many
# times as long. Few spins cost nothing on an idle machine. GNU's OpenMP reads this once, when torch
# is imported; a setting that is there already is left alone.
OPENMP_SPINS = "2000"

DEFAULT_ROWS = 256  # requests computed at once


def load(config: EngineConfig) -> tuple[Runner, Tokenizer]:
    """The runner and the tokenizer of ``config.model``.

    The files are opened once; weights are read later, on the runner's own thread. Sets
    GOMP_SPINCOUNT in the environment of the process unless it is set.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", OPENMP_SPINS)
    from ..runner.torch_runner import TorchRunner  # noqa: PLC0415 - imports torch, which reads the setting

    source = resolve_model(config.model or "")
    runner = TorchRunner.from_pretrained(
        source,
        dtype=config.dtype,
        device=config.device,
        max_model_len=config.max_model_len,
        block_size=config.block_size,
        num_kv_blocks=config.num_kv_blocks,
        kv_cache_memory=config.kv_cache_memory,
        max_num_running_reqs=config.max_num_running_reqs or DEFAULT_ROWS,
        num_threads=config.num_threads,
    )
    return runner, Tokenizer.from_source(source)
