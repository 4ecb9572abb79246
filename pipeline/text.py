"""From tokens to the text of one completion, stop strings included."""

from __future__ import annotations

from ..scheduler.params import SamplingParams
from .detokenizer import IncrementalDetokenizer
from .stop_strings import StopStrings, StopTrie
from .tokenizer import Tokenizer


class TextBuilder:
    """Turns a completion's tokens into text, a few at a time.

    ``text`` grows by whole characters. After a stop string has matched nothing more is added.

    Args:
        trie: the automaton of the stop strings, where completions share it; None: one is made.
    """

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams, trie: StopTrie | None = None) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=params.skip_special_tokens)
        stops = trie or params.stop_strings
        self._stops = StopStrings(stops, include=params.include_stop_str_in_output) if stops else None
        self._unsearched = params.min_tokens  # tokens whose text is not searched for stop strings
        self._parts: list[str] = []

    @property
    def text(self) -> str:
        """All text so far."""
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    @property
    def searches(self) -> bool:
        """Whether stop strings are looked for, so that tokens must be fed as they come."""
        return self._stops is not None

    def feed(self, token_ids: list[int]) -> tuple[str, str | None]:
        """Take in tokens; returns the new text and the stop string that it completes, if any."""
        new = self._detokenizer.feed(token_ids)
        matched = None
        self._unsearched -= len(token_ids)
        if self._stops:
            new, matched = self._stops.feed(new, active=self._unsearched < 0)
        self._parts.append(new)
        return new, matched

    def finish(self) -> str:
        """The text that was held back; called once, when no stop string ended the completion."""
        rest = self._detokenizer.finish()
        if self._stops:
            searched, _ = self._stops.feed(rest)
            rest = searched + self._stops.finish()
        self._parts.append(rest)
        return rest
