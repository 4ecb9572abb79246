"""From logits to tokens, for all requests of a step at once.

A random choice depends on nothing but the request's seed, the index of the completion, the
position of the token and the logits: not on the batch, on chunks or on preemptions. One uniform
number is drawn for each token and looked up in the cumulative distribution.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ..scheduler.plan import IntArray
from .row_tables import RowTables

CANDIDATES = 1024  # likeliest tokens that top-p looks at before it sorts the whole vocabulary
FIRST_COMPLETION = 0


def sample(logits: torch.Tensor, rows: RowTables, sampled: IntArray, outputs: IntArray) -> IntArray:
    """Choose one token for each row of logits.

    Args:
        logits: [samples, vocabulary], changed in place; ids beyond the last column are never chosen.
        sampled: int64 [samples], rows of the table.
        outputs: int64 [samples], tokens that each has generated so far.

    Returns:
        int64 [samples]. A temperature of 0 takes the likeliest token, the lowest id of equals.
    """
    _forbid_early_ends(logits, rows, sampled, outputs)
    tokens: IntArray = logits.argmax(-1).numpy()
    (random,) = np.nonzero(rows.temperature[sampled] > 0)
    if len(random):
        chosen = sampled[random]
        wide = logits if len(random) == len(sampled) else logits[torch.from_numpy(random)]
        scaled = wide.float().div_(torch.from_numpy(rows.temperature[chosen]).unsqueeze(1))
        numbers = uniform(rows.seed[chosen], FIRST_COMPLETION, outputs[random])
        tokens[random] = _draw(scaled, torch.from_numpy(numbers), rows.top_k[chosen], rows.top_p[chosen])
    return tokens


def _forbid_early_ends(logits: torch.Tensor, rows: RowTables, sampled: IntArray, outputs: IntArray) -> None:
    """End and stop tokens cannot be chosen before the minimum."""
    (early,) = np.nonzero(outputs < rows.min_tokens[sampled])
    for i in early.tolist():
        logits[i, torch.from_numpy(rows.end_ids[sampled[i]])] = -torch.inf


def _draw(
    logits: torch.Tensor, numbers: torch.Tensor, top_k: NDArray[np.int64], top_p: NDArray[np.float32]
) -> NDArray[np.int64]:
    """Sample rows of scaled logits, float32 [rows, vocabulary], with uniform numbers, float64 [rows]."""
    vocabulary = logits.shape[1]
    limit = torch.from_numpy(np.where(top_k > 0, np.minimum(top_k, vocabulary), vocabulary)).unsqueeze(1)
    mass = torch.from_numpy(top_p).unsqueeze(1)
    if int(limit.min()) == vocabulary and float(mass.min()) == 1.0:
        return _look_up(torch.softmax(logits, -1), numbers).numpy()
    kept, ids = _filter(logits, limit, mass, _first_try(limit, mass, vocabulary))
    return ids.gather(1, _look_up(kept, numbers).unsqueeze(1)).squeeze(1).numpy()


def _first_try(limit: torch.Tensor, mass: torch.Tensor, vocabulary: int) -> int:
    """How many of the likeliest tokens to look at, so that no row needs more, or hardly ever."""
    if ((limit == vocabulary) & (mass == 1.0)).any():
        return vocabulary
    bounded = torch.where(mass < 1.0, limit.clamp(max=CANDIDATES), limit)
    return int(bounded.max())


def _filter(
    logits: torch.Tensor, limit: torch.Tensor, mass: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keep the ``limit`` likeliest tokens, then the fewest of these that hold ``mass``; at least one.

    Returns:
        probabilities, not normalized, 0 for what is cut, and token ids: both [rows, count or vocabulary].
    """
    vocabulary = logits.shape[1]
    best, ids = _likeliest(logits, count)
    outside = torch.arange(best.shape[1]) >= limit
    best = best.masked_fill(outside, -torch.inf)
    # Where every token within the limit is at hand they are the whole, else the vocabulary is.
    whole = torch.where(limit <= count, best.logsumexp(-1, keepdim=True), logits.logsumexp(-1, keepdim=True))
    probabilities = (best - whole).exp_()
    reached = probabilities.double().cumsum(-1)
    if count < vocabulary and bool(((reached[:, -1:] < mass) & (limit > count)).any()):
        return _filter(logits, limit, mass, vocabulary)
    # A token is kept while those before it do not hold the mass yet.
    return probabilities.masked_fill_(reached - probabilities >= mass, 0.0), ids


def _likeliest(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    if count == logits.shape[1]:
        return torch.sort(logits, dim=-1, descending=True, stable=True)
    return torch.topk(logits, count, dim=-1)


def _look_up(weights: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """The column at which the running sum passes each number's share of the total: int64 [rows].

    A column of weight 0 is never chosen.
    """
    sums = weights.cumsum(-1, dtype=torch.float64)
    targets = numbers.unsqueeze(1) * sums[:, -1:]
    found = torch.searchsorted(sums, targets, right=True).squeeze(1)
    # Rounding can put a target on the total: then it is the last column that adds to the sum.
    last = torch.searchsorted(sums, sums[:, -1:].contiguous()).squeeze(1)
    return torch.minimum(found, last)


def uniform(seeds: NDArray[np.uint64], completion: int, positions: Sequence[int] | IntArray) -> NDArray[np.float64]:
    """Numbers in [0, 1) that depend on their arguments only.

    A counter-based generator: each argument is mixed in by the finalizer of SplitMix64 (Steele,
    Lea and Flood 2014, "Fast splittable pseudorandom number generators").
    """
    state = _mix(seeds.astype(np.uint64) + _GOLDEN)
    state = _mix(state + np.uint64((completion + 1) * int(_GOLDEN) % 2**64))
    state = _mix(state + (np.asarray(positions).astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
