"""Causal attention with grouped queries over the paged KV cache, planned once a step and run once a layer.

A step is split into pieces of work: groups of single tokens, which read the KV cache in place;
and longer chunks of one request, in tiles, through torch's fused attention (Dao et al. 2022,
arXiv 2205.14135), for which the blocks of the context are copied together. Keys and values are
never repeated for the query heads that share them (Ainslie et al. 2023, arXiv 2305.13245).
Where a layer has a window, only tokens that some query can see are read. All of it is float32.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch.nn import functional

from .model_config import ModelConfig
from .paged_kv import PagedKV
from .step_batch import StepBatch

TILE = 128  # queries at once: the scores of a tile stay in the cache, and most of what is masked is left out
GROUP_COST = 256  # a group more takes about as long as attending to this many tokens


class Workspace:
    """Memory for copied contexts, kept from step to step; the largest need decides."""

    def __init__(self) -> None:
        self._memory = torch.empty(0)
        _accept_beta_notice()

    def take(self, rows: int, width: int) -> torch.Tensor:
        """Uninitialized float32 [rows, width]; the next call may give the same memory."""
        if self._memory.numel() < rows * width:
            self._memory = torch.empty(rows * width)
        return self._memory[: rows * width].view(rows, width)


class Attention:
    """The attention of one step.

    Args:
        workspace: shared by all steps.
    """

    def __init__(self, config: ModelConfig, kv: PagedKV, batch: StepBatch, workspace: Workspace) -> None:
        self._q_heads, self._kv = config.num_heads, kv
        shared = _Shared(config, kv, workspace)
        offsets = batch.offsets.unsqueeze(1)
        written = [kv.token_slots(blocks.unsqueeze(1), offsets).squeeze(2) for blocks in batch.blocks]
        work: dict[tuple[int, int | None], list[_Work]] = {}
        self._layers: list[_Layer] = []
        for place, window in zip(kv.layout.places, config.windows, strict=True):
            key = (place.group, window)
            if key not in work:
                work[key] = list(_split(shared, batch, *key))
            self._layers.append(_Layer(place.slot, written[place.group], work[key]))

    def run(self, layer: int, heads: torch.Tensor) -> torch.Tensor:
        """Store this layer's keys and values, then attend.

        All tokens are stored before any is read: a request may share a block that another one
        fills in this same step.

        Args:
            heads: float32 [tokens, query heads + 2 * kv_heads, head_dim], rotated.

        Returns:
            float32 [tokens, query heads * head_dim].
        """
        queries, stored = heads[:, : self._q_heads], heads[:, self._q_heads :]
        slot, written, pieces = self._layers[layer]
        self._kv.write(slot, written, stored)
        out = torch.empty(queries.shape)
        for work in pieces:
            work.run(slot, queries, stored, out)
        return out.flatten(1)


class _Layer(NamedTuple):
    """A layer's place in the KV cache, where this step's tokens go there, and what is to be done."""

    slot: int
    written: torch.Tensor
    work: list[_Work]


def _split(shared: _Shared, batch: StepBatch, group: int, window: int | None) -> Iterator[_Work]:
    """The step's work for layers of a group that see ``window`` tokens."""
    tables = batch.tables[group]
    single = batch.ends[: batch.num_single]
    for span in _groups((single if window is None else single.clip(max=window)).tolist()):
        yield _Group(shared, tables[span], torch.from_numpy(batch.ends[span]), span, window)
    start = batch.num_single
    for i in range(batch.num_single, len(batch.lengths)):
        length, end = int(batch.lengths[i]), int(batch.ends[i])
        yield _Chunk(shared, tables[i], slice(start, start + length), end, window)
        start += length


def _groups(ends: list[int]) -> Iterator[slice]:
    """Split requests, longest first, where their padding costs more than another group."""
    first = padding = 0
    for i, end in enumerate(ends):
        padding += ends[first] - end
        if padding > GROUP_COST:
            yield slice(first, i)
            first, padding = i, 0
    if ends:
        yield slice(first, len(ends))


class _Shared:
    """What all pieces of work of a step share; ``group`` query heads read one KV head."""

    def __init__(self, config: ModelConfig, kv: PagedKV, workspace: Workspace) -> None:
        self.kv, self.group, self.workspace = kv, config.num_heads // kv.kv_heads, workspace
        self.scale = (config.query_pre_attn_scalar or config.head_dim) ** -0.5
        self._masks: dict[tuple[int, int, int | None], torch.Tensor] = {}

    def causal(self, queries: int, before: int, window: int | None) -> torch.Tensor:
        """What to add to scores of queries with ``before`` tokens before them: [queries, before + queries]."""
        key = (queries, before, window)
        if key not in self._masks:
            mask = torch.full((queries, before + queries), -torch.inf).triu_(before + 1)
            if window is not None and before + queries > window:
                mask += torch.full(mask.shape, -torch.inf).tril_(before - window)
            self._masks[key] = mask
        return self._masks[key]


