"""Token sequences that may not come: the last token of one is forbidden where the others stand before it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..scheduler.plan import IntArray

ANY = -1  # stands before a sequence's beginning, fits every token
NONE = -2  # stands before an output's beginning, fits no token


class BadWords:
    """The sequences of one request.

    Args:
        sequences: token ids, none empty.
        vocab_size: tokens from here on are never sampled, so their sequences never come.
    """

    def __init__(self, sequences: Sequence[Sequence[int]], vocab_size: int) -> None:
        possible = [sequence for sequence in sequences if max(sequence) < vocab_size]
        self.longest = max(map(len, possible), default=1)
        self._last = np.array([sequence[-1] for sequence in possible], np.int64)
        # int64 [sequences, longest - 1], what must stand before the last token
        self._before = np.full((len(possible), self.longest - 1), ANY, np.int64)
        for row, sequence in zip(self._before, possible, strict=True):
            row[self.longest - len(sequence) :] = sequence[:-1]

    def forbidden(self, outputs: IntArray) -> IntArray:
        """Tokens that would complete a sequence behind these outputs."""
        if self.longest == 1:
            return self._last
        tail = np.full(self.longest - 1, NONE, np.int64)
        given = outputs[-len(tail) :]
        tail[len(tail) - len(given) :] = given
        return self._last[((self._before == ANY) | (self._before == tail)).all(1)]
