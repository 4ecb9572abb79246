"""Random choices: one uniform number for each token, looked up in the cumulative distribution.

A choice depends on nothing but the request's seed, the index of the completion, the position of
the token and the logits: not on the batch, on chunks or on preemptions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..scheduler.plan import IntArray
from .sampling_table import MIN_P, SamplingTable

CANDIDATES = 1024  # likeliest tokens that top-p looks at before it sorts the whole vocabulary
FIRST_COMPLETION = 0


class Draws(NamedTuple):
    """Choices to make, a row each."""

    logits: torch.Tensor  # float32 [rows, vocabulary], divided by the temperature, -inf below min_p
    numbers: torch.Tensor  # float64 [rows], uniform
    limit: torch.Tensor  # int64 [rows], how many of the likeliest tokens are kept, at most the vocabulary
    mass: torch.Tensor  # float32 [rows], the share of these that is kept

    @classmethod
    def of(
        cls, logits: torch.Tensor, table: SamplingTable, sampled: IntArray, outputs: IntArray, random: IntArray
    ) -> Draws:
        """The draws of the samples with these indices."""
        chosen, vocabulary = sampled[random], logits.shape[1]
        wide = logits.float() if len(random) == len(sampled) else logits[torch.from_numpy(random)].float()
        wide.div_(torch.from_numpy(table.temperature[chosen]).unsqueeze(1))
        if len(table.asking(chosen, MIN_P)):
            _keep_min_p(wide, torch.from_numpy(table.log_min_p[chosen]).unsqueeze(1))
        top_k = table.top_k[chosen]
        return cls(
            logits=wide,
            numbers=torch.from_numpy(uniform(table.seed[chosen], FIRST_COMPLETION, outputs[random])),
            limit=torch.from_numpy(np.where(top_k > 0, np.minimum(top_k, vocabulary), vocabulary)),
            mass=torch.from_numpy(table.top_p[chosen]),
        )

    def where(self, mask: torch.Tensor) -> Draws:
        """Some of the rows."""
        return self if bool(mask.all()) else Draws(*(column[mask] for column in self))


def _keep_min_p(logits: torch.Tensor, log_min_p: torch.Tensor) -> None:
    """Keep tokens at least min_p times as likely as the likeliest (Nguyen et al. 2024, arXiv 2407.01082)."""
    logits.masked_fill_(logits < logits.amax(-1, keepdim=True) + log_min_p, -torch.inf)


def draw(draws: Draws) -> NDArray[np.int64]:
    """Tokens with all that is kept of the vocabulary; rows that keep it all need no order of it."""
    vocabulary = draws.logits.shape[1]
    tokens = torch.empty(len(draws.limit), dtype=torch.int64)
    whole = (draws.limit == vocabulary) & (draws.mass == 1.0)
    if whole.any():
        plain = draws.where(whole)
        tokens[whole] = _look_up(torch.softmax(plain.logits, -1), plain.numbers)
    if not whole.all():
        tokens[~whole] = _draw_likeliest(draws.where(~whole))
    return tokens.numpy()


def _draw_likeliest(draws: Draws) -> torch.Tensor:
    """Look at a few of the likeliest tokens, and again at all for the rows that need more."""
    vocabulary = draws.logits.shape[1]
    count = min(int(torch.where(draws.limit < vocabulary, draws.limit, CANDIDATES).max()), CANDIDATES, vocabulary)
    tokens, short = _cut(draws, count)
    if short.any():
        tokens[short], _ = _cut(draws.where(short), vocabulary)
    return tokens


def _cut(draws: Draws, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keep the ``limit`` likeliest tokens, of these the fewest that hold ``mass``, at least one; choose.

    Returns:
        int64 [rows], tokens; bool [rows], for which rows ``count`` tokens were too few to say.
    """
    best, ids = _likeliest(draws.logits, count)
    limit, mass = draws.limit.unsqueeze(1), draws.mass.unsqueeze(1)
    best = best.masked_fill(torch.arange(count) >= limit, -torch.inf)
    # Shares of what the limit keeps, for which it must all be at hand or be the vocabulary.
    total = torch.where(limit <= count, best.logsumexp(-1, keepdim=True), draws.logits.logsumexp(-1, keepdim=True))
    shares = (best - total).exp_()
    reached = shares.double().cumsum(-1)
    # A token is kept while those before it do not hold the mass yet.
    kept = shares.masked_fill(reached - shares >= mass, 0.0)
    tokens = ids.gather(1, _look_up(kept, draws.numbers).unsqueeze(1)).squeeze(1)
    short = (limit > count) & ((limit < draws.logits.shape[1]) | (reached[:, -1:] < mass))
    return tokens, short.squeeze(1)


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
