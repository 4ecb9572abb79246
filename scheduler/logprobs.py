"""Log-probabilities as they cross channels: columns, cut like the tokens that they belong to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray


class LogprobColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Log-probabilities at some places of one request, one after another.

    Args:
        width: entries for each place: the token that stands there, then the likeliest in order.
        token_ids: int64 [places * width].
        values: float32 [places * width], natural logarithms; never above 0.
        ranks: int64 [places], of the token that stands there: 1 if no other is likelier.
    """

    width: int
    token_ids: NDArray[np.int64]
    values: NDArray[np.float32]
    ranks: NDArray[np.int64]

    def __len__(self) -> int:
        """Places."""
        return len(self.ranks)

    def part(self, first: int, last: int) -> LogprobColumns:
        """The places from ``first`` up to, not with, ``last``; these columns if that is all of them."""
        if first == 0 and last >= len(self):
            return self
        return LogprobColumns(
            width=self.width,
            token_ids=self.token_ids[first * self.width : last * self.width],
            values=self.values[first * self.width : last * self.width],
            ranks=self.ranks[first:last],
        )


def joined(parts: Sequence[LogprobColumns]) -> LogprobColumns:
    """The places of all parts, at least one, which are equally wide."""
    if len(parts) == 1:
        return parts[0]
    return LogprobColumns(
        width=parts[0].width,
        token_ids=np.concatenate([part.token_ids for part in parts]),
        values=np.concatenate([part.values for part in parts]),
        ranks=np.concatenate([part.ranks for part in parts]),
    )


def cut_like_tokens(given: dict[str, LogprobColumns], req_ids: Sequence[str]) -> dict[str, LogprobColumns]:
    """What belongs to the tokens that were entered.

    Args:
        given: by request, as the runner gave them.
        req_ids: the owner of each token that was entered; who is not among them has nothing.
    """
    if not given:
        return given
    counts = Counter(req_id for req_id in req_ids if req_id in given)
    return {req_id: given[req_id].part(0, count) for req_id, count in counts.items()}
