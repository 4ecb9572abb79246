"""A language model as a ``Runner``: torch on one thread of its own, in the caller's process."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import torch

from ..scheduler.errors import ConfigError, EngineDeadError
from ..scheduler.plan import GrammarOutput, ModelRunnerOutput, SchedulerOutput
from .decoder import Weights
from .kv_layout import group_layers
from .mask_ticket import MaskTicket
from .model_config import ModelConfig
from .model_source import ModelSource, resolve_model
from .paged_kv import bytes_per_block
from .runner import MERGED_BLOCKS, RunnerInfo
from .runner_thread import RunnerThread
from .step_executor import StepExecutor
from .weights import load_weights

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SAMPLING = {"sampling", "penalties", "logit_bias", "allowed_token_ids", "bad_words"}
CAPABILITIES = frozenset({*SAMPLING, "logprobs", "prompt_logprobs", "grammars", MERGED_BLOCKS})
CLOSE_LIMIT = 60.0  # seconds; a step of a long prompt on a slow machine takes some


class TorchRunner:
    """Runs a decoder on the CPU: the llama family and Gemma 3.

    All work with torch, loading included, is done on the runner's thread: torch starts a pool
    of threads for each thread that uses it, and two pools get in each other's way. The
    number of threads is torch's setting for the whole process.

    Args:
        config: the model's sizes.
        load: gives the weights under their neutral names (see ``load_weights``); called on the
            runner's thread. The dictionary is emptied.
        num_kv_blocks: blocks of the KV cache; None: as many as ``kv_cache_memory`` holds.
        kv_cache_memory: bytes; None: what all rows at full length need, at most a quarter of
            the memory that is available now.
        num_threads: torch's threads for one operation; None leaves the setting as it is.
        vocab_size: token ids from here on are never sampled (padding of the output matrix).
            None: the width of the logits.

    Raises:
        ConfigError: a limit contradicts the model or another limit.
    """

    def __init__(
        self,
        config: ModelConfig,
        load: Callable[[], Weights],
        *,
        max_model_len: int | None = None,
        block_size: int = 16,
        num_kv_blocks: int | None = None,
        kv_cache_memory: int | None = None,
        max_num_running_reqs: int = 32,
        num_threads: int | None = None,
        vocab_size: int | None = None,
    ) -> None:
        length = _max_length(config, max_model_len)
        _check_limits(config, block_size, max_num_running_reqs, num_threads, vocab_size)
        layout = group_layers(config.windows)
        block_bytes = bytes_per_block(config, layout, block_size)
        wanted = max_num_running_reqs * -(-length // block_size) * len(layout.groups)
        self.info = RunnerInfo(
            vocab_size=config.vocab_size,
            max_model_len=length,
            block_size=block_size,
            num_kv_blocks=_num_blocks(num_kv_blocks, kv_cache_memory, block_bytes, wanted),
            max_num_running_reqs=max_num_running_reqs,
            eos_token_ids=config.eos_token_ids,
            capabilities=CAPABILITIES,
            weights_id=config.weights_id,
            kv_groups=layout.groups,
        )
        self._config, self._load, self._num_threads = config, load, num_threads
        self._vocab_size = config.vocab_size if vocab_size is None else vocab_size
        self._thread = RunnerThread("torch runner")
        self._tickets: dict[int, MaskTicket] = {}  # by step: masks that were promised and may not be there
        self._loaded: Awaitable[None] | None = None
        self._executor: StepExecutor | None = None  # made and used on the thread

    @classmethod
    def from_pretrained(
        cls,
        path_or_name: str | Path | ModelSource,
        *,
        dtype: str = "float32",
        device: str = "cpu",
        max_model_len: int | None = None,
        block_size: int = 16,
        num_kv_blocks: int | None = None,
        kv_cache_memory: int | None = None,
        max_num_running_reqs: int = 32,
        num_threads: int | None = None,
        vocab_size: int | None = None,
    ) -> TorchRunner:
        """A runner for a folder in Hugging Face layout, a .gguf file or a shipped model's name.

        Reads the model's configuration only; the weights are loaded by the thread, and an error
        there is raised by ``start`` or by the first step.

        Args:
            dtype: "float32", "bfloat16" or "float16"; of the weights and their products;
                attention and KV cache are float32.
            device: "cpu".

        Raises:
            ModelLoadError: no such model, or one of an unsupported kind.
            ConfigError: a limit contradicts the model or another limit.
        """
        if device != "cpu":
            raise ConfigError(f"device is {device!r}, supported is 'cpu'")
        source = path_or_name if isinstance(path_or_name, ModelSource) else resolve_model(path_or_name)
        config, kind = source.config, torch_dtype(dtype)
        return cls(
            config,
            lambda: load_weights(source, config, kind),
            max_model_len=max_model_len,
            block_size=block_size,
            num_kv_blocks=num_kv_blocks,
            kv_cache_memory=kv_cache_memory,
            max_num_running_reqs=max_num_running_reqs,
            num_threads=num_threads,
            vocab_size=vocab_size,
        )

    async def start(self) -> None:
        """Load the weights; without it the first step does. May be called twice.

        Raises:
            ModelLoadError: the weights are missing, damaged or of another shape.
        """
        await self._begin()

    def submit(
        self, plan: SchedulerOutput, grammar: Awaitable[GrammarOutput] | None = None
    ) -> Awaitable[ModelRunnerOutput]:
        """Take a step and return at once; steps are executed in this order.

        The forward pass does not wait for ``grammar``; sampling does.

        The awaitable may be dropped, and awaited more than once. An error in a step is raised by
        its awaitable and by all later ones.

        Raises:
            EngineDeadError: after ``aclose``.
            WrongLoopError: called from another event loop than before.
        """
        self._begin()
        if grammar is None:
            return self._thread.submit(lambda: self._execute(plan))
        masks = self._tickets[plan.step] = MaskTicket(grammar)
        return self._thread.submit(lambda: self._execute(plan, masks))

    async def aclose(self) -> None:
        """End the thread after the step that it is at; steps that wait fail with EngineDeadError."""
        for masks in list(self._tickets.values()):
            masks.give_up(EngineDeadError("the runner was closed before the masks of a step came"))
        await self._thread.aclose(CLOSE_LIMIT)
        self._executor = None

    def _begin(self) -> Awaitable[None]:
        if self._loaded is None:
            self._loaded = self._thread.submit(self._make_executor)
        return self._loaded

    # --- on the thread

    def _make_executor(self) -> None:
        if self._num_threads is not None:
            torch.set_num_threads(self._num_threads)
        self._executor = StepExecutor(self._config, self._load(), self.info, self._vocab_size)

    def _execute(self, plan: SchedulerOutput, masks: MaskTicket | None = None) -> ModelRunnerOutput:
        assert self._executor is not None, "the weights come first"
        output = self._executor.execute(plan, masks)
        self._tickets.pop(plan.step, None)
        return output


def torch_dtype(name: str) -> torch.dtype:
    """The type of that name. Raises ConfigError for one that is not supported."""
    if name not in DTYPES:
        raise ConfigError(f"dtype is {name!r}, supported are {', '.join(map(repr, DTYPES))}")
    return DTYPES[name]


def _max_length(config: ModelConfig, asked: int | None) -> int:
    if asked is None:
        return config.max_position_embeddings
    _at_least_one("max_model_len", asked)
    config.check_length(asked)
    return asked


def _check_limits(
    config: ModelConfig, block_size: int, rows: int, num_threads: int | None, vocab_size: int | None
) -> None:
    _at_least_one("block_size", block_size)
    _at_least_one("max_num_running_reqs", rows)
    if num_threads is not None:
        _at_least_one("num_threads", num_threads)
    if vocab_size is not None and not 0 < vocab_size <= config.vocab_size:
        raise ConfigError(f"vocab_size is {vocab_size}, the limits are 1 and the logits' width, {config.vocab_size}")


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"{name} is {value}, the least is 1")


def _num_blocks(count: int | None, memory: int | None, block_bytes: int, wanted: int) -> int:
    """Blocks of the KV cache: the number asked for, what the memory holds, or what is wanted and there is room for."""
    if count is not None:
        if memory is not None:
            raise ConfigError("num_kv_blocks and kv_cache_memory are both given, they exclude each other")
        _at_least_one("num_kv_blocks", count)
        return count
    if memory is None:
        return max(1, min(wanted, _available_memory() // 4 // block_bytes))
    if memory < block_bytes:
        raise ConfigError(f"kv_cache_memory is {memory} bytes, one block takes {block_bytes}")
    return memory // block_bytes


def _available_memory() -> int:
    """Bytes of memory to plan with; 4 GiB where the system does not say.

    What is free, but no less than a quarter of all: the system counts its cache of files as
    used, and gives it back on demand.
    """
    try:
        pages = max(os.sysconf("SC_AVPHYS_PAGES"), os.sysconf("SC_PHYS_PAGES") // 4)
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 4 << 30
