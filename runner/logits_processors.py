"""Changes to logits, each for the rows that ask for it; see ``sampler.sample`` for their order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ..scheduler.plan import BoolArray, IntArray
from .row_tables import RowTables
from .sampling_table import ALLOWED, BAD_WORDS, BIAS, GRAMMAR, PENALTIES

Places = tuple[torch.Tensor, torch.Tensor]


def change(logits: torch.Tensor, rows: RowTables, sampled: IntArray, outputs: IntArray) -> None:
    """All that applies to greedy requests too; ``logits`` are changed in place, float32 where anything asks."""
    asked = int(np.bitwise_or.reduce(rows.sampling.features[sampled], initial=0))
    if asked & ALLOWED:
        _keep_allowed(logits, rows, sampled)
    if asked & BAD_WORDS:
        _forbid_bad_words(logits, rows, sampled, outputs)
    early = outputs < rows.sampling.min_tokens[sampled]
    if early.any():
        _forbid_ends(logits, rows, sampled, np.flatnonzero(early))
    if asked & (ALLOWED | BAD_WORDS) or early.any():
        _leave_a_choice(logits, rows, sampled, early)
    if asked & BIAS:
        _add_bias(logits, rows, sampled)
    if asked & PENALTIES:
        _penalize(logits, rows, sampled)


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


def _forbid_ends(logits: torch.Tensor, rows: RowTables, sampled: IntArray, early: IntArray) -> None:
    """End and stop tokens cannot be chosen before the minimum."""
    logits[_places(early, [rows.sampling.end_ids[row] for row in sampled[early].tolist()])] = -torch.inf


def _leave_a_choice(logits: torch.Tensor, rows: RowTables, sampled: IntArray, early: BoolArray) -> None:
    """Where masks have left no token at all, put one back: the first of the request's allowed tokens, or 0.

    Bad words and minima yield to what is allowed. A grammar yields to nothing, and neither do allowed
    tokens that are all padding: such a row is left without a choice, which ends its request.
    """
    table, wide = rows.sampling, logits.numpy()
    features = table.features[sampled]
    which = np.flatnonzero((early | (features & (ALLOWED | BAD_WORDS) != 0)) & (features & GRAMMAR == 0))
    which = which[np.isneginf(wide[which, 0])]  # most rows are known by their first column to have a choice
    for place in which[np.isneginf(wide[which].max(-1, initial=-np.inf))].tolist():
        allowed = table.allowed_ids.get(int(sampled[place]))
        if allowed is None or len(allowed):
            logits[place, 0 if allowed is None else int(allowed[0])] = 0.0


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
