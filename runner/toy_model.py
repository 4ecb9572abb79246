"""A model small enough to check everything: an integer function of what the KV slots hold.

Each slot of its KV cache remembers which token, at which position and under which adapter was
written there. The next token of a request is computed from the slots that its block table
names, read when the step executes. So one slot that is wrong, stale, missing or foreign
changes this token and all that follow.

With several groups of layers a token is in a slot of each, and the next one depends on all: on
every slot of a group that sees everything, and on those in sight in a group with a window. What
a group with a window stores depends, as in a real model, on what its token saw itself: on the
farthest slot that was in sight then.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from hashlib import sha256
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..scheduler.kv_groups import ONE_GROUP, KVGroup
from ..scheduler.plan import BlockIds, GrammarOutput, IntArray, NewRequestData, SchedulerOutput
from .mask_words import allowed_tokens, masks_of_samples

_Words = NDArray[np.uint64]

_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)  # the finalizer of SplitMix64 (Steele et al., 2014)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_POSITION = np.uint64(0x9E3779B97F4A7C15)
_GROUP = 0xD1B54A32D192ED03
_ONE, _30, _27, _31, _32 = (np.uint64(n) for n in (1, 30, 27, 31, 32))


def _mix(words: _Words) -> _Words:
    words = (words ^ (words >> _30)) * _MIX_1
    words = (words ^ (words >> _27)) * _MIX_2
    return words ^ (words >> _31)


def _adapter_word(adapter: str | None) -> np.uint64:
    return np.uint64(0 if adapter is None else int.from_bytes(sha256(adapter.encode()).digest()[:8], "little"))


def _slot_values(tokens: IntArray, positions: IntArray, owners: _Words) -> _Words:
    """What a slot holds: a word of its token, its position, and its adapter and group ("owner")."""
    return _mix((tokens.astype(np.uint64) << _32) + positions.astype(np.uint64) * _POSITION + owners)


def _with_sight(values: _Words, farthest: _Words) -> _Words:
    """What a slot of a group with a window holds, from its own word and that of the farthest slot in sight."""
    return _mix(values + (farthest << _ONE))


def _owners(adapters: _Words, group: int) -> _Words:
    return adapters + np.uint64(group * _GROUP % 2**64)


def _first_in_sight(positions: IntArray, window: int | None) -> IntArray:
    return np.zeros_like(positions) if window is None else np.maximum(positions - (window - 1), 0)


def _weights(indexes: IntArray) -> _Words:
    """The factor of the i-th slot of a table: odd, so that no value is lost."""
    return (indexes.astype(np.uint64) << _ONE) | _ONE


def _choose(sums: _Words, vocab_size: int) -> IntArray:
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
    groups: Sequence[KVGroup] = ONE_GROUP,
    min_tokens: int = 0,
) -> list[int]:
    """What the model continues a prompt with, by definition: no cache, no batch, no steps.

    Ends after the first token of ``eos``, or after ``count`` tokens; the first ``min_tokens``
    are none of ``eos``.
    """
    texts = [_GroupText(group.window, _owners(np.full(1, _adapter_word(adapter)), i)) for i, group in enumerate(groups)]
    tokens, new = list(prompt), list(prompt)
    while len(tokens) < len(prompt) + count:
        total = sum((text.extend(new) for text in texts), np.zeros(1, np.uint64))
        early = len(tokens) - len(prompt) < min_tokens
        new = [_not_among(int(_choose(total, vocab_size)[0]), eos if early else (), vocab_size)]
        tokens += new
        if tokens[-1] in eos:
            break
    return tokens[len(prompt) :]


class _GroupText:
    """A whole text in one group: the definition, without blocks."""

    def __init__(self, window: int | None, owner: _Words) -> None:
        self._window, self._owner = window, owner
        self._own: _Words = np.zeros(0, np.uint64)
        self._terms: _Words = np.zeros(0, np.uint64)
        self._total: _Words = np.zeros(1, np.uint64)  # of all terms

    def extend(self, new: list[int]) -> _Words:
        """Append tokens; returns what the text's end sees, [1]."""
        positions = np.arange(len(self._own), len(self._own) + len(new))
        values = _slot_values(np.array(new), positions, self._owner)
        self._own = np.append(self._own, values)
        if self._window is not None:
            values = _with_sight(values, self._own[_first_in_sight(positions, self._window)])
        terms = values * _weights(positions)
        self._total = self._total + terms.sum(keepdims=True)
        if self._window is None:
            return self._total
        self._terms = np.append(self._terms, terms)
        return self._terms[-self._window :].sum(keepdims=True)


