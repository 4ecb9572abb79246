"""Random choices: a uniform number, looked up in the cumulative distribution of what the cuts leave.

A choice depends on nothing but the request's seed, the position of the token and the logits. How
its row is looked at depends on the row alone, too: equally likely tokens stand in an order that
depends on how many of the likeliest were looked at.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..scheduler.plan import IntArray
from .random_numbers import Keys, keys_of, uniform
from .sampling_table import MIN_P, SamplingTable

LOOKS = (64, 1024)  # so many of the likeliest tokens are looked at before the whole vocabulary is sorted
ATTEMPTS = 8  # draws from an uncut distribution that may miss what top-p keeps
BLOCK = 256  # columns that are summed up before one is looked for
COLD = 0.01  # below it logits are taken from the largest one before they are divided: they keep their differences
NOTHING = -1  # in the place of a token: a row is drawn from nothing, or from what are no numbers


class Draws(NamedTuple):
    """Choices to make, a row each.

    Rows are taken by ``index_select``: on a CPU it is 30 times as fast as indexing.
    """

    logits: torch.Tensor  # float32 [rows, vocabulary], divided by the temperature, -inf below min_p
    keys: Keys  # uint64 [rows], of the random numbers
    limit: torch.Tensor  # int64 [rows], how many of the likeliest tokens are kept, at most the vocabulary
    mass: torch.Tensor  # float32 [rows], the share of these that is kept; infinite for all: sums of shares pass 1

    @classmethod
    def of(
        cls, logits: torch.Tensor, table: SamplingTable, sampled: IntArray, outputs: IntArray, random: IntArray
    ) -> Draws:
        """The draws of the samples with these indices; ``logits``, float32, may be changed."""
        chosen, vocabulary = sampled[random], logits.shape[1]
        wide = logits if len(random) == len(sampled) else logits.index_select(0, torch.from_numpy(random))
        _divide(wide, table.temperature[chosen])
        if len(table.asking(chosen, MIN_P)):
            _keep_min_p(wide, torch.from_numpy(table.log_min_p[chosen]).unsqueeze(1))
        top_k, top_p = table.top_k[chosen], table.top_p[chosen]
        return cls(
            logits=wide,
            keys=keys_of(table.seed[chosen], outputs[random]),
            limit=torch.from_numpy(np.where(top_k > 0, np.minimum(top_k, vocabulary), vocabulary)),
            mass=torch.from_numpy(np.where(top_p < 1.0, top_p, np.float32(np.inf))),
        )

    def of_rows(self, rows: torch.Tensor) -> Draws:
        """Some of the rows."""
        if len(rows) == len(self.limit):
            return self
        return Draws(self.logits.index_select(0, rows), self.keys[rows.numpy()], self.limit[rows], self.mass[rows])

    def numbers(self, number: int) -> torch.Tensor:
        """A random number for each row: float64 [rows]."""
        return torch.from_numpy(uniform(self.keys, number))


def _divide(logits: torch.Tensor, temperature: NDArray[np.float32]) -> None:
    cold = torch.from_numpy(np.flatnonzero(temperature < COLD))
    if len(cold):
        rows = logits.index_select(0, cold)
        peak = rows.amax(-1, keepdim=True)
        logits.index_copy_(0, cold, rows - peak.masked_fill_(peak == -torch.inf, 0.0))
    logits.div_(torch.from_numpy(temperature).unsqueeze(1))


def _keep_min_p(logits: torch.Tensor, log_min_p: torch.Tensor) -> None:
    """Keep tokens at least min_p times as likely as the likeliest (Nguyen et al. 2024, arXiv 2407.01082)."""
    logits.masked_fill_(logits < logits.amax(-1, keepdim=True) + log_min_p, -torch.inf)


def draw(draws: Draws) -> NDArray[np.int64]:
    """One token for each row; NOTHING where no finite share is left, or a logit is NaN or infinite.

    What keeps the whole vocabulary needs no order of it. Of the others a few of the likeliest tokens
    are looked at first. Where they do not hold the mass of top-p the distribution is flat, and a
    token of the uncut one is probably among those that are kept: it is drawn, and again if it is not.
    """
    vocabulary = draws.logits.shape[1]
    tokens = torch.empty(len(draws.limit), dtype=torch.int64)
    uncut = draws.limit == vocabulary
    left = ~(uncut & draws.mass.isinf())
    if not left.all():
        rows = (~left).nonzero().squeeze(1)
        some = draws.of_rows(rows)
        tokens[rows] = look_up(some.logits.softmax(-1), some.numbers(0))
    for look in (*(look for look in LOOKS if look < vocabulary), vocabulary):
        _draw_likeliest(draws, left & (uncut | (draws.limit <= look)), look, tokens, left)
        if look == LOOKS[0]:
            _draw_by_attempts(draws, left & uncut, tokens, left)
    return tokens.numpy()


def _draw_likeliest(draws: Draws, asking: torch.Tensor, look: int, tokens: torch.Tensor, left: torch.Tensor) -> None:
    """Fill ``tokens`` for those rows of which ``look`` tokens say enough; they are no longer left."""
    rows = asking.nonzero().squeeze(1)
    if not len(rows):
        return
    some = draws.of_rows(rows)
    ids, shares, short = cut(some, look)
    column = look_up(shares, some.numbers(0))
    found = ids.gather(1, column.clamp_min(0).unsqueeze(1)).squeeze(1).masked_fill_(column == NOTHING, NOTHING)
    tokens[rows[~short]] = found[~short]
    left[rows[~short]] = False


def _draw_by_attempts(draws: Draws, asking: torch.Tensor, tokens: torch.Tensor, left: torch.Tensor) -> None:
    """Fill ``tokens`` for those rows whose mass some draw of the uncut distribution has met."""
    rows = asking.nonzero().squeeze(1)
    if not len(rows):
        return
    some = draws.of_rows(rows)
    shares = some.logits.softmax(-1)
    open_rows = torch.arange(len(rows))
    for attempt in range(1, ATTEMPTS + 1):
        found = look_up(shares, some.numbers(attempt)[open_rows])
        met = in_mass(shares, found, some.mass[open_rows])
        tokens[rows[open_rows[met]]] = found[met]
        left[rows[open_rows[met]]] = False
        if met.all():
            return
        open_rows, shares = open_rows[~met], shares.index_select(0, (~met).nonzero().squeeze(1))


def cut(draws: Draws, look: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
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
    if (limit > look).any():
        total = torch.where(limit <= look, total, draws.logits.logsumexp(-1, keepdim=True))
    shares = (best - total).exp_()
    reached = shares.double().cumsum(-1)
    # A token is kept while those before it do not hold the mass yet.
    shares.masked_fill_(reached - shares >= mass, 0.0)
    short = (limit > look) & (reached[:, -1:] < mass)
    return ids, shares, short.squeeze(1)


def in_mass(shares: torch.Tensor, tokens: torch.Tensor, mass: torch.Tensor) -> torch.Tensor:
    """Whether the tokens that are likelier than each row's one do not hold the mass: bool [rows]."""
    own = shares.gather(1, tokens.unsqueeze(1))
    return torch.where(shares > own, shares, 0.0).sum(-1) < mass


