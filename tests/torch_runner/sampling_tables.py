"""Tables filled by hand, and the logits that the sampler makes of given ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from callboard.runner.logits_processors import change
from callboard.runner.row_tables import RowTables
from callboard.scheduler import NewRequestData, SamplingParams

EOS = (2, 9)


def table(vocabulary: int, rows: int = 4, length: int = 64) -> RowTables:
    return RowTables(
        rows=rows, max_model_len=length, block_size=4, vocab_size=vocabulary, eos_token_ids=EOS, random_base=1
    )


def enter(
    rows: RowTables, row: int, params: SamplingParams, prompt: Sequence[int], outputs: Sequence[int] = ()
) -> None:
    """Admit a request; with outputs it comes back from a preemption."""
    tokens = [*prompt, *outputs]
    new = NewRequestData(
        req_id=f"r{row}",
        row=row,
        token_ids=tokens,
        num_prompt_tokens=len(prompt),
        block_ids=list(range(1, 2 - (-len(tokens) // rows.block_size))),
        num_computed_tokens=0,
        sampling_params=params,
    )
    rows.fill(new)


def generate(rows: RowTables, row: int, outputs: Sequence[int]) -> None:
    """Tokens come one after another, as the executor enters them."""
    for token in outputs:
        rows.append(np.array([row]), np.array([token]))


def changed(logits: torch.Tensor, rows: RowTables, sampled: Sequence[int]) -> torch.Tensor:
    """What becomes of logits [samples, vocabulary] before temperature and cuts; these stay as they are."""
    which = np.array(sampled, np.int64)
    copy = logits.clone()
    change(copy, rows, which, rows.known[which] - rows.prompt[which])
    return copy
