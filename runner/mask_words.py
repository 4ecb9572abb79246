"""Masks as words: which row is whose, and which tokens it allows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..scheduler.errors import BooksError
from ..scheduler.plan import GrammarOutput, IntArray, SchedulerOutput

MaskWords = NDArray[np.uint32]
_BITS = np.arange(32, dtype=np.uint32)


def masks_of_samples(masks: GrammarOutput, plan: SchedulerOutput) -> list[tuple[int, MaskWords]]:
    """Each constrained request's row of words, for its next output: beside its place among the plan's samples.

    Takes as long as there are constrained requests, however many others run.

    Raises BooksError for masks of another step, or of a place that is not the request's next one.
    """
    if masks.step != plan.step:
        raise BooksError(f"masks of step {masks.step} came for step {plan.step}")
    words = np.frombuffer(masks.bitmask, np.uint32).reshape(len(masks.req_ids), masks.width)
    next_ones = plan.num_outputs[masks.places].tolist()
    for req_id, place, position, wanted in zip(masks.req_ids, masks.places, masks.positions, next_ones, strict=True):
        if plan.req_ids[place] != req_id:
            raise BooksError(f"a mask stands for entry {place}, which is {plan.req_ids[place]} (request {req_id})")
        if position != wanted:
            raise BooksError(f"a mask is for output {position}, the next is {wanted} (request {req_id})")
    return list(zip(plan.sample_of(np.array(masks.places, np.int64)).tolist(), words, strict=True))


def allowed_tokens(words: MaskWords, count: int) -> IntArray:
    """The tokens below ``count`` that a mask allows, in order. Only words that allow one are unpacked."""
    places = np.flatnonzero(words)
    bits = (words[places, None] >> _BITS) & np.uint32(1)
    word, bit = np.nonzero(bits)
    tokens = places[word] * 32 + bit
    return tokens[: np.searchsorted(tokens, count)]
