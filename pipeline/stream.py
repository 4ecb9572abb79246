"""The public stream: a request's state, and a signal for whoever waits for news of it.

It is not a channel. The engine adds to the state, a reader takes what is new, and taking has
no await in it: whatever cancels a read, no token is lost. A slow reader finds all that came
since in one output.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from ..actors import LoopPort, Signal
from ..scheduler.logprobs import LogprobColumns
from ..scheduler.messages import EngineCoreEvent, Finished
from ..scheduler.params import SamplingParams
from ..scheduler.request import FinishReason
from ..scheduler.statistics import PrefillStats
from .logprob_places import CompletionLogprobs
from .outputs import CompletionOutput, RequestOutput, Timings, Usage
from .stop_strings import StopTrie
from .text import CompletionText
from .tokenizer import Tokenizer


class StreamState:
    """One request as its reader sees it: what came, what was taken, how it ended.

    Args:
        tokenizer: None: token ids only, without text.
        arrived: when the request came.
        index: among the completions of its request.
        trie: the automaton of its stop strings, which the completions share.
    """

    __slots__ = (
        "_arrived",
        "_closed",
        "_finished",
        "_first_token",
        "_last_token",
        "_logprobs",
        "_num_taken",
        "_queued",
        "_scheduled",
        "_text",
        "_tokenizer",
        "_tokens",
        "_trie",
        "_wakes",
        "end",
        "error",
        "index",
        "key",
        "news",
        "num_prompt_tokens",
        "params",
        "prefill",
        "prompt_token_ids",
        "request_id",
        "searches",
    )
    # Seconds on the engine's clock.
    _queued: float | None
    _scheduled: float | None
    _first_token: float | None
    _last_token: float | None
    _finished: float | None

    def __init__(
        self,
        request_id: str,
        params: SamplingParams,
        tokenizer: Tokenizer | None,
        arrived: float,
        index: int = 0,
        *,
        trie: StopTrie | None = None,
    ) -> None:
        self.request_id = self.key = request_id  # the key is its name inside the engine; the board may choose another
        self.index, self.params = index, params
        self.prompt_token_ids: list[int] = []  # handed to the reader, who may write to it
        self.num_prompt_tokens = 0
        self.prefill: PrefillStats | None = None  # from the first token on
        self.end: Finished | None = None
        self.error: BaseException | None = None
        self.news = Signal()
        # Stop strings: its tokens become text as they come.
        self.searches = tokenizer is not None and bool(params.stop_strings)
        self._tokenizer, self._trie = tokenizer, trie
        self._wakes = params.output_kind != "final"  # whether a token is news for its reader
        self._tokens: list[int] = []
        self._num_taken = 0  # tokens in outputs already given
        self._closed = False  # the last output was given
        # Made when first needed: thousands may wait.
        self._text: CompletionText | None = None
        self._logprobs: CompletionLogprobs | None = None
        self._arrived = arrived
        self._queued = self._scheduled = self._first_token = self._last_token = self._finished = None

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self.end is not None or self.error is not None

    @property
    def keys(self) -> list[str]:
        """Its names inside the engine."""
        return [self.key]

    @property
    def num_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self._tokens)

    @property
    def has_unread(self) -> bool:
        """Whether tokens came that an output would hold now."""
        return self._wakes and self._num_taken < len(self._tokens)

    @property
    def num_cached_tokens(self) -> int:
        """Tokens of the prompt that came from the prefix cache."""
        return self.prefill.num_cached_tokens if self.prefill else 0

    @property
    def timings(self) -> Timings:
        """When things happened to it."""
        return Timings(
            arrived=self._arrived,
            queued=self._queued,
            scheduled=self._scheduled,
            first_token=self._first_token,
            last_token=self._last_token,
            finished=self._finished,
        )

    # --- the engine's side

    def begin(self, prompt_token_ids: list[int]) -> None:
        """Its prompt is known and on its way to the scheduler."""
        self.prompt_token_ids = prompt_token_ids
        self.num_prompt_tokens = len(prompt_token_ids)

    def note(self, event: EngineCoreEvent) -> None:
        """Something that happened to the request in the scheduler."""
        if event.kind == "QUEUED":
            self._queued = event.time
        elif event.kind == "SCHEDULED" and self._scheduled is None:
            self._scheduled = event.time

    def push(self, token: int, now: float) -> None:
        """One more token; a reader of the whole alone is not woken for it."""
        self._last_token = now
        if self._first_token is None:
            self._first_token = now
        self._tokens.append(token)
        if self._wakes:
            self.news.set()

    def search(self) -> str | None:
        """Look for stop strings in the text of what came since; returns the one that is completed, if any."""
        return self._made_text().feed(self._tokens)

    def add_logprobs(self, columns: LogprobColumns) -> None:
        """Log-probabilities of the tokens that come next."""
        self._made_logprobs().add(columns)

    def add_prompt_logprobs(self, columns: LogprobColumns) -> None:
        """The next log-probabilities of the prompt."""
        self._made_logprobs().add_prompt(columns)

    def announce(self, end: Finished) -> None:
        """Say how the request is about to end, before its last tokens: the text of a stop token is not shown."""
        by_token = end.reason is FinishReason.STOP and not isinstance(end.stop_reason, str)
        if by_token and self._tokenizer is not None and not self.params.include_stop_str_in_output:
            self._made_text().num_hidden = 1

    def finish(self, end: Finished, now: float) -> None:
        """The request's one end."""
        self.end, self._finished = end, now
        self.news.set()

    def fail(self, error: BaseException) -> None:
        """The request's one end, by an error that its reader gets."""
        self.error = error
        self.news.set()

    # --- the reader's side

    def take(self) -> RequestOutput | None:
        """What is new, as the request's output kind says; None if nothing is. Raises the error."""
        unread = self.has_unread
        if not unread and self.end is None and self.error is None:  # the most frequent answer
            return None
        if self._closed:
            return None
        if self.error is not None and not unread:
            self._closed = True
            raise self.error
        return self._output()

    @property
    def exhausted(self) -> bool:
        """Whether the last output was given."""
        return self._closed

    def _output(self) -> RequestOutput:
        cached = self.num_cached_tokens
        return RequestOutput(
            request_id=self.request_id,
            prompt_token_ids=self.prompt_token_ids,
            outputs=[self._completion()],
            finished=self._closed,
            num_cached_tokens=cached,
            usage=Usage(
                prompt_tokens=self.num_prompt_tokens, completion_tokens=len(self._tokens), cached_tokens=cached
            ),
            timings=self.timings,
            prompt_logprobs=self._made_logprobs().take_prompt(self.num_prompt_tokens) if self._has_logprobs else None,
            prefill=self.prefill,
        )

    def _completion(self) -> CompletionOutput:
        self._closed = self.end is not None
        new_tokens = self._tokens[self._num_taken :]
        self._num_taken = len(self._tokens)
        logprobs, total = self._made_logprobs().take(len(new_tokens)) if self._has_logprobs else (None, None)
        return CompletionOutput(
            index=self.index,
            text=self._made_text().take(self._tokens, is_all=self._closed) if self._tokenizer else "",
            token_ids=new_tokens if self.params.output_kind == "delta" else list(self._tokens),
            logprobs=logprobs,
            cumulative_logprob=total,
            finish_reason=self.end.reason.value if self.end else None,
            stop_reason=self.end.stop_reason if self.end else None,
        )

    # --- made when first needed

    @property
    def _has_logprobs(self) -> bool:
        return self.params.logprobs is not None or self.params.prompt_logprobs is not None

    def _made_logprobs(self) -> CompletionLogprobs:
        if self._logprobs is None:
            self._logprobs = CompletionLogprobs(self._tokenizer, self.params)
        return self._logprobs

    def _made_text(self) -> CompletionText:
        if self._text is None:
            assert self._tokenizer is not None
            self._text = CompletionText(self._tokenizer, self.params, self._trie)
        return self._text


