"""From logits to tokens, for all requests of a step at once."""

from __future__ import annotations

import numpy as np
import torch

from ..scheduler.plan import IntArray
from .draws import Draws, draw
from .logits_processors import change, leave_a_choice
from .row_tables import RowTables


def sample(logits: torch.Tensor, rows: RowTables, sampled: IntArray, outputs: IntArray) -> IntArray:
    """Choose one token for each row of logits.

    The order is that of vLLM's sampler:

    1. allowed_token_ids: all others are masked.
    2. bad_words: what would complete one is masked.
    3. min_tokens: end and stop tokens are masked before the minimum.
    4. logit_bias is added.
    5. repetition_penalty, over prompt and output; then frequency_penalty and presence_penalty, over the output.
    6. Greedy requests take the likeliest token now, the lowest id of equals.
    7. temperature divides; then min_p, top_k, top_p, each on what the one before has kept.
    8. One token is drawn.

    Where 1 to 3 leave nothing, the first allowed token (or 0) is taken.

    Args:
        logits: [samples, vocabulary], changed in place; ids beyond the last column are never chosen.
        sampled: int64 [samples], rows of the table.
        outputs: int64 [samples], tokens that each has generated so far.

    Returns:
        int64 [samples].
    """
    table = rows.sampling
    logits = logits.float()
    change(logits, rows, sampled, outputs)
    tokens = logits.numpy().argmax(-1)  # 10 times as fast as torch's
    leave_a_choice(logits, tokens, rows, sampled, outputs)
    (random,) = np.nonzero(table.temperature[sampled] > 0)
    if len(random):
        tokens[random] = draw(Draws.of(logits, table, sampled, outputs, random))
    return tokens
