"""Masks as words: which row is whose, and which tokens it allows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ..scheduler.errors import BooksError
from ..scheduler.plan import GrammarOutput, IntArray, SchedulerOutput

Words = NDArray[np.uint32]
_BITS = np.arange(32, dtype=np.uint32)


def masks_by_request(masks: GrammarOutput, plan: SchedulerOutput) -> Mapping[str, Words]:
    """Each constrained request's row of words, for its next output.

    Raises BooksError for masks of another step, or of a place that is not the request's next one.
    """
    if masks.step != plan.step:
        raise BooksError(f"masks of step {masks.step} came for step {plan.step}")
    words = np.frombuffer(masks.bitmask, np.uint32).reshape(len(masks.req_ids), masks.width)
    found = dict(zip(masks.req_ids, words, strict=True))
    positions = dict(zip(masks.req_ids, masks.positions, strict=True))
    for req_id, position in zip(plan.req_ids, plan.num_outputs.tolist(), strict=True):
        if positions.get(req_id, position) != position:
            raise BooksError(f"a mask is for output {positions[req_id]}, the next is {position} (request {req_id})")
    return found


def allowed_tokens(words: Words, count: int) -> IntArray:
    """The tokens below ``count`` that a mask allows, in order. Only words that allow one are unpacked."""
    places = np.flatnonzero(words)
    bits = (words[places, None] >> _BITS) & np.uint32(1)
    word, bit = np.nonzero(bits)
    tokens = places[word] * 32 + bit
    return tokens[: np.searchsorted(tokens, count)]
