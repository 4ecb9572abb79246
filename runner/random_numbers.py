"""Random numbers that depend on nothing but a request's seed, the place of its token, and which of several they are.

A counter-based generator: each argument is mixed in by the finalizer of SplitMix64 (Steele, Lea and
Flood 2014, "Fast splittable pseudorandom number generators"). There is no state to keep, so batches,
chunks and preemptions cannot disturb it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..scheduler.plan import IntArray

Keys = NDArray[np.uint64]


def keys_of(seeds: Keys, positions: Sequence[int] | IntArray) -> Keys:
    """One key for each token that is to be drawn; ``positions`` count a request's outputs."""
    state = _mix(seeds.astype(np.uint64) + _GOLDEN)
    return _mix(state + (np.asarray(positions).astype(np.uint64) + np.uint64(1)) * _GOLDEN)


def uniform(keys: Keys, number: int = 0) -> NDArray[np.float64]:
    """For each key one number in [0, 1); ``number`` gives others."""
    state = _mix(keys + np.uint64((number + 1) * int(_GOLDEN) % 2**64))
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(state: Keys) -> Keys:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
