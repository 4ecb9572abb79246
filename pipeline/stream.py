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
from .logprob_places import LogprobPlaces
from .outputs import CompletionOutput, PlaceLogprobs, RequestOutput, Timings, Usage
from .stop_strings import StopTrie
from .text import TextBuilder
from .tokenizer import Tokenizer


class StreamState:
    """One request as its reader sees it: what came, what was taken, how it ended.

    Args:
        tokenizer: None: token ids only, without text.
        arrived: when the request came.
        index: among the completions of its request.
        trie: the automaton of its stop strings, which the completions share.
    """

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
        self.request_id = request_id
        self.index = index
        self.key = request_id  # its name inside the engine; the board may choose another
        self.params = params
        self.prompt_token_ids: list[int] = []  # handed to the reader, who may write to it
        self.num_prompt_tokens = 0
        self.prefill: PrefillStats | None = None  # from the first token on
        self.end: Finished | None = None
        self.error: BaseException | None = None
        self.news = Signal()
        self._text = TextBuilder(tokenizer, params, trie) if tokenizer else None
        self._logprobs = LogprobPlaces(tokenizer)
        self._prompt_logprobs = LogprobPlaces(tokenizer)
        # Kept for the output kinds that give all so far.
        self._whole_logprobs: list[PlaceLogprobs] = []
        self._whole_prompt: list[PlaceLogprobs | None] = []
        self._prompt_told = False
        # Stop strings: its tokens become text as they come.
        self.searches = self._text is not None and self._text.searches
        self._wakes = params.output_kind != "final"  # whether a token is news for its reader
        self._tokens: list[int] = []
        self._num_taken = 0  # tokens in outputs already given
        self._num_fed = 0  # tokens turned into text
        self._new_text: list[str] = []
        self._hidden = 0  # tokens at the end whose text is not shown
        self._cut = False  # a stop string was found: no text comes after it
        self._closed = False  # the last output was given
        self._arrived = arrived
        self._queued: float | None = None
        self._scheduled: float | None = None
        self._first_token: float | None = None
        self._last_token: float | None = None
        self._finished: float | None = None

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
        return self._feed_text()

    def add_logprobs(self, columns: LogprobColumns) -> None:
        """Log-probabilities of the tokens that come next; of tokens that never come they are not shown."""
        self._logprobs.add(columns)

    def add_prompt_logprobs(self, columns: LogprobColumns) -> None:
        """The next log-probabilities of the prompt."""
        self._prompt_logprobs.add(columns)

    def announce(self, end: Finished) -> None:
        """Say how the request is about to end, before its last tokens: the text of a stop token is not shown."""
        by_token = end.reason is FinishReason.STOP and not isinstance(end.stop_reason, str)
        self._hidden = int(by_token and not self.params.include_stop_str_in_output)

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
        unread = self._num_taken < len(self._tokens) and self._wakes
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
        prefill = self.prefill
        cached = prefill.num_cached_tokens if prefill else 0
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
            prompt_logprobs=self._take_prompt_logprobs(self.params.output_kind != "delta"),
            prefill=prefill,
        )

    def _completion(self) -> CompletionOutput:
        finished = self._closed = self.end is not None
        whole = self.params.output_kind != "delta"
        new_text = self._take_text(finished) if self._text is not None else ""
        new_tokens = self._tokens[self._num_taken :]
        logprobs = self._take_logprobs(len(new_tokens), whole)
        self._num_taken = len(self._tokens)
        return CompletionOutput(
            index=self.index,
            text=self._text.text if whole and self._text else new_text,
            token_ids=list(self._tokens) if whole else new_tokens,
            logprobs=logprobs,
            cumulative_logprob=None if logprobs is None else self._logprobs.total,
            finish_reason=self.end.reason.value if self.end else None,
            stop_reason=self.end.stop_reason if self.end else None,
        )

    def _take_logprobs(self, count: int, whole: bool) -> list[PlaceLogprobs] | None:
        if self.params.logprobs is None:
            return None
        new = self._logprobs.take(count)
        if not whole:
            return new
        self._whole_logprobs += new
        return list(self._whole_logprobs)

    def _take_prompt_logprobs(self, whole: bool) -> list[PlaceLogprobs | None] | None:
        """With the first output, and where all so far is given with each; what was computed, if it ended before."""
        if self.params.prompt_logprobs is None or (self._prompt_told and not whole):
            return None
        if self._prompt_told:
            return list(self._whole_prompt)
        self._prompt_told = True
        places = [None, *self._prompt_logprobs.take(self.num_prompt_tokens)]
        self._whole_prompt = list(places) if whole else []
        return places

    # --- text

    def _feed_text(self) -> str | None:
        """Turn tokens that came since into text."""
        if self._text is None:
            return None
        tokens = self._tokens[self._num_fed : len(self._tokens) - self._hidden]
        self._num_fed += len(tokens)
        if not tokens:
            return None
        new, matched = self._text.feed(tokens)
        self._cut = matched is not None
        self._new_text.append(new)
        return matched

    def _take_text(self, finished: bool) -> str:
        if self._text is None:
            return ""
        if not self._cut:
            self._feed_text()
            if finished:
                self._new_text.append(self._text.finish())
        text = "".join(self._new_text)
        self._new_text.clear()
        return text


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
