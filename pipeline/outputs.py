"""What users get: outputs of requests, and the engine's counts."""

from __future__ import annotations

import msgspec

from ..runner.grammar_cache import GrammarCacheStatistics
from ..runner.grammar_manager import GrammarStatistics
from ..scheduler.statistics import KVGroupStatistics, PrefillStats, share_held


class Usage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Tokens that a request has used so far.

    Args:
        prompt_tokens: of the prompt, counted once however many completions it has.
        completion_tokens: generated, of all completions together.
        cached_tokens: of the prompt, those found in the prefix cache.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens


class Timings(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """When things happened to a request, in seconds on the event loop's clock; None: not yet.

    ``queued`` and ``scheduled`` are the scheduler's times, of the first admission; the others
    are those at which the outputs came to the request's stream.
    """

    arrived: float
    queued: float | None = None
    scheduled: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    finished: float | None = None

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from arrival to the first token."""
        return _between(self.arrived, self.first_token)

    @property
    def queue_time(self) -> float | None:
        """Seconds from the queue to the first admission."""
        return _between(self.queued, self.scheduled)

    @property
    def prefill_time(self) -> float | None:
        """Seconds from the first admission to the first token."""
        return _between(self.scheduled, self.first_token)

    @property
    def decode_time(self) -> float | None:
        """Seconds from the first token to the newest."""
        return _between(self.first_token, self.last_token)

    @property
    def inference_time(self) -> float | None:
        """Seconds from the first admission to the newest token."""
        return _between(self.scheduled, self.last_token)

    @property
    def total_time(self) -> float | None:
        """Seconds from arrival to the end."""
        return _between(self.arrived, self.finished)


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start


class Logprob(msgspec.Struct, frozen=True):
    """One token at one place: how likely it was there by the model's own distribution.

    That is before temperature, penalties, masks and cuts. The logarithm is natural and finite;
    ``rank`` 1 is the likeliest; ``decoded_token`` is the token's text by itself, with U+FFFD for
    what is part of a character, None without a tokenizer.
    """

    logprob: float
    rank: int
    decoded_token: str | None = None


# At one place, by token id: the token that stands there first, then the likeliest in order.
PlaceLogprobs = dict[int, Logprob]


class CompletionOutput(msgspec.Struct, frozen=True, kw_only=True):
    """One completion of a prompt.

    ``text`` and ``token_ids`` are what is new, all so far, or all at the end, as the request's
    ``output_kind`` says; ``logprobs`` has a place for each of these tokens, if they were asked for.
    ``cumulative_logprob`` is the sum over all tokens so far.

    ``finish_reason`` is None until it has ended, then one of:

    - "stop": an end token, a stop token, a stop string, a stop rule or the end of a constraint; ``stop_reason`` is the
      stop string or stop token, or what the rule says.
    - "length": ``max_tokens`` or the model's length.
    - "repetition": ``repetition_detection`` found a pattern.
    - "abort": ``engine.abort``, or ``engine.pause("abort")``.

    A request that fails gives no such output: its stream raises the error.
    """

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[PlaceLogprobs] | None = None
    cumulative_logprob: float | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class RequestOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What a request has given.

    ``prompt_logprobs``, if they were asked for, have a place for each token of the prompt, None for
    the first; they come with the first output, and with all others too unless the kind is "delta".
    ``prefill`` tells from the first token on how the prompt was come by.
    """

    request_id: str
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int
    usage: Usage
    timings: Timings
    prompt_logprobs: list[PlaceLogprobs | None] | None = None
    prefill: PrefillStats | None = None

    @property
    def text(self) -> str:
        """The text of the first completion."""
        return self.outputs[0].text


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of an engine, since it started where not said otherwise.

    Args:
        num_running: requests that hold a row now.
        num_waiting: requests that wait now, those not yet tokenized included.
        num_deferred: of these, requests whose grammars are being prepared.
        kv_blocks_total, kv_blocks_free, kv_blocks_cached: usable blocks; held by nobody now, cached ones included;
            found by their key now.
        prefix_queries, prefix_hits: prompt tokens looked up in the prefix cache, and found.
        prefix_hit_rate: share of prompt tokens found, over the last 1000 admissions.
        num_preemptions: times that a running request had to give its row up.
        num_steps: plans made.
        num_prompt_tokens, num_generated_tokens: of requests submitted; of outputs.
        num_finished: requests ended, whatever the reason.
        kv_groups: blocks used by each group of layers.
        grammars, grammar_cache: masks and tokens of constrained requests; compiled grammars that are kept.
        loop_lag_median, loop_lag_p99, loop_lag_max: seconds that a ready task of the host waits, in about the last
            minute of work; what 99 of 100 of these waits stay at or below; the longest of all.
    """

    num_running: int
    num_waiting: int
    num_deferred: int
    kv_blocks_total: int
    kv_blocks_free: int
    kv_blocks_cached: int
    prefix_queries: int
    prefix_hits: int
    prefix_hit_rate: float
    num_preemptions: int
    num_steps: int
    num_prompt_tokens: int
    num_generated_tokens: int
    num_finished: int
    kv_groups: tuple[KVGroupStatistics, ...]
    grammars: GrammarStatistics
    grammar_cache: GrammarCacheStatistics
    loop_lag_median: float
    loop_lag_p99: float
    loop_lag_max: float

    @property
    def kv_usage(self) -> float:
        """Share of the KV cache that is held, 0 to 1."""
        return share_held(self.kv_blocks_free, self.kv_blocks_total)

    def __str__(self) -> str:
        """One count a line."""
        return "\n".join(f"{name}: {getattr(self, name)}" for name in self.__struct_fields__)
