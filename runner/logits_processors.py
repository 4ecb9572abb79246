"""Changes to logits, each for the rows that ask for it; see ``sampler.sample`` for their order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ..scheduler.plan import IntArray
from .row_tables import RowTables
from .sampling_table import ALLOWED, BAD_WORDS, BIAS, PENALTIES

Places = tuple[torch.Tensor, torch.Tensor]


def change(logits: torch.Tensor, rows: RowTables, sampled: IntArray, outputs: IntArray) -> None:
    """All that applies to greedy requests too; ``logits`` are changed in place, float32 where anything asks."""
    asked = int(np.bitwise_or.reduce(rows.sampling.features[sampled], initial=0))
    if asked & ALLOWED:
        _keep_allowed(logits, rows, sampled)
    if asked & BAD_WORDS:
        _forbid_bad_words(logits, rows, sampled, outputs)
    _forbid_early_ends(logits, rows, sampled, outputs)
    if asked & BIAS:
        _add_bias(logits, rows, sampled)
    if asked & PENALTIES:
        _penalize(logits, rows, sampled)


def leave_a_choice(logits: torch.Tensor, best: IntArray, rows: RowTables, sampled: IntArray, outputs: IntArray) -> None:
    """Where masks have left no token at all, put one back, in ``logits`` and in ``best``.

    It is the first of the request's allowed tokens, or 0: bad words and minima yield to what is
    allowed, and a row without any choice would be drawn from nothing.

    Args:
        best: int64 [samples], the likeliest tokens.
    """
    asked = rows.sampling.features[sampled] & (ALLOWED | BAD_WORDS) != 0
    if not (asked | (outputs < rows.sampling.min_tokens[sampled])).any():
        return
    values = logits.gather(1, torch.from_numpy(best).unsqueeze(1)).squeeze(1)
    for place in (values == -torch.inf).nonzero().squeeze(1).tolist():
        allowed = rows.sampling.allowed_ids.get(int(sampled[place]))
        best[place] = int(allowed[0]) if allowed is not None and len(allowed) else 0
        logits[place, int(best[place])] = 0.0


def _keep_allowed(logits: torch.Tensor, rows: RowTables, sampled: IntArray) -> None:
    which = rows.sampling.asking(sampled, ALLOWED)
    places = _places(which, [rows.sampling.allowed_ids[row] for row in sampled[which].tolist()])
    kept = logits[places]
    logits[torch.from_numpy(which)] = -torch.inf
    logits[places] = kept


def _forbid_bad_words(logits: torch.Tensor, rows: RowTables, sampled: IntArray, outputs: IntArray) -> None:
    which = rows.sampling.asking(sampled, BAD_WORDS)
    forbidden: list[IntArray] = []
    for row, count in zip(sampled[which].tolist(), outputs[which].tolist(), strict=True):
        words, known = rows.sampling.bad_words[row], int(rows.known[row])
        forbidden.append(words.forbidden(rows.tokens[row, known - min(count, words.longest) : known]))
    logits[_places(which, forbidden)] = -torch.inf


def _forbid_early_ends(logits: torch.Tensor, rows: RowTables, sampled: IntArray, outputs: IntArray) -> None:
    """End and stop tokens cannot be chosen before the minimum."""
    (early,) = np.nonzero(outputs < rows.sampling.min_tokens[sampled])
    if len(early):
        logits[_places(early, [rows.sampling.end_ids[row] for row in sampled[early].tolist()])] = -torch.inf


def _add_bias(logits: torch.Tensor, rows: RowTables, sampled: IntArray) -> None:
    table = rows.sampling
    which = table.asking(sampled, BIAS)
    asking = sampled[which].tolist()
    places = _places(which, [table.bias_ids[row] for row in asking])
    logits[places] += torch.from_numpy(np.concatenate([table.bias_values[row] for row in asking]))


def _penalize(logits: torch.Tensor, rows: RowTables, sampled: IntArray) -> None:
    """Repetition (Keskar et al. 2019, arXiv 1909.05858), then frequency, then presence."""
    table = rows.sampling
    which = table.asking(sampled, PENALTIES)
    counted = table.counts.of(sampled[which])
    places = torch.from_numpy(which[counted.owners]), torch.from_numpy(counted.token_ids)
    owners = sampled[which][counted.owners]
    repetition = torch.from_numpy(table.repetition[owners])
    values = logits[places]
    values = torch.where(values < 0, values * repetition, values / repetition)
    values -= torch.from_numpy(table.frequency[owners] * counted.generated.astype(np.float32))
    values -= torch.from_numpy(table.presence[owners] * (counted.generated > 0))
    logits[places] = values


def _places(which: IntArray, ids: Sequence[IntArray]) -> Places:
    """Where ids of some rows stand in the logits: rows and columns, one pair for each id."""
    counts = [len(one) for one in ids]
    return torch.from_numpy(np.repeat(which, counts)), torch.from_numpy(np.concatenate(ids))