class _Group:
    """Requests with one token each, which is the last of their ``ends`` tokens (int64 [requests]).

    Scores and weighted sums are asked of torch as sparse products, whose indices are slots of
    the KV cache: "these entries of queries times all keys", and "the sum of these rows of the
    values". So nothing is copied, and a row's result does not depend on the batch.
    """

    def __init__(
        self, shared: _Shared, tables: torch.Tensor, ends: torch.Tensor, span: slice, window: int | None
    ) -> None:
        kv = self._kv = shared.kv
        self._span, self._scale = span, shared.scale
        longest = int(ends.max()) if window is None else min(int(ends.max()), window)
        tokens = torch.arange(longest).unsqueeze(0)  # one row for all requests, while all begin at token 0
        if window is not None and window < int(ends.max()):
            tokens = tokens + (ends - window).clamp_(min=0).unsqueeze(1)
        self._mask = None if int(ends.min()) >= longest else self._hide_behind(ends, tokens, shared.group * kv.kv_heads)
        # What is hidden stands for the row's own last token. What a block holds behind it may be NaN, left by a
        # request that failed, and 0 times NaN is NaN.
        tokens = tokens if self._mask is None else torch.minimum(tokens, ends.unsqueeze(1) - 1)
        blocks = tables.gather(1, (tokens // kv.block_size).expand(len(ends), -1))
        slots = kv.token_slots(blocks, (tokens % kv.block_size).expand(len(ends), -1))
        # [requests, kv heads, longest] each; flattened with a row for each query head
        keys, values = (part.repeat_interleave(shared.group, 1).flatten().int() for part in slots.split(kv.kv_heads, 1))
        rows = len(keys) // longest
        self._bounds = torch.arange(0, len(keys) + 1, longest, dtype=torch.int32)
        self._scores = torch.sparse_csr_tensor(
            self._bounds, keys, torch.zeros(len(keys)), size=(rows, len(kv.slots[0])), check_invariants=False
        )
        self._values, self._matrix = values, (rows, longest)

    @staticmethod
    def _hide_behind(ends: torch.Tensor, tokens: torch.Tensor, heads: int) -> torch.Tensor:
        """What to add to the scores: [requests * query heads, longest]."""
        hidden = tokens >= ends.unsqueeze(1)
        mask = torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)
        return mask.repeat_interleave(heads, 0)

    def run(self, layer: int, queries: torch.Tensor, stored: torch.Tensor, out: torch.Tensor) -> None:  # noqa: ARG002
        """Fill the requests' part of ``out``, [tokens, query heads, head_dim]."""
        slots, place = self._kv.slots[layer], out[self._span]
        rows = queries[self._span].reshape(-1, self._kv.head_dim)
        torch.sparse.sampled_addmm(self._scores, rows, slots.t(), beta=0.0, alpha=self._scale, out=self._scores)
        scores = self._scores.values().view(self._matrix)
        if self._mask is not None:
            # Not in place: torch multiplies what was there before by beta, and 0 times infinity is no number.
            scores = scores + self._mask
        shares = torch.softmax(scores, -1).flatten()
        sums = functional.embedding_bag(
            self._values, slots, self._bounds, mode="sum", per_sample_weights=shares, include_last_offset=True
        )
        place.copy_(sums.view_as(place))


class _Chunk:
    """Neighbouring tokens of one request, ``span`` of the batch, the last of its ``end``."""

    def __init__(self, shared: _Shared, table: torch.Tensor, span: slice, end: int, window: int | None) -> None:
        kv = self._kv = shared.kv
        self._span, self._group, self._scale = span, shared.group, shared.scale
        length, size = span.stop - span.start, kv.block_size
        before = end - length
        first = _first_seen(before, window) // size  # the first block that is read
        tiles = [slice(at, min(at + TILE, length)) for at in range(0, length, TILE)]
        self._tiles = [_tile(shared, tile, before, window, first * size) for tile in tiles]
        self._pieces = None
        if before:  # else the context is the chunk itself, and no copy is needed
            self._pieces = kv.table_pieces(table[first : -(-end // size)])
            self._copy = shared.workspace.take(len(self._pieces), size * kv.head_dim)

    def _context(self, layer: int, stored: torch.Tensor) -> torch.Tensor:
        """Keys, then values: [2 * kv heads, context, head_dim]."""
        if self._pieces is None:
            return stored[self._span].transpose(0, 1)
        self._kv.read(layer, self._pieces, self._copy)
        return self._copy.view(stored.shape[1], -1, self._kv.head_dim)

    def run(self, layer: int, queries: torch.Tensor, stored: torch.Tensor, out: torch.Tensor) -> None:
        """Fill the chunk's part of ``out``, [tokens, query heads, head_dim]."""
        # [kv heads, queries of a KV head, tokens, head_dim]
        shared = self._context(layer, stored).unsqueeze(1).expand(-1, self._group, -1, -1)
        keys, values = shared.split(self._kv.kv_heads)
        grouped, place = (x[self._span].unflatten(1, (-1, self._group)).permute(1, 2, 0, 3) for x in (queries, out))
        for tile, seen, mask in self._tiles:
            place[:, :, tile] = functional.scaled_dot_product_attention(
                grouped[:, :, tile], keys[:, :, seen], values[:, :, seen], attn_mask=mask, scale=self._scale
            )


_Work = _Group | _Chunk


class _Tile(NamedTuple):
    """Neighbouring queries of a chunk, and the part of its context that any of them sees."""

    queries: slice
    seen: slice
    mask: torch.Tensor


def _tile(shared: _Shared, queries: slice, chunk_before: int, window: int | None, copied_from: int) -> _Tile:
    """The tile of a chunk that has ``chunk_before`` tokens before it and begins its copy of them at ``copied_from``."""
    before = chunk_before + queries.start
    count, first = queries.stop - queries.start, _first_seen(before, window)
    seen = slice(first - copied_from, before + count - copied_from)
    return _Tile(queries, seen, shared.causal(count, before - first, window))


def _first_seen(position: int, window: int | None) -> int:
    return 0 if window is None else max(0, position - window + 1)


def _accept_beta_notice() -> None:
    """Have torch say here that its sparse tensors are in beta, which it says once a process.

    Where warnings are errors, it would end a step.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bounds, columns = torch.tensor([0, 1]), torch.tensor([0])
        torch.sparse_csr_tensor(bounds, columns, torch.zeros(1), size=(1, 1), check_invariants=False)
