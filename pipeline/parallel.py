"""Several completions of one prompt: requests of their own inside the engine, one stream outside.

They are submitted together, so the full blocks of the prompt are computed once and shared
through the prefix cache, in the same step; without prefix caching each computes its own.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TypeVar

import msgspec

from ..actors import Signal
from ..scheduler.params import SamplingParams
from .outputs import CompletionOutput, PlaceLogprobs, RequestOutput, Timings, Usage
from .stop_strings import StopTrie
from .stream import StreamState
from .tokenizer import Tokenizer

T = TypeVar("T")


def child_params(params: SamplingParams, index: int) -> SamplingParams:
    """The parameters of one completion; the first computes what is wanted of the prompt."""
    if params.n == 1:
        return params
    seed = None if params.seed is None else child_seed(params.seed, index)
    prompt_logprobs = params.prompt_logprobs if index == 0 else None
    return msgspec.structs.replace(params, n=1, seed=seed, prompt_logprobs=prompt_logprobs)


def child_seed(seed: int, index: int) -> int:
    """The seed of completion ``index``: what gives the same completion alone, with ``n=1``.

    The first has the request's own; completion i has the first 63 bits of BLAKE2b of the text
    "seed/i", so that requests with neighbouring seeds share none.
    """
    if index == 0:
        return seed
    return int.from_bytes(blake2b(f"{seed}/{index}".encode(), digest_size=8).digest(), "big") >> 1


def new_states(
    request_id: str, params: SamplingParams, tokenizer: Tokenizer | None, arrived: float
) -> list[StreamState]:
    """The states of a request's completions; they look for its stop strings with one automaton."""
    trie = StopTrie(stops) if tokenizer and (stops := params.stop_strings) else None
    return [StreamState(request_id, params, tokenizer, arrived, index, trie=trie) for index in range(params.n)]


class ParallelState:
    """The completions of one request as their one reader sees them.

    An output of kind "delta" holds those completions that have news, one of kind "cumulative"
    or "final" all of them; log-probabilities of the prompt come with the first one's. The request
    has ended when all of them have; if one fails, all do.
    """

    def __init__(self, states: list[StreamState]) -> None:
        self.states = states
        self.news = Signal()
        for state in states:
            state.news = self.news
        self._kind = states[0].params.output_kind
        self._latest = [CompletionOutput(index=state.index, text="", token_ids=[]) for state in states]
        self._prompt_logprobs: list[PlaceLogprobs | None] | None = None  # the first completion's
        self._closed = False

    @property
    def request_id(self) -> str:
        """The request's id."""
        return self.states[0].request_id

    @property
    def keys(self) -> list[str]:
        """Its names inside the engine."""
        return [state.key for state in self.states]

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return all(state.ended for state in self.states)

    @property
    def exhausted(self) -> bool:
        """Whether the last output was given."""
        return self._closed

    def take(self) -> RequestOutput | None:
        """What is new; None if nothing is. Raises the error, after what came before it."""
        if self._closed or (self._kind == "final" and not self.ended):
            return None
        error = next((state.error for state in self.states if state.error), None)
        fresh = [] if error and self._kind == "final" else self._take_each()
        if fresh:
            return self._output(fresh)
        if error:
            self._closed = True
            raise error
        return None

    def _take_each(self) -> list[CompletionOutput]:
        fresh: list[CompletionOutput] = []
        if self._kind == "delta":
            self._prompt_logprobs = None
        for state in self.states:
            if (state.error is None or state.has_unread) and (output := state.take()):
                fresh += output.outputs
                if state is self.states[0]:
                    self._prompt_logprobs = output.prompt_logprobs
        for completion in fresh:
            self._latest[completion.index] = completion
        return fresh

    def _output(self, fresh: list[CompletionOutput]) -> RequestOutput:
        self._closed = all(state.exhausted for state in self.states)
        first = self.states[0]
        return RequestOutput(
            request_id=first.request_id,
            prompt_token_ids=first.prompt_token_ids,
            outputs=fresh if self._kind == "delta" else [_copy(completion) for completion in self._latest],
            finished=self._closed,
            num_cached_tokens=first.num_cached_tokens,
            usage=Usage(
                prompt_tokens=first.num_prompt_tokens,
                completion_tokens=sum(state.num_tokens for state in self.states),
                cached_tokens=first.num_cached_tokens,
            ),
            timings=self._timings(),
            prompt_logprobs=_copy_list(self._prompt_logprobs),
            prefill=first.prefill,
        )

    def _timings(self) -> Timings:
        each = [state.timings for state in self.states]
        first_tokens = [timings.first_token for timings in each if timings.first_token is not None]
        last_tokens = [timings.last_token for timings in each if timings.last_token is not None]
        ends = [timings.finished for timings in each if timings.finished is not None]
        return Timings(
            arrived=each[0].arrived,
            queued=each[0].queued,
            scheduled=each[0].scheduled,
            first_token=min(first_tokens, default=None),
            last_token=max(last_tokens, default=None),
            finished=max(ends) if len(ends) == len(each) else None,
        )


def _copy(completion: CompletionOutput) -> CompletionOutput:
    """The reader may write to what it gets."""
    return msgspec.structs.replace(
        completion, token_ids=list(completion.token_ids), logprobs=_copy_list(completion.logprobs)
    )


def _copy_list(values: list[T] | None) -> list[T] | None:
    return None if values is None else list(values)