class Readable(Protocol):
    """What a stream reads: one completion's state, or that of several."""

    @property
    def request_id(self) -> str: ...
    @property
    def keys(self) -> list[str]: ...
    @property
    def news(self) -> Signal: ...
    @property
    def ended(self) -> bool: ...
    @property
    def exhausted(self) -> bool: ...
    def take(self) -> RequestOutput | None: ...


class RequestStream:
    """What ``Engine.generate`` returns: an async iterator of ``RequestOutput``.

    The request is aborted when the stream is closed, left as a context manager, or dropped
    before its end. A read may be cancelled or time out and be made again: no token is lost.
    One reader at a time, in the engine's event loop: reading anywhere else raises WrongLoopError.
    """

    __slots__ = ("__weakref__", "_abort", "_port", "_state")

    def __init__(self, state: Readable, abort: Callable[[list[str]], None], port: LoopPort) -> None:
        self._state = state
        self._abort = abort
        self._port = port

    @property
    def request_id(self) -> str:
        """The request's id."""
        return self._state.request_id

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> RequestOutput:
        self._port.check_owner()  # elsewhere the wake-up would not arrive
        state = self._state
        while (output := state.take()) is None:
            if state.exhausted:
                raise StopAsyncIteration
            await state.news.wait()
        return output

    async def aclose(self) -> None:
        """Abort the request if it has not ended. May be called twice, from any task."""
        self._drop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._drop()

    def __del__(self) -> None:
        self._drop()

    def _drop(self) -> None:
        if not self._state.ended:
            self._abort(self._state.keys)
