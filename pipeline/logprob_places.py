"""From columns of log-probabilities to what users read, when they read it."""

from __future__ import annotations

from ..scheduler.logprobs import LogprobColumns, joined
from ..scheduler.params import SamplingParams
from .outputs import Logprob, PlaceLogprobs
from .tokenizer import Tokenizer


class LogprobPlaces:
    """The places of one text, as they come; turned into dicts when they are taken.

    Args:
        tokenizer: gives the texts of tokens; None: they have none.
    """

    __slots__ = ("_columns", "_tokenizer", "total")

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._columns: list[LogprobColumns] = []
        self.total = 0.0  # of the tokens that stand at the places taken so far

    def add(self, columns: LogprobColumns) -> None:
        """More places, behind those before."""
        self._columns.append(columns)

    def take(self, count: int) -> list[PlaceLogprobs]:
        """The next places, at most so many."""
        if not self._columns:
            return []
        columns = joined(self._columns)
        self._columns = [columns.part(count, len(columns))] if count < len(columns) else []
        return self._views(columns.part(0, count))

    def _views(self, columns: LogprobColumns) -> list[PlaceLogprobs]:
        width, ids, values = columns.width, columns.token_ids.tolist(), columns.values.tolist()
        self.total += sum(values[::width])
        texts = {token: self._text(token) for token in set(ids)}
        places: list[PlaceLogprobs] = []
        for place, rank in enumerate(columns.ranks.tolist()):
            at = place * width
            found = {ids[at]: Logprob(values[at], rank, texts[ids[at]])}
            for likely in range(1, width):
                token = ids[at + likely]
                if token not in found:
                    found[token] = Logprob(values[at + likely], likely, texts[token])
            places.append(found)
        return places

    def _text(self, token: int) -> str | None:
        return self._tokenizer.token_bytes(token).decode("utf-8", "replace") if self._tokenizer else None


class CompletionLogprobs:
    """Log-probabilities of a completion and its prompt, for one who asked for either.

    What was shown is kept only where the output kind shows it again.
    """

    __slots__ = ("_asked", "_is_prompt_told", "_keeps", "_prompt", "_tokens", "_whole", "_whole_prompt")

    def __init__(self, tokenizer: Tokenizer | None, params: SamplingParams) -> None:
        self._asked = (params.logprobs is not None, params.prompt_logprobs is not None)
        self._keeps = params.output_kind != "delta"
        self._tokens, self._prompt = LogprobPlaces(tokenizer), LogprobPlaces(tokenizer)
        self._whole: list[PlaceLogprobs] = []
        self._whole_prompt: list[PlaceLogprobs | None] = []
        self._is_prompt_told = False

    def add(self, columns: LogprobColumns) -> None:
        """Those of the tokens that come next; of tokens that never come they are not shown."""
        self._tokens.add(columns)

    def add_prompt(self, columns: LogprobColumns) -> None:
        """The next ones of the prompt."""
        self._prompt.add(columns)

    def take(self, count: int) -> tuple[list[PlaceLogprobs] | None, float | None]:
        """Those of the next ``count`` tokens, or all so far, and the sum of all so far; None if nobody asked."""
        if not self._asked[0]:
            return None, None
        new = self._tokens.take(count)
        if self._keeps:
            self._whole += new
            new = list(self._whole)
        return new, self._tokens.total

    def take_prompt(self, num_tokens: int) -> list[PlaceLogprobs | None] | None:
        """With the first output, and where all so far is given with each; what was computed, if it ended before."""
        if not self._asked[1] or (self._is_prompt_told and not self._keeps):
            return None
        if self._is_prompt_told:
            return list(self._whole_prompt)
        self._is_prompt_told = True
        places = [None, *self._prompt.take(num_tokens)]
        self._whole_prompt = list(places) if self._keeps else []
        return places
