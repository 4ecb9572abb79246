"""Settings of an engine."""

from __future__ import annotations

from math import inf
from typing import Any, Literal, NoReturn

import msgspec

from ..runner.grammar_spec import GrammarConfig
from ..scheduler.config import SchedulerConfig
from ..scheduler.errors import ConfigError
from ..scheduler.known_names import NamesChecked
from ..scheduler.policy import Policy
from ..scheduler.setting_types import FLAG, TEXT, Kind, at_least, check_types


class _Settings(NamesChecked):
    what, error = "setting", ConfigError


def _is_duration(value: object) -> bool:
    # Of what is above the limit only infinity is meant; some loops count milliseconds in a machine's word.
    return isinstance(value, int | float) and not isinstance(value, bool) and (0 < value <= 1e9 or value == inf)


# What the scheduler's settings need stands in its own table; whole numbers have theirs checked with their limits.
_KINDS: dict[str, Kind] = {
    "model": (lambda value: isinstance(value, str | None), "text or None"),
    "dtype": TEXT,
    "device": TEXT,
    "freeze_gc": FLAG,
    "stop_timeout": (_is_duration, "a number of seconds above 0, up to 1e9 or infinite"),
    "speculative": (lambda value: isinstance(value, SpeculativeConfig | None), "a SpeculativeConfig or None"),
    "grammars": (lambda value: isinstance(value, GrammarConfig), "a GrammarConfig"),
    "kv_load_failure": (
        lambda value: isinstance(value, str) and value in ("recompute", "fail"),
        "'recompute' or 'fail'",
    ),
    "isolation": (lambda value: isinstance(value, str) and value in ("thread", "process"), "'thread' or 'process'"),
}


class SpeculativeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Speculative decoding: several tokens proposed cheaply and checked in one step.

    A place in the settings; engines refuse it until it is built.
    """

    method: Literal["ngram", "draft_model"] = "ngram"
    num_speculative_tokens: int = 3


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, metaclass=_Settings):
    """Settings of an engine; None leaves a choice to the runner or the model.

    Args:
        model: a folder in Hugging Face layout, a .gguf file, or the name of an installed model.
        dtype: type of the weights in memory, "float32" on a CPU.
        device: "cpu".
        max_model_len: tokens of one request, prompt and output together.
        block_size: tokens in a KV block.
        num_kv_blocks: blocks of the KV cache; or kv_cache_memory: its size in bytes.
        max_num_running_reqs: requests computed at once; None: as many as the runner has rows for.
        max_num_scheduled_tokens: tokens that one step may compute.
        long_prefill_token_threshold: most tokens of one request in a step that serves others; 0: no cap.
        prefill_schedule_interval: while somebody decodes, prompts are computed in every such step only;
            1: in each. Fewer long steps, later first tokens.
        priority_preemption: under the priority policy, whether a more urgent request takes blocks and
            slot of a running one (which keeps what is not needed), and the tokens of a step go by
            priority; otherwise it waits. Needs that policy; off while another is in force, after a swap.
        max_backfill: requests that may run out of turn while the head of the queue finds no room.
        enable_chunked_prefill: whether a prompt may be split over steps.
        enable_prefix_caching: whether equal prefixes are computed once.
        prefix_hash: digest that names cached blocks: "sha256", "blake2b", or cut, as in "sha256-128".
        watermark: share of the KV cache kept free when a request is admitted beside others, 0 to below 1.
        policy: "fcfs", "priority", or a ``Policy``.
        steps_in_flight: steps planned ahead of their results; 1 waits for each, 2 overlaps.
        max_waiting: unfinished requests beyond the running ones; more are refused.
        max_logprobs: most log-probabilities that a request may ask for at each place; -1: the whole vocabulary.
        max_waiting_tokens: prompt tokens of requests without an output yet; once there are as many,
            further requests are refused. 0 refuses all, None none.
        num_threads: the runner's threads.
        stop_timeout: seconds that stopping gives the actors.
        freeze_gc: whether the garbage collector passes over what was there when the engine started,
            until it stops; it is the whole process's collector, so the default leaves it alone.
        grammars: limits of structured output: time and memory to compile a grammar, size of the cache.

    Not built, and refused by name when they differ from their defaults:
        speculative: several tokens proposed cheaply and checked in one step.
        encoder_cache_tokens: room for outputs of media encoders, in tokens.
        max_num_encoder_tokens: tokens of media that one step may encode.
        kv_connector: where keys and values come from and go to beyond this process.
        kv_load_failure: what happens to a request whose keys and values a connector could not load.
        isolation: whether the runner has a thread or a process of its own.
    """

    model: str | None = None
    dtype: str = "float32"
    device: str = "cpu"
    max_model_len: int | None = None
    block_size: int = 16
    num_kv_blocks: int | None = None
    kv_cache_memory: int | None = None
    max_num_running_reqs: int | None = None
    max_num_scheduled_tokens: int = 2048
    long_prefill_token_threshold: int = 0
    prefill_schedule_interval: int = 1
    priority_preemption: bool = False
    max_backfill: int = 0
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    prefix_hash: str = "sha256"
    watermark: float = 0.0
    policy: str | Policy = "fcfs"
    steps_in_flight: int = 2
    max_waiting: int = 100_000
    max_logprobs: int = 20
    max_waiting_tokens: int | None = None
    num_threads: int | None = None
    stop_timeout: float = 5.0
    freeze_gc: bool = False
    grammars: GrammarConfig = GrammarConfig()
    speculative: SpeculativeConfig | None = None
    encoder_cache_tokens: int | None = None
    max_num_encoder_tokens: int | None = None
    kv_connector: Any = None
    kv_load_failure: Literal["recompute", "fail"] = "recompute"
    isolation: Literal["thread", "process"] = "thread"

    def __post_init__(self) -> None:
        check_types(((name, getattr(self, name)) for name in self.__struct_fields__), _KINDS)
        for name, usual in zip(self.__struct_fields__, self.__struct_defaults__, strict=True):
            if getattr(self, name) is None and usual is not None:
                raise ConfigError(f"{name} is None, needed is a value: whoever wants the default leaves it out")
        at_least("max_waiting", self.max_waiting, 0)
        at_least("max_logprobs", self.max_logprobs, -1)
        if self.max_waiting_tokens is not None:
            at_least("max_waiting_tokens", self.max_waiting_tokens, 0)
        for name in ("max_model_len", "max_num_running_reqs", "num_threads"):
            if (value := getattr(self, name)) is not None:
                at_least(name, value, 1)
        if self.kv_cache_memory is not None:
            at_least("kv_cache_memory", self.kv_cache_memory, 1, most=2**63 - 1)
        if self.num_kv_blocks is not None and self.kv_cache_memory is not None:
            raise ConfigError("num_kv_blocks and kv_cache_memory both size the KV cache, give one of them")
        for name in ("speculative", "encoder_cache_tokens", "max_num_encoder_tokens", "kv_connector"):
            if getattr(self, name) is not None:
                _refuse(name, getattr(self, name))
        for name, usual in (("kv_load_failure", "recompute"), ("isolation", "thread")):
            if (value := getattr(self, name)) != usual:
                _refuse(name, value)
        self.scheduler(max_model_len=self.max_model_len or self.max_num_scheduled_tokens)  # its limits, checked early

    def scheduler(self, **facts: Any) -> SchedulerConfig:
        """The scheduler's part, completed with what the runner says of itself."""
        names = [name for name in SchedulerConfig.__struct_fields__ if getattr(self, name, None) is not None]
        return SchedulerConfig(**{name: getattr(self, name) for name in names} | facts)


def refuse_load_settings(config: EngineConfig) -> None:
    """Raise ConfigError for settings of how a model is read: they mean nothing to an engine that is given a runner."""
    defaults = EngineConfig()
    for name in ("model", "dtype", "device", "kv_cache_memory", "num_threads"):
        if (value := getattr(config, name)) != getattr(defaults, name):
            raise ConfigError(
                f"{name} is {value!r}, needed is its default: it says how a model is read, "
                "and the engine was given a runner"
            )


def _refuse(name: str, value: object) -> NoReturn:
    raise ConfigError(f"{name}={value!r} is not supported yet")
