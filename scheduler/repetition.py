"""Finds out when a text goes round in circles."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .messages import Finished
from .params import RepetitionDetection
from .request import FinishReason

REPEATED = Finished(reason=FinishReason.REPETITION, stop_reason="repetition_detected")


class RepetitionWatch:
    """Whether a request's newest tokens are one pattern several times back to back.

    For each pattern length it counts for how many tokens in a row the text has equalled itself
    that many places before, so each token is looked at once, all lengths in one comparison.

    Args:
        wanted: the pattern lengths and the number of times.
        max_tokens: most outputs of the request; longer patterns are not looked for.
    """

    def __init__(self, wanted: RepetitionDetection, max_tokens: int) -> None:
        self._least = max(wanted.min_pattern_size, 1)
        self._most = min(wanted.max_pattern_size, max_tokens // wanted.min_count)
        sizes = np.arange(self._least, self._most + 1)
        self._needed = sizes * (wanted.min_count - 1)
        self._runs = np.zeros_like(sizes)
        self._seen = 0

    def repeats(self, output_token_ids: NDArray[np.int32]) -> bool:
        """Take in the tokens that came since the last call; whether they end in a repetition."""
        if len(output_token_ids) < self._seen:  # another text has begun
            self._runs[:] = self._seen = 0
        for place in range(self._seen, len(output_token_ids)):
            self._look_at(output_token_ids, place)
        self._seen = len(output_token_ids)
        return bool((self._runs >= self._needed).any())

    def _look_at(self, tokens: NDArray[np.int32], place: int) -> None:
        # The tokens that stand ``least``, ``least + 1``, ... places before, nearest first.
        before = tokens[max(place - self._most, 0) : max(place - self._least + 1, 0)][::-1]
        runs = self._runs[: len(before)]
        runs += 1
        runs *= before == tokens[place]


def watch_repetition(wanted: RepetitionDetection | None, max_tokens: int) -> RepetitionWatch | None:
    """A watch for what a request asks, or None where nothing could ever be found."""
    return RepetitionWatch(wanted, max_tokens) if wanted is not None and wanted.is_active else None
