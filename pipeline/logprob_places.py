"""From columns of log-probabilities to what users read, when they read it."""

from __future__ import annotations

from ..scheduler.logprobs import LogprobColumns, joined
from .outputs import Logprob, PlaceLogprobs
from .tokenizer import Tokenizer


class LogprobPlaces:
    """The places of one text, as they come; turned into dicts when they are taken.

    Args:
        tokenizer: gives the texts of tokens; None: they have none.
    """

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
