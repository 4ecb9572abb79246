"""Masks of allowed tokens laid over the logits of a step.

Usually a mask allows nearly all tokens (inside a string) or a handful (a number, a bracket). So
of each row the smaller side is spelled out: the forbidden tokens, or those that are kept while
the rest of the row is overwritten.
"""

from __future__ import annotations

import numpy as np
import torch

from ..scheduler.plan import GrammarOutput, SchedulerOutput
from .mask_words import Words, allowed_tokens, masks_by_request


def apply_masks(logits: torch.Tensor, masks: GrammarOutput, plan: SchedulerOutput) -> None:
    """Set the logits of forbidden tokens to minus infinity.

    Args:
        logits: [samples, vocabulary], in the order of the plan's samples, changed in place.
    """
    found = masks_by_request(masks, plan)
    sampled = [req_id for req_id, samples in zip(plan.req_ids, plan.samples.tolist(), strict=True) if samples]
    for row, req_id in zip(logits, sampled, strict=True):
        if (words := found.get(req_id)) is not None:
            _apply(row, words)


def _apply(row: torch.Tensor, words: Words) -> None:
    count = row.shape[0]
    if np.count_nonzero(words) * 2 > len(words):
        row[torch.from_numpy(allowed_tokens(~words, count))] = -torch.inf
        return
    kept = torch.from_numpy(allowed_tokens(words, count))
    logits = row[kept]
    row.fill_(-torch.inf)
    row[kept] = logits
