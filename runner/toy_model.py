"""A model small enough to check everything: an integer function of what the KV slots hold.

Each slot of its KV cache remembers which token, at which position and under which adapter was
written there. The next token of a request is computed from the slots that its block table
names, read when the step executes. So one slot that is wrong, stale, missing or foreign
changes this token and all that follow.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
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


def _not_among(token: int, forbidden: Collection[int], vocab_size: int) -> int:
    """The token, or the next one in turn that is allowed; the token itself if none is."""
    turn = ((token + i) % vocab_size for i in range(vocab_size))
    return next((other for other in turn if other not in forbidden), token)


def toy_tokens(
    prompt: Sequence[int],
    count: int,
    vocab_size: int,
    *,
    adapter: str | None = None,
    eos: Sequence[int] = (),
    min_tokens: int = 0,
) -> list[int]:
    """What the model continues a prompt with, by definition: no cache, no batch, no steps.

    Ends after the first token of ``eos``, or after ``count`` tokens; the first ``min_tokens``
    are none of ``eos``.
    """
    tokens = list(prompt)
    word = _adapter_word(adapter)
    values = _slot_values(np.array(tokens), np.arange(len(tokens)), np.full(len(tokens), word))
    total = (values * _weights(np.arange(len(tokens)))).sum(keepdims=True)
    while len(tokens) < len(prompt) + count:
        at = np.array([len(tokens)])
        early = len(tokens) - len(prompt) < min_tokens
        tokens.append(_not_among(int(_choose(total, vocab_size)[0]), eos if early else (), vocab_size))
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
        eos_token_ids: tokens that are not chosen before a request's minimum.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        num_kv_blocks: int,
        block_size: int,
        max_num_running_reqs: int,
        max_model_len: int,
        eos_token_ids: tuple[int, ...] = (),
    ) -> None:
        rows, blocks = max_num_running_reqs, -(-(max_model_len + 1) // block_size)
        self.vocab_size, self.block_size = vocab_size, block_size
        self._slots: Words = np.zeros((num_kv_blocks + 1) * block_size, np.uint64)
        self._tokens = np.zeros((rows, max_model_len + 1), np.int64)
        self._tables = np.zeros((rows, blocks), np.int64)
        self._table_lens = np.zeros(rows, np.int64)
        self._adapters: Words = np.zeros(rows, np.uint64)
        self._min_tokens = np.zeros(rows, np.int64)
        self._end_ids: list[set[int]] = [set()] * rows
        self._eos_token_ids = eos_token_ids

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
        self._forbid_early_ends(tokens, rows, plan.num_outputs[plan.samples])
        self._tokens[rows, ends] = tokens
        return tokens

    def _enter(self, new: NewRequestData) -> None:
        self._tokens[new.row, : len(new.token_ids)] = new.token_ids
        self._table_lens[new.row] = 0
        self._adapters[new.row] = _adapter_word(new.adapter)
        params = new.sampling_params
        self._min_tokens[new.row] = params.min_tokens
        self._end_ids[new.row] = {*(params.stop_token_ids or ()), *(() if params.ignore_eos else self._eos_token_ids)}
        self._extend_table(new.row, new.block_ids)

    def _forbid_early_ends(self, tokens: IntArray, rows: IntArray, outputs: IntArray) -> None:
        (early,) = np.nonzero(outputs < self._min_tokens[rows])
        for i in early.tolist():
            tokens[i] = _not_among(int(tokens[i]), self._end_ids[rows[i]], self.vocab_size)

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
