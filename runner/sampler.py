"""From logits to tokens, for all requests of a step at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from ..scheduler.plan import IntArray
from .draws import NOTHING, Draws, draw
from .logits_processors import change
from .row_tables import RowTables
from .sampling_table import ALLOWED


class Samples(NamedTuple):
    """What was chosen: int64 [samples], 0 for those that have failed; and why, by sample."""

    tokens: IntArray
    failed: dict[int, str]


def sample(logits: torch.Tensor, rows: RowTables, sampled: IntArray, outputs: IntArray) -> Samples:
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

    Where 1 to 3 leave nothing, the first allowed token (or 0) is taken. A row fails in which there is nothing
    to take all the same: behind a grammar's mask, where all allowed tokens are padding, or where the logits are
    NaN or infinite.

    Args:
        logits: [samples, vocabulary], changed in place; ids beyond the last column are never chosen.
        sampled: int64 [samples], rows of the table.
        outputs: int64 [samples], tokens that each has generated so far.

    """
    table = rows.sampling
    logits = logits.float()
    change(logits, rows, sampled, outputs)
    tokens = np.full(len(sampled), NOTHING, np.int64)
    draws = table.temperature[sampled] > 0
    random, greedy = np.flatnonzero(draws), np.flatnonzero(~draws)
    if len(greedy):
        tokens[greedy] = _likeliest(logits, greedy)
    if len(random):
        tokens[random] = draw(Draws.of(logits, table, sampled, outputs, random))
    nothing = np.flatnonzero(tokens == NOTHING)
    tokens[nothing] = 0
    return Samples(tokens, {place: _why_not(logits[place], rows, int(sampled[place])) for place in nothing.tolist()})


def _likeliest(logits: torch.Tensor, greedy: IntArray) -> IntArray:
    """The likeliest tokens of some rows, the lowest id of equals; NOTHING where that is no finite number."""
    wide = logits.numpy() if len(greedy) == len(logits) else logits.index_select(0, torch.from_numpy(greedy)).numpy()
    tokens = wide.argmax(-1)  # 10 times as fast as torch's; NaN counts as the largest
    return np.where(np.isfinite(wide[np.arange(len(tokens)), tokens]), tokens, NOTHING)


def _why_not(logits: torch.Tensor, rows: RowTables, row: int) -> str:
    if not bool((logits == -torch.inf).all()):
        return "the model gave logits that are NaN or infinite, nothing can be chosen by them"
    if rows.sampling.features[row] & ALLOWED and not len(rows.sampling.allowed_ids[row]):
        return f"allowed_token_ids are all padding of the vocabulary, tokens are below {len(logits)}"
    return "no token is left to choose: all have a logit of minus infinity"
