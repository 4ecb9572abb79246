"""What the runner remembers of each request between steps: tokens, blocks and how to sample."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..scheduler.errors import BooksError
from ..scheduler.plan import BlockIds, BoolArray, IntArray, NewRequestData
from .sampling_table import SamplingTable


class RowTables:
    """One row for each running request, changed by plans only, in step order.

    Columns:
        tokens: int64 [rows, max_model_len + 1], the prompt and what was sampled.
        known: int64 [rows], how many of them are there.
        blocks: int64 [groups, rows, blocks], the block tables; 0 (the null block) behind their ends.
        num_blocks: int64 [groups, rows].
        write_from: int64 [rows], keys and values of tokens before it are never written.
        prompt: int64 [rows], how many tokens are the prompt.
        sampling: how to sample, a table of its own.

    Args:
        groups: of layers, each with block tables of its own.
        vocab_size, width, eos_token_ids, random_base: see ``SamplingTable``.
    """

    def __init__(
        self,
        *,
        rows: int,
        max_model_len: int,
        block_size: int,
        vocab_size: int,
        eos_token_ids: tuple[int, ...],
        random_base: int,
        groups: int = 1,
        width: int | None = None,
    ) -> None:
        self.block_size = block_size
        self.tokens = np.zeros((rows, max_model_len + 1), np.int64)
        self.known = np.zeros(rows, np.int64)
        self.blocks = np.zeros((groups, rows, -(-max_model_len // block_size)), np.int64)
        self.num_blocks = np.zeros((groups, rows), np.int64)
        self.write_from = np.zeros(rows, np.int64)
        self.prompt = np.zeros(rows, np.int64)
        self.sampling = SamplingTable(
            rows=rows,
            max_tokens=max_model_len + 1,
            vocab_size=vocab_size,
            width=width or vocab_size,
            eos_token_ids=eos_token_ids,
            random_base=random_base,
        )

    def fill(self, new: NewRequestData) -> None:
        """Take in a request, over whatever the row held before."""
        row, count = new.row, len(new.token_ids)
        self.tokens[row, :count] = new.token_ids
        self.known[row] = count
        self.blocks[:, row] = 0  # what pads a shorter row beside a longer one is masked; this way it is also one block
        self.num_blocks[:, row] = 0
        self.write_from[row] = new.write_from
        self.grow(row, new.block_ids, new.more_block_ids)
        self.prompt[row] = new.num_prompt_tokens
        self.sampling.fill(new)

    def grow(self, row: int, block_ids: BlockIds, more: Sequence[BlockIds] = ()) -> None:
        """Append blocks to a row's tables: to the first, and to each further one."""
        if len(more) != len(self.blocks) - 1:
            raise BooksError(
                f"row {row} gets blocks for {1 + len(more)} groups of layers, {len(self.blocks)} are there"
            )
        for group, blocks in enumerate((block_ids, *more)):
            first = int(self.num_blocks[group, row])
            self.blocks[group, row, first : first + len(blocks)] = blocks
            self.num_blocks[group, row] = first + len(blocks)

    def replace(self, row: int, group: int, place: int, block: int) -> None:
        """An equal block takes the place of one in a table."""
        self.blocks[group, row, place] = block

    def append(self, rows: IntArray, token_ids: IntArray) -> None:
        """One more token of each of these rows is known."""
        self.tokens[rows, self.known[rows]] = token_ids
        self.known[rows] += 1
        self.sampling.counts.append(rows, token_ids)

    def check_step(self, rows: IntArray, ends: IntArray, samples: BoolArray) -> None:
        """Raise BooksError unless a step's tokens and blocks are there up to ``ends``.

        A row samples if and only if the step reaches the end of what is known of it.
        """
        held = self.num_blocks[:, rows].min(0)
        room = held * self.block_size
        for name, bad in (
            ("tokens that are not known", ends > self.known[rows]),
            ("no blocks for its tokens", ends > room),
            ("a sample inside its known tokens, or none at their end", samples != (ends == self.known[rows])),
        ):
            if bad.any():
                row, blocks = int(rows[bad][0]), int(held[bad][0])
                raise BooksError(
                    f"a step has {name}: row {row} up to token {int(ends[bad][0])}, "
                    f"{int(self.known[row])} tokens and {blocks} blocks are there"
                )
