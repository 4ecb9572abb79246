"""Causal attention with grouped queries over the paged KV cache, planned once a step and run once a layer.

Every step is split into pieces of work: groups of single tokens whose contexts are about
equally long, as batched products of [queries of a KV head, context]; and longer chunks of one
request, in tiles, through torch's fused attention (Dao et al. 2022, arXiv 2205.14135). Both
first copy the blocks of a context together. Keys and values are never repeated for the query
heads that share them (Ainslie et al. 2023, arXiv 2305.13245).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import torch
import torch.nn.functional as F

from .model_config import ModelConfig
from .paged_kv import PagedKV
from .step_batch import StepBatch

TILE = 128  # queries at once: the scores of a tile stay in the cache, and most of what is masked is left out
GROUP_COST = 12  # a group more costs about as much time as copying and multiplying this many blocks


class Workspace:
    """Memory for copied contexts, kept from step to step; the largest need decides."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._memory = torch.empty(0, dtype=dtype)

    def take(self, rows: int, width: int) -> torch.Tensor:
        """Uninitialized [rows, width]; the next call gives the same memory."""
        if self._memory.numel() < rows * width:
            self._memory = torch.empty(rows * width, dtype=self._memory.dtype)
        return self._memory[: rows * width].view(rows, width)


class Attention:
    """The attention of one step.

    Args:
        workspace: shared by all steps.
    """

    def __init__(self, config: ModelConfig, kv: PagedKV, batch: StepBatch, workspace: Workspace) -> None:
        self._kv = kv
        self._slots = kv.slots(batch.blocks, batch.offsets)
        self._q_heads = config.num_heads
        singles = int((batch.lengths == 1).sum())
        self._work: list[_Group | _Chunk] = [
            _Group(config, kv, batch, first, last, workspace) for first, last in _groups(batch, singles)
        ]
        start = singles
        for i in range(singles, len(batch.lengths)):
            self._work.append(_Chunk(config, kv, batch, i, start, workspace))
            start += int(batch.lengths[i])

    def run(self, layer: int, heads: torch.Tensor) -> torch.Tensor:
        """Store this layer's keys and values, then attend.

        All tokens are stored before any is read: a request may share a block that another one
        fills in this same step.

        Args:
            heads: [tokens, query heads + 2 * kv_heads, head_dim], rotated.

        Returns:
            [tokens, query heads * head_dim].
        """
        queries = heads[:, : self._q_heads]
        self._kv.write(layer, self._slots, heads[:, self._q_heads :])
        out = torch.empty(queries.shape, dtype=heads.dtype)
        for work in self._work:
            work.run(layer, queries, out)
        return out.flatten(1)


def _groups(batch: StepBatch, count: int) -> Iterator[tuple[int, int]]:
    """Split the first ``count`` requests, longest first, where padding costs more than another group."""
    first, padding = 0, 0
    size = batch.block_size
    blocks = (-(-batch.ends[:count] // size)).tolist()
    for i in range(count):
        padding += blocks[first] - blocks[i]
        if padding > GROUP_COST:
            yield first, i
            first, padding = i, 0
    if count:
        yield first, count


class _Group:
    """Requests ``first`` to ``last`` of the batch, with one token each."""

    def __init__(
        self, config: ModelConfig, kv: PagedKV, batch: StepBatch, first: int, last: int, workspace: Workspace
    ) -> None:
        self._kv, self._span = kv, slice(first, last)
        ends = batch.ends[first:last]
        self._longest = int(ends.max())
        blocks = -(-self._longest // kv.block_size)
        self._keys, self._values = kv.pieces(batch.tables[first:last, :blocks])
        self._copy = workspace.take(len(self._keys), kv.block_size * kv.head_dim)
        self._context = self._copy.view(-1, blocks * kv.block_size, kv.head_dim)[:, : self._longest]
        self._queries = (-1, config.num_heads // kv.kv_heads, kv.head_dim)  # [requests * kv heads, queries, head_dim]
        self._scale = kv.head_dim**-0.5
        self._mask = None if ends.min() == self._longest else self._hide_behind(torch.from_numpy(ends))

    def _hide_behind(self, ends: torch.Tensor) -> torch.Tensor:
        """What to add to the scores, [requests * kv heads, 1, context]."""
        hidden = torch.arange(self._longest) >= ends.unsqueeze(1)
        mask = torch.zeros(hidden.shape, dtype=self._copy.dtype).masked_fill_(hidden, -torch.inf)
        return mask.repeat_interleave(self._kv.kv_heads, 0).unsqueeze(1)

    def run(self, layer: int, queries: torch.Tensor, out: torch.Tensor) -> None:
        q = (queries[self._span] * self._scale).view(self._queries)
        self._kv.read(layer, self._keys, self._copy)
        scores = torch.bmm(q, self._context.transpose(1, 2))
        if self._mask is not None:
            scores.add_(self._mask)
        shares = torch.softmax(scores, -1)
        # Into the same memory: it is still in the processor's cache.
        self._kv.read(layer, self._values, self._copy)
        torch.bmm(shares, self._context, out=out[self._span].view(self._queries))


class _Chunk:
    """Several tokens of request ``i`` of the batch, from token ``start`` of the batch on."""

    def __init__(
        self, config: ModelConfig, kv: PagedKV, batch: StepBatch, i: int, start: int, workspace: Workspace
    ) -> None:
        self._kv, self._start = kv, start
        length, end = int(batch.lengths[i]), int(batch.ends[i])
        self._grouped = (kv.kv_heads, config.num_heads // kv.kv_heads)
        blocks = -(-end // kv.block_size)
        self._keys, self._values = kv.pieces(batch.tables[i : i + 1, :blocks])
        half = len(self._keys)
        copies = workspace.take(2 * half, kv.block_size * kv.head_dim)
        self._copies = copies[:half], copies[half:]
        self._tiles = [
            (slice(at, at + TILE), _causal(min(TILE, length - at), end - length + at)) for at in range(0, length, TILE)
        ]
        self._length = length

    def run(self, layer: int, queries: torch.Tensor, out: torch.Tensor) -> None:
        ...
