"""Token sequences that may not come: the last token of one is forbidden where the others stand before it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..scheduler.plan import NO_INTS, IntArray


class BadWords:
    """The sequences of one request, by what must stand before their last tokens.

    A step looks once for each length that there is, however many sequences have it.

    Args:
        sequences: token ids, none empty.
        vocab_size: tokens from here on are never sampled, so their sequences never come.
        max_tokens: longer sequences never come.
    """

    def __init__(self, sequences: Sequence[Sequence[int]], vocab_size: int, max_tokens: int | None = None) -> None:
        last: dict[bytes, list[int]] = {}
        lengths = {1}
        for sequence in sequences:
            if max(sequence) < vocab_size and (max_tokens is None or len(sequence) <= max_tokens):
                before = np.array(sequence[:-1], np.int64).tobytes()
                last.setdefault(before, []).append(sequence[-1])
                lengths.add(len(sequence))
        self.longest = max(lengths)
        self._counts = sorted(length - 1 for length in lengths)
        self._last = {before: np.array(tokens, np.int64) for before, tokens in last.items()}

    def forbidden(self, outputs: IntArray) -> IntArray:
        """Tokens that would complete a sequence behind these outputs."""
        counts = [count for count in self._counts if count <= len(outputs)]
        keys = [outputs[len(outputs) - count :].tobytes() for count in counts]
        return np.concatenate([NO_INTS, *(self._last[key] for key in keys if key in self._last)])
