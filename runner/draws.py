"""Random choices: one uniform number for each token, looked up in the cumulative distribution.

A choice depends on nothing but the request's seed, the index of the completion, the position of
the token and the logits: not on the batch, on chunks or on preemptions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..scheduler.plan import IntArray
from .sampling_table import MIN_P, SamplingTable

LOOKS = (64, 1024)  # so many of the likeliest tokens are looked at before the whole vocabulary is sorted
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

    def of_rows(self, rows: torch.Tensor) -> Draws:
        """Some of the rows."""
        return self if len(rows) == len(self.limit) else Draws(*(column[rows] for column in self))


def _keep_min_p(logits: torch.Tensor, log_min_p: torch.Tensor) -> None:
    """Keep tokens at least min_p times as likely as the likeliest (Nguyen et al. 2024, arXiv 2407.01082)."""
    logits.masked_fill_(logits < logits.amax(-1, keepdim=True) + log_min_p, -torch.inf)


class Kept(NamedTuple):
    """What the cuts leave of some rows."""

    rows: torch.Tensor  # int64 [some], of the draws
    ids: torch.Tensor | None  # int64 [some, columns], tokens; None: a column is its token
    shares: torch.Tensor  # float32 [some, columns], 0 where nothing is kept


def draw(draws: Draws) -> NDArray[np.int64]:
    """Tokens, each with the share that it has of what is kept."""
    tokens = torch.empty(len(draws.limit), dtype=torch.int64)
    for rows, ids, shares in kept(draws):
        columns = _look_up(shares, draws.numbers[rows])
        tokens[rows] = columns if ids is None else ids.gather(1, columns.unsqueeze(1)).squeeze(1)
    return tokens.numpy()


def kept(draws: Draws) -> Iterator[Kept]:
    """What top-k and top-p leave; rows that keep the whole vocabulary need no order of it.

    How many of the likeliest tokens are looked at depends on a row alone, never on its neighbours:
    equally likely tokens stand in an order that depends on how many were looked at.
    """
    vocabulary = draws.logits.shape[1]
    whole = (draws.limit == vocabulary) & (draws.mass == 1.0)
    if whole.any():
        rows = whole.nonzero().squeeze(1)
        yield Kept(rows, None, torch.softmax(draws.logits if len(rows) == len(whole) else draws.logits[rows], -1))
    left = ~whole
    for look in (*(look for look in LOOKS if look < vocabulary), vocabulary):
        rows = (left & ((draws.limit <= look) | (draws.limit == vocabulary))).nonzero().squeeze(1)
        if not len(rows):
            continue
        ids, shares, short = _cut(draws.of_rows(rows), look)
        yield Kept(rows[~short], ids[~short], shares[~short])
        left[rows[~short]] = False


def _cut(draws: Draws, look: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Keep the ``limit`` likeliest tokens, of these the fewest that hold ``mass``, at least one.

    Returns:
        int64 and float32 [rows, look], tokens and their shares; bool [rows], for which rows ``look``
        tokens were too few to say.
    """
    best, ids = _likeliest(draws.logits, look)
    limit, mass = draws.limit.unsqueeze(1), draws.mass.unsqueeze(1)
    best = best.masked_fill(torch.arange(look) >= limit, -torch.inf)
    # Shares of what the limit keeps, which is at hand or is the vocabulary.
    total = best.logsumexp(-1, keepdim=True)
    if look < draws.logits.shape[1] and (limit > look).any():
        total = torch.where(limit <= look, total, draws.logits.logsumexp(-1, keepdim=True))
    shares = (best - total).exp_()
    reached = shares.double().cumsum(-1)
    # A token is kept while those before it do not hold the mass yet.
    shares.masked_fill_(reached - shares >= mass, 0.0)
    short = (limit > look) & (reached[:, -1:] < mass)
    return ids, shares, short.squeeze(1)


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