def _likeliest(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    if count == logits.shape[1]:
        return torch.sort(logits, dim=-1, descending=True, stable=True)
    return torch.topk(logits, count, dim=-1)


def look_up(weights: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """The column at which the running sum passes each number's share of the total: int64 [rows].

    A column of weight 0 is never chosen; it is NOTHING where the total is 0 or no number. Of many
    columns a block is looked for first, by its sum: a running sum of all takes 5 times as long.
    """
    columns = weights.shape[1]
    if columns <= 4 * BLOCK:
        return _search(weights, numbers)[0]
    whole = columns // BLOCK * BLOCK
    sums = weights[:, :whole].unflatten(1, (-1, BLOCK)).sum(-1)
    if whole < columns:
        sums = torch.cat([sums, weights[:, whole:].sum(-1, keepdim=True)], 1)
    block, within = _search(sums, numbers)
    places = block.clamp_min(0).unsqueeze(1) * BLOCK + torch.arange(BLOCK)
    part = weights.gather(1, places.clamp_max(columns - 1)).masked_fill_(places >= columns, 0.0)
    found = block * BLOCK + _search(part, within)[0]
    return found.masked_fill_(block == NOTHING, NOTHING)


def _search(weights: torch.Tensor, numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The column of each number, int64 [rows], and how far into the column's weight it lies, float64 in [0, 1]."""
    sums = weights.cumsum(-1, dtype=torch.float64)
    total = sums[:, -1:].contiguous()
    targets = numbers.unsqueeze(1) * total
    found = torch.searchsorted(sums, targets, right=True)
    # Rounding can put a target on the total: then it is the last column that adds to the sum. Behind all
    # columns stands what is no number.
    found = torch.minimum(found, torch.searchsorted(sums, total)).clamp_max_(weights.shape[1] - 1)
    weight = weights.gather(1, found).double()
    into = (targets - (sums.gather(1, found) - weight)) / weight
    found.masked_fill_(~(total > 0), NOTHING)
    return found.squeeze(1), into.clamp_(0.0, 1.0).squeeze(1)
