"""Causal attention with grouped queries over the paged KV cache, planned once a step and run once a layer.

A step is split into pieces of work: groups of single tokens whose contexts are about equally
long, as batched products of [queries of a KV head, context]; and longer chunks of one request,
in tiles, through torch's fused attention (Dao et al. 2022, arXiv 2205.14135). Both first copy
the blocks of a context together. Keys and values are never repeated for the query heads that
share them (Ainslie et al. 2023, arXiv 2305.13245).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn import functional

from .paged_kv import PagedKV
from .step_batch import StepBatch

TILE = 128  # queries at once: the scores of a tile stay in the cache, and most of what is masked is left out
GROUP_COST = 12  # a group more takes about as long as copying and multiplying this many blocks


class Workspace:
    """Memory for copied contexts, kept from step to step; the largest need decides."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._memory = torch.empty(0, dtype=dtype)

    def take(self, rows: int, width: int) -> torch.Tensor:
        """Uninitialized [rows, width]; the next call may give the same memory."""
        if self._memory.numel() < rows * width:
            self._memory = torch.empty(rows * width, dtype=self.dtype)
        return self._memory[: rows * width].view(rows, width)


class Attention:
    """The attention of one step.

    Args:
        q_heads: query heads; each KV head serves an equal share of them, in order.
        workspace: shared by all steps.
    """

    def __init__(self, q_heads: int, kv: PagedKV, batch: StepBatch, workspace: Workspace) -> None:
        self._q_heads, self._kv = q_heads, kv
        self._slots = kv.slots(batch.blocks, batch.offsets)
        shared = _Shared(kv, q_heads // kv.kv_heads, workspace)
        self._work: list[_Group | _Chunk] = [
            _Group(shared, batch.tables[span], torch.from_numpy(batch.ends[span]), span)
            for span in _groups(batch.ends[: batch.num_single].tolist(), kv.block_size)
        ]
        start = batch.num_single
        for i in range(batch.num_single, len(batch.lengths)):
            length, end = int(batch.lengths[i]), int(batch.ends[i])
            self._work.append(_Chunk(shared, batch.tables[i], start, length, end))
            start += length

    def run(self, layer: int, heads: torch.Tensor) -> torch.Tensor:
        """Store this layer's keys and values, then attend.

        All tokens are stored before any is read: a request may share a block that another one
        fills in this same step.

        Args:
            heads: [tokens, query heads + 2 * kv_heads, head_dim], rotated.

        Returns:
            [tokens, query heads * head_dim].
        """
        queries, stored = heads[:, : self._q_heads], heads[:, self._q_heads :]
        self._kv.write(layer, self._slots, stored)
        out = torch.empty(queries.shape, dtype=heads.dtype)
        for work in self._work:
            work.run(layer, queries, stored, out)
        return out.flatten(1)


def _groups(ends: list[int], block_size: int) -> Iterator[slice]:
    """Split requests, longest first, where their padding costs more than another group."""
    blocks = [-(-end // block_size) for end in ends]
    first = padding = 0
    for i in range(len(blocks)):
        padding += blocks[first] - blocks[i]
        if padding > GROUP_COST:
            yield slice(first, i)
            first, padding = i, 0
    if blocks:
        yield slice(first, len(blocks))


class _Shared:
    """What all pieces of work of a step share."""

    def __init__(self, kv: PagedKV, group: int, workspace: Workspace) -> None:
        self.kv, self.group, self.workspace = kv, group, workspace
        self.dtype = workspace.dtype
        self._masks: dict[tuple[int, int], torch.Tensor] = {}

    def causal(self, queries: int, before: int) -> torch.Tensor:
        """What to add to scores of queries with ``before`` tokens before them: [queries, before + queries]."""
        if (queries, before) not in self._masks:
            hidden = torch.full((queries, before + queries), -torch.inf, dtype=self.dtype)
            self._masks[queries, before] = hidden.triu_(before + 1)
        return self._masks[queries, before]


class _Group:
    """Requests with one token each, which is the last of their ``ends`` tokens (int64 [requests])."""

    def __init__(self, shared: _Shared, tables: torch.Tensor, ends: torch.Tensor, span: slice) -> None:
        kv = self._kv = shared.kv
        self._span = span
        self._longest = int(ends.max())
        blocks = -(-self._longest // kv.block_size)
        self._keys, self._values = kv.pieces(tables[:, :blocks])
        self._copy = shared.workspace.take(len(self._keys), kv.block_size * kv.head_dim)
        # [requests * kv heads, context, head_dim] and [requests * kv heads, queries of a KV head, head_dim]
        self._context = self._copy.view(-1, blocks * kv.block_size, kv.head_dim)[:, : self._longest]
        self._grouped = (-1, shared.group, kv.head_dim)
        self._scale = kv.head_dim**-0.5
        self._mask = None if int(ends.min()) == self._longest else self._hide_behind(ends)

    def _hide_behind(self, ends: torch.Tensor) -> torch.Tensor:
        """What to add to the scores: [requests * kv heads, 1, context]."""
        hidden = torch.arange(self._longest) >= ends.unsqueeze(1)
        mask = torch.zeros(hidden.shape, dtype=self._copy.dtype).masked_fill_(hidden, -torch.inf)
        return mask.repeat_interleave(self._kv.kv_heads, 0).unsqueeze(1)

    def run(self, layer: int, queries: torch.Tensor, stored: torch.Tensor, out: torch.Tensor) -> None:  # noqa: ARG002
        """Fill the requests' part of ``out``, [tokens, query heads, head_dim]."""
        self._kv.read(layer, self._keys, self._copy)
        scaled = (queries[self._span] * self._scale).view(self._grouped)
        scores = torch.bmm(scaled, self._context.transpose(1, 2))
        if self._mask is not None:
            scores.add_(self._mask)
        shares = torch.softmax(scores, -1)
        # Into the same memory: it is still in the processor's cache.
        self._kv.read(layer, self._values, self._copy)
        torch.bmm(shares, self._context, out=out[self._span].view(self._grouped))


class _Chunk:
    """``length`` tokens of one request, the last of its ``end``, from token ``start`` of the batch on."""

    def __init__(self, shared: _Shared, table: torch.Tensor, start: int, length: int, end: int) -> None:
        kv = self._kv = shared.kv
        self._span = slice(start, start + length)
        self._group = shared.group
        before = end - length
        self._tiles = [
            (slice(at, min(at + TILE, length)), shared.causal(min(TILE, length - at), before + at))
            for at in range(0, length, TILE)
        ]
        self._pieces = None
        if before:  # else the context is the chunk itself, and no copy is needed
            self._pieces = kv.pieces(table[None, : -(-end // kv.block_size)])
            rows = len(self._pieces[0])
            copy = shared.workspace.take(2 * rows, kv.block_size * kv.head_dim)
            self._copies = copy[:rows], copy[rows:]

    def _context(self, layer: int, stored: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values, each [kv heads, context, head_dim]."""
        heads = self._kv.kv_heads
        if self._pieces is None:
            both = stored[self._span].transpose(0, 1)
            return both[:heads], both[heads:]
        for pieces, copy in zip(self._pieces, self._copies, strict=True):
            self._kv.read(layer, pieces, copy)
        keys, values = (copy.view(heads, -1, self._kv.head_dim) for copy in self._copies)
        return keys, values

    def run(self, layer: int, queries: torch.Tensor, stored: torch.Tensor, out: torch.Tensor) -> None:
        """Fill the chunk's part of ``out``, [tokens, query heads, head_dim]."""
        # [kv heads, queries of a KV head, tokens, head_dim]
        keys, values = (x.unsqueeze(1).expand(-1, self._group, -1, -1) for x in self._context(layer, stored))
        grouped = queries[self._span].unflatten(1, (-1, self._group)).permute(1, 2, 0, 3)
        place = out[self._span].unflatten(1, (-1, self._group)).permute(1, 2, 0, 3)
        for tile, mask in self._tiles:
            seen = mask.shape[1]
            place[:, :, tile] = functional.scaled_dot_product_attention(
                grouped[:, :, tile], keys[:, :, :seen], values[:, :, :seen], attn_mask=mask
            )