class ToyModel:
    """Executes plans over real block tables.

    Args:
        vocab_size: tokens are 0..vocab_size-1.
        num_kv_blocks, block_size: size of the KV cache; block 0 is the null block.
        max_num_running_reqs, max_model_len: size of the tables.
        groups: of layers, each with block tables of its own over the same blocks.
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
        groups: tuple[KVGroup, ...] = ONE_GROUP,
        eos_token_ids: tuple[int, ...] = (),
    ) -> None:
        rows, blocks = max_num_running_reqs, -(-(max_model_len + 1) // block_size)
        self.vocab_size, self.block_size = vocab_size, block_size
        slots = (num_kv_blocks + 1) * block_size
        self._slots: _Words = np.zeros(slots, np.uint64)
        self._plain: _Words = np.zeros(num_kv_blocks + 1, np.uint64)  # of each block: the sum of its slots
        self._weighted: _Words = np.zeros(num_kv_blocks + 1, np.uint64)  # with their factors in the first block
        # What slots of groups with a window hold besides: the words of their tokens alone.
        self._own: _Words = np.zeros(slots if any(group.window for group in groups) else 0, np.uint64)
        self._offsets = np.arange(block_size)
        self._tokens = np.zeros((rows, max_model_len + 1), np.int64)
        self._groups = [
            _Group(i, group.window, np.zeros((rows, blocks), np.int64), np.zeros(rows, np.int64))
            for i, group in enumerate(groups)
        ]
        self._adapters: _Words = np.zeros(rows, np.uint64)
        self._write_from = np.zeros(rows, np.int64)
        self._min_tokens = np.zeros(rows, np.int64)
        self._end_ids: list[set[int]] = [set()] * rows
        self._eos_token_ids = eos_token_ids

    def execute(self, plan: SchedulerOutput, masks: GrammarOutput | None = None) -> IntArray:
        """Compute one step; returns a token for each entry that samples, in plan order.

        Where a mask forbids the token, it is the next one in turn that is allowed.
        """
        for new in plan.scheduled_new_reqs:
            self._enter(new)
        for row, blocks in plan.grown.items():
            self._extend_tables(row, blocks, plan.grown_more.get(row, []))
        for group in self._groups:  # all writes come before any read: requests may share blocks in one step
            self._write(plan, group)
        ends = plan.num_computed + plan.num_tokens
        rows, ends = plan.rows[plan.samples], ends[plan.samples]
        total: _Words = np.zeros(len(rows), np.uint64)
        for group in self._groups:
            total += self._sums(rows, ends, group)
        tokens = _choose(total, self.vocab_size)
        self._forbid_early_ends(tokens, rows, plan.num_outputs[plan.samples])
        if masks is not None:
            self._obey(tokens, masks, plan)
        self._tokens[rows, ends] = tokens
        for row, changes in plan.replaced.items():
            for group, place, block in changes:
                self._groups[group].tables[row, place] = block
        return tokens

    def _enter(self, new: NewRequestData) -> None:
        self._tokens[new.row, : len(new.token_ids)] = new.token_ids
        for group in self._groups:
            group.lens[new.row] = 0
        self._adapters[new.row] = _adapter_word(new.adapter)
        self._write_from[new.row] = new.write_from
        params = new.sampling_params
        self._min_tokens[new.row] = params.min_tokens
        self._end_ids[new.row] = {*(params.stop_token_ids or ()), *(() if params.ignore_eos else self._eos_token_ids)}
        self._extend_tables(new.row, new.block_ids, new.more_block_ids)

    def _forbid_early_ends(self, tokens: IntArray, rows: IntArray, outputs: IntArray) -> None:
        (early,) = np.nonzero(outputs < self._min_tokens[rows])
        for i in early.tolist():
            tokens[i] = _not_among(int(tokens[i]), self._end_ids[rows[i]], self.vocab_size)

    def _obey(self, tokens: IntArray, masks: GrammarOutput, plan: SchedulerOutput) -> None:
        for sample, words in masks_of_samples(masks, plan):
            allowed = allowed_tokens(words, self.vocab_size)
            tokens[sample] = allowed[np.searchsorted(allowed, tokens[sample]) % len(allowed)]

    def _extend_tables(self, row: int, blocks: BlockIds, more: Sequence[BlockIds]) -> None:
        for group, joining in zip(self._groups, (blocks, *more), strict=True):
            length = int(group.lens[row])
            group.tables[row, length : length + len(joining)] = joining
            group.lens[row] = length + len(joining)

    def _write(self, plan: SchedulerOutput, group: _Group) -> None:
        rows, positions = _flat(plan.rows, plan.num_computed, plan.num_tokens)
        values = _slot_values(self._tokens[rows, positions], positions, _owners(self._adapters[rows], group.number))
        written = positions >= self._write_from[rows]  # the others' go to the null block, which nobody reads
        slots = self._slot(group, rows, positions) * written
        if group.window is not None:
            self._own[slots] = values
            farthest = _first_in_sight(positions, group.window)
            values = _with_sight(values, self._own[self._slot(group, rows, farthest)])
        self._slots[slots] = values
        blocks = slots // self.block_size
        self._sum_up(blocks[np.diff(blocks, prepend=-1) != 0])  # neighbours in a prompt share a block

    def _sums(self, rows: IntArray, ends: IntArray, group: _Group) -> _Words:
        if not len(rows):
            return np.zeros(0, np.uint64)
        firsts = _first_in_sight(ends - 1, group.window)
        first_blocks, last_blocks = firsts // self.block_size, (ends - 1) // self.block_size
        counts = last_blocks - first_blocks + 1
        flat_rows, numbers = _flat(rows, first_blocks, counts)
        blocks = group.tables[flat_rows, numbers]
        terms = self._plain[blocks] * (2 * self.block_size * numbers).astype(np.uint64) + self._weighted[blocks]
        sums = np.add.reduceat(terms, np.cumsum(counts) - counts)
        # Whole blocks were summed; what their ends hold that is out of sight is taken off again.
        behind = self._terms(group, rows, last_blocks)
        sums -= (behind * (self._offsets >= (ends - last_blocks * self.block_size)[:, None])).sum(axis=1)
        if group.window is not None:
            before = self._terms(group, rows, first_blocks)
            sums -= (before * (self._offsets < (firsts - first_blocks * self.block_size)[:, None])).sum(axis=1)
        return sums

    def _sum_up(self, blocks: IntArray) -> None:
        """Keep the sums of blocks in step with their slots: a long text is read a block at a time."""
        values = self._slots.reshape(-1, self.block_size)[blocks]
        self._plain[blocks] = values.sum(axis=1)
        self._weighted[blocks] = (values * _weights(self._offsets)).sum(axis=1)

    def _terms(self, group: _Group, rows: IntArray, numbers: IntArray) -> _Words:
        """All slots of the ``numbers[i]``-th block of row i's table, each with its factor: [n, block size]."""
        terms = self._slots.reshape(-1, self.block_size)[group.tables[rows, numbers]]
        terms *= _weights(numbers[:, None] * self.block_size + self._offsets)
        return terms

    def _slot(self, group: _Group, rows: IntArray, positions: IntArray) -> IntArray:
        return group.tables[rows, positions // self.block_size] * self.block_size + positions % self.block_size


class _Group(NamedTuple):
    """One group of layers: its number, its window, and a block table and its length for each row."""

    number: int
    window: int | None
    tables: IntArray
    lens: IntArray


def _flat(rows: IntArray, starts: IntArray, counts: IntArray) -> tuple[IntArray, IntArray]:
    """One entry for each of ``counts[i]`` positions from ``starts[i]`` on, for each row."""
    before = np.cumsum(counts) - counts
    return np.repeat(rows, counts), np.arange(int(counts.sum())) + np.repeat(starts - before, counts)
