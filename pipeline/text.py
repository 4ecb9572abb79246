"""From tokens to the text of one completion, stop strings included."""

from __future__ import annotations

from ..scheduler.params import SamplingParams
from .detokenizer import IncrementalDetokenizer
from .stop_strings import StopStrings, StopTrie
from .tokenizer import Tokenizer


class CompletionText:
    """The text of a completion's tokens, made when it is read, or as they come where stop strings are looked for.

    It grows by whole characters. After a stop string has matched nothing more is added. The whole
    text is kept only where the output kind shows it again.

    Args:
        trie: the automaton of the stop strings, where completions share it; None: one is made.
    """

    __slots__ = (
        "_detokenizer",
        "_is_cut",
        "_keeps",
        "_new",
        "_num_fed",
        "_stops",
        "_unsearched",
        "_whole",
        "num_hidden",
    )

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams, trie: StopTrie | None = None) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=params.skip_special_tokens)
        stops = trie or params.stop_strings
        self._stops = StopStrings(stops, include=params.include_stop_str_in_output) if stops else None
        self._unsearched = params.min_tokens  # tokens whose text is not searched for stop strings
        self._keeps = params.output_kind != "delta"
        self._whole = ""  # all text that was taken
        self._new: list[str] = []  # text that was not taken yet
        self._num_fed = 0  # tokens turned into text
        self._is_cut = False  # a stop string was found: no text comes after it
        self.num_hidden = 0  # tokens at the end whose text is not shown

    def feed(self, token_ids: list[int]) -> str | None:
        """Turn those of a completion's tokens into text that came since; the stop string they complete, if any."""
        fresh = token_ids[self._num_fed : len(token_ids) - self.num_hidden]
        if not fresh:
            return None
        self._num_fed += len(fresh)
        self._unsearched -= len(fresh)
        new, matched = self._detokenizer.feed(fresh), None
        if self._stops:
            new, matched = self._stops.feed(new, active=self._unsearched < 0)
        self._is_cut = matched is not None
        self._new.append(new)
        return matched

    def take(self, token_ids: list[int], *, is_all: bool) -> str:
        """The text that an output shows: what is new, or all so far where the output kind says so.

        Args:
            token_ids: all tokens of the completion.
            is_all: whether no more will come: what was held back is given, too.
        """
        if not self._is_cut:
            self.feed(token_ids)
            if is_all:
                self._new.append(self._finish())
        text = "".join(self._new)
        self._new.clear()
        if not self._keeps:
            return text
        self._whole += text
        return self._whole

    def _finish(self) -> str:
        """The text that was held back; asked once, when no stop string ended the completion."""
        rest = self._detokenizer.finish()
        if self._stops:
            searched, _ = self._stops.feed(rest)
            rest = searched + self._stops.finish()
        return rest
