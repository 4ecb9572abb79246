"""From a plan to the flat batch that the model computes: all scheduled tokens of all requests, one after another."""

from __future__ import annotations

import numpy as np
import torch

from ..scheduler.plan import IntArray, SchedulerOutput
from .row_tables import RowTables


class StepBatch:
    """One step's tokens.

    Requests with one token come first, longest context first, so that those whose lengths are
    alike can be computed together; the order has no other meaning.

    Attributes:
        lengths: tokens to compute for each request, batch order; ``ends``: its tokens afterwards.
        num_single: how many requests, the first ones, have one token.
        tables: for each group of layers int64 [requests, blocks], block tables cut to the longest.
        blocks: for each group int64 [tokens], where the tokens' keys and values go.
        input_ids, positions, offsets: int64 [tokens].
        sampled_rows, sampled_outputs: for each request that samples, in plan order, its row and
            how many tokens it has generated so far.
        last_tokens: int64 [samples], the places in the batch whose logits those want.
        first_tokens: int64 [requests], plan order, where each request's tokens begin.
    """

    def __init__(self, plan: SchedulerOutput, rows: RowTables) -> None:
        ends = plan.num_computed + plan.num_tokens
        rows.check_step(plan.rows, ends, plan.samples)
        order = np.lexsort((-ends, plan.num_tokens > 1))
        self.rows: IntArray = plan.rows[order]
        self.lengths: IntArray = plan.num_tokens[order]
        self.ends: IntArray = ends[order]
        self.num_single = int((self.lengths == 1).sum())
        self._lay_out(rows)
        self.sampled_rows: IntArray = plan.rows[plan.samples]
        self.sampled_outputs: IntArray = plan.num_outputs[plan.samples]
        place = np.empty_like(order)
        place[order] = np.cumsum(self.lengths) - 1
        self.last_tokens = torch.from_numpy(place[plan.samples])
        self.first_tokens: IntArray = place - plan.num_tokens + 1

    def _lay_out(self, rows: RowTables) -> None:
        size = rows.block_size
        owner = np.repeat(self.rows, self.lengths)
        # Token t of the batch is token t - first of its request's chunk, which starts at end - length.
        first = np.cumsum(self.lengths) - self.lengths
        positions = np.arange(len(owner)) + np.repeat(self.ends - self.lengths - first, self.lengths)
        widest = -(-int(self.ends.max()) // size)
        self.tables = [torch.from_numpy(blocks[self.rows, :widest]) for blocks in rows.blocks]
        self.input_ids = torch.from_numpy(rows.tokens[owner, positions])
        self.positions = torch.from_numpy(positions)
        index = positions // size
        written = positions >= rows.write_from[owner]  # the others' go to the null block, which nobody reads
        self.blocks = [torch.from_numpy(blocks[owner, index] * written) for blocks in rows.blocks]
        self.offsets = torch.from_numpy(positions % size)
