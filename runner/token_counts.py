"""How often the tokens of prompt and output have come, for the rows that pay a penalty for them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..scheduler.plan import IntArray


class Counted(NamedTuple):
    """The distinct tokens of some rows, one after another."""

    owners: IntArray  # int64 [entries], indices into the rows asked for
    token_ids: IntArray  # int64 [entries]
    generated: IntArray  # int64 [entries], 0 for a token of the prompt alone


class TokenCounts:
    """Counts of a step cost as much as the tokens differ, and not as much as there are.

    Memory is taken when the first row asks, and touched where tokens are.

    Args:
        max_tokens: most tokens of a row.
        vocab_size: tokens from here on are never sampled and not counted.
    """

    def __init__(self, rows: int, max_tokens: int, vocab_size: int) -> None:
        self._rows, self._max_tokens, self._vocab_size = rows, max_tokens, vocab_size
        self._marks: NDArray[np.int32] = np.zeros((0, 0), np.int32)  # [rows, vocabulary], 0: absent, else 1 + generated
        self._distinct: NDArray[np.int32] = np.zeros((0, 0), np.int32)  # [rows, tokens], those marked
        self._num_distinct = np.zeros(rows, np.int64)
        self._tracked = np.zeros(rows, np.bool_)

    def fill(self, row: int, prompt: IntArray, outputs: IntArray) -> None:
        """Begin to count for a row that has these tokens already."""
        if not len(self._marks):
            self._marks = np.zeros((self._rows, self._vocab_size), np.int32)
            self._distinct = np.zeros((self._rows, self._max_tokens), np.int32)
        self.clear(row)
        prompt, outputs = prompt[prompt < self._vocab_size], outputs[outputs < self._vocab_size]
        marks = self._marks[row]
        marks[prompt] = 1
        marks[outputs] = 1
        np.add.at(marks, outputs, 1)
        distinct = np.unique(np.concatenate([prompt, outputs]))
        self._distinct[row, : len(distinct)] = distinct
        self._num_distinct[row] = len(distinct)
        self._tracked[row] = True

    def clear(self, row: int) -> None:
        """Count for this row no more."""
        if self._tracked[row]:
            self._marks[row, self._distinct[row, : self._num_distinct[row]]] = 0
            self._num_distinct[row] = 0
            self._tracked[row] = False

    def append(self, rows: IntArray, token_ids: IntArray) -> None:
        """One more token of each of these rows was generated."""
        tracked = self._tracked[rows]
        if not tracked.any():
            return
        rows, token_ids = rows[tracked], token_ids[tracked]
        new = self._marks[rows, token_ids] == 0
        fresh = rows[new]
        self._distinct[fresh, self._num_distinct[fresh]] = token_ids[new]
        self._num_distinct[fresh] += 1
        self._marks[rows, token_ids] += 1 + new

    def of(self, rows: IntArray) -> Counted:
        """The counts of rows that are counted for."""
        counts = self._num_distinct[rows]
        owners = np.repeat(np.arange(len(rows)), counts)
        places = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
        token_ids = self._distinct[rows[owners], places].astype(np.int64)
        generated = self._marks[rows[owners], token_ids].astype(np.int64) - 1
        return Counted(owners, token_ids, generated)
