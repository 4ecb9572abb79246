"""From a model's name to the parts of an engine; the only module here that names torch's runner."""

from __future__ import annotations

import os

from ..runner.model_source import find_model, resolve_model
from ..runner.runner import Runner
from ..scheduler.errors import ConfigError
from .config import EngineConfig
from .tokenizer import Tokenizer

# torch's OpenMP threads spin while they wait for each other. Beside a busy event loop, or a second
# process, they then take the processor from the thread that they wait for, and a step takes many
# times as long. A tenth of GNU OpenMP's own default costs nothing on an idle machine; fewer do: one
# request decoded at 20.9 to 24.2 tokens/s with 30,000 spins, 19.8 to 24.3 with 300,000, and 9.9 to
# 18.7 with 2,000 (two cores). It is read once, when torch is imported; a setting that is there
# already is left alone.
OPENMP_SPINS = "30000"

DEFAULT_ROWS = 256  # requests computed at once


DTYPES = ("float32", "bfloat16", "float16")  # those of the torch runner, without an import of torch


def check_model(config: EngineConfig) -> None:
    """Check what needs no reading: that there is such a model, and the kind of its weights.

    Raises ModelLoadError if there is none, ConfigError for a type or a device that is not supported.
    """
    find_model(config.model or "")
    if config.dtype not in DTYPES:
        raise ConfigError(f"dtype is {config.dtype!r}, supported are {', '.join(map(repr, DTYPES))}")
    if config.device != "cpu":
        raise ConfigError(f"device is {config.device!r}, supported is 'cpu'")


def load(config: EngineConfig) -> tuple[Runner, Tokenizer]:
    """The runner and the tokenizer of ``config.model``.

    The files are opened once; weights are read later, on the runner's own thread. Takes seconds,
    most of them to import torch, so it is called on a thread. Sets GOMP_SPINCOUNT in the
    environment of the process unless it is set.

    Raises ModelLoadError for files that are damaged or of an unsupported kind, ConfigError for
    settings that contradict the model.
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
    tokenizer = Tokenizer.from_source(source)
    tokenizer.warm_up()
    return runner, tokenizer
