"""A model small enough to check everything: an integer function of what the KV slots hold.

Each slot of its KV cache remembers which token, at which position and under which adapter was
written there. The next token of a request is computed from the slots that its block table
names, read when the step executes. So one slot that is wrong, stale, missing or foreign
changes this token and all that follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from ..scheduler.plan import IntArray, NewRequestData, SchedulerOutput

Words = NDArray[np.uint64]

_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)  # the finalizer of SplitMix64 (Steele et al., 2014)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_POSITION = np.uint64(0x9E3779B97F4A7C15)
_ONE, _30, _27, _31, _32 = (np.uint64(n) for n in (1, 30, 27, 31, 32))


def _mix(words: Words) -> Words:
    words = (words ^ (words >> _30)) * _MIX_1
    words = (words ^ (words >> _27)) * _MIX_2
    return words ^ (words >> _31)


def _adapter_word(adapter: str | None) -> np.uint64:
    return np.uint64(0 if adapter is None else int.from_bytes(sha256(adapter.encode()).digest()[:8], "little"))


def _slot_values(tokens: IntArray, positions: IntArray, adapters: Words) -> Words:
    """What a slot holds: a word of its token, position and adapter."""
    return _mix((tokens.astype(np.uint64) << _32) + positions.astype(np.uint64) * _POSITION + adapters)


def _weights(indexes: IntArray) -> Words:
    """The factor of the i-th slot of a table: odd, so that no value is lost."""
    return (indexes.astype(np.uint64) << _ONE) | _ONE


def _choose(sums: Words, vocab_size: int) -> IntArray:
    return (_mix(sums) % np.uint64(vocab_size)).astype(np.int64)


def toy_tokens(
    prompt: Sequence[int], count: int, vocab_size: int, *, adapter: str | None = None, eos: Sequence[int] = ()
) -> list[int]:
    """What the model continues a prompt with, by definition: no cache, no batch, no steps.

    Ends after the first token of ``eos``, or after ``count`` tokens.
    """
    tokens = list(prompt)
    word = _adapter_word(adapter)
    values = _slot_values(np.array(tokens), np.arange(len(tokens)), np.full(len(tokens), word))
    total = (values * _weights(np.arange(len(tokens)))).sum(keepdims=True)
    while len(tokens) < len(prompt) + count:
        at = np.array([len(tokens)])
        tokens.append(int(_choose(total, vocab_size)[0]))
        if tokens[-1] in eos:
            break
        total = total + _slot_values(np.array(tokens[-1:]), at, np.full(1, word)) * _weights(at)
    return tokens[len(prompt) :]


class ToyModel:
    """Executes plans over real block tables.

    Args:
        vocab_size: tokens are 0..vocab_size-1.
        num_kv_blocks, block_size: size of the KV cache; block 0 is the null block.
        max_num_running_reqs, max_model_len: size of the tables.
    """

    def __init__(
        self, *, vocab_size: int, num_kv_blocks: int, block_size: int, max_num_running_reqs: int, max_model_len: int
    ) -> None:
        rows, blocks = max_num_running_reqs, -(-(max_model_len + 1) // block_size)
        self.vocab_size, self.block_size = vocab_size, block_size
        self._slots: Words = np.zeros((num_kv_blocks + 1) * block_size, np.uint64)
        self._tokens = np.zeros((rows, max_model_len + 1), np.int64)
        self._tables = np.zeros((rows, blocks), np.int64)
        self._table_lens = np.zeros(rows, np.int64)
        self._adapters: Words = np.zeros(rows, np.uint64)

    def execute(self, plan: SchedulerOutput) -> IntArray:
        """Compute one step; returns a token for each entry that samples, in plan order."""
        for new in plan.scheduled_new_reqs:
            self._enter(new)
        for row, blocks in plan.grown.items():
            self._extend_table(row, blocks)
        self._write(plan)  # all writes come before any read: requests may share blocks in one step
        ends = plan.num_computed + plan.num_tokens
        rows, ends = plan.rows[plan.samples], ends[plan.samples]
        tokens = _choose(self._sums(rows, ends), self.vocab_size)
        self._tokens[rows, ends] = tokens
        return tokens

    def _enter(self, new: NewRequestData) -> None:
        self._tokens[new.row, : len(new.token_ids)] = new.token_ids
        self._table_lens[new.row] = 0
        self._adapters[new.row] = _adapter_word(new.adapter)
        self._extend_table(new.row, new.block_ids)

    def _extend_table(self, row: int, blocks: list[int]) -> None:
        length = int(self._table_lens[row])
        self._tables[row, length : length + len(blocks)] = blocks
        self._table_lens[row] = length + len(blocks)

    def _write(self, plan: SchedulerOutput) -> None:
        rows, positions = _flat(plan.rows, plan.num_computed, plan.num_tokens)
        tokens = self._tokens[rows, positions]
        self._slots[self._slot(rows, positions)] = _slot_values(tokens, positions, self._adapters[rows])

    def _sums(self, rows: IntArray, lengths: IntArray) -> Words:
        if not len(rows):
            return np.zeros(0, np.uint64)
        flat_rows, indexes = _flat(rows, np.zeros_like(lengths), lengths)
        values = self._slots[self._slot(flat_rows, indexes)] * _weights(indexes)
        return np.add.reduceat(values, np.cumsum(lengths) - lengths)

    def _slot(self, rows: IntArray, positions: IntArray) -> IntArray:
        return self._tables[rows, positions // self.block_size] * self.block_size + positions % self.block_size


def _flat(rows: IntArray, starts: IntArray, counts: IntArray) -> tuple[IntArray, IntArray]:
    """One entry for each of ``counts[i]`` positions from ``starts[i]`` on, for each row."""
    before = np.cumsum(counts) - counts
    return np.repeat(rows, counts), np.arange(int(counts.sum())) + np.repeat(starts - before, counts)
