"""From a model's name to the parts of an engine; the only module here that names torch's runner."""

from __future__ import annotations

from ..runner.model_source import resolve_model
from ..runner.runner import Runner
from ..runner.torch_runner import TorchRunner
from .config import EngineConfig
from .tokenizer import Tokenizer


def load(config: EngineConfig) -> tuple[Runner, Tokenizer]:
    """The runner and the tokenizer of ``config.model``.

    The files are opened once; weights are read later, on the runner's own thread.
    """
    source = resolve_model(config.model or "")
    runner = TorchRunner.from_pretrained(
        source,
        dtype=config.dtype,
        device=config.device,
        max_model_len=config.max_model_len,
        block_size=config.block_size,
        num_kv_blocks=config.num_kv_blocks,
        kv_cache_memory=config.kv_cache_memory,
        max_num_running_reqs=config.max_num_running_reqs,
        num_threads=config.num_threads,
    )
    return runner, Tokenizer.from_source(source)
