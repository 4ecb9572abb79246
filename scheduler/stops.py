"""When a request ends by itself: the rules, in the order in which they are asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .messages import Finished
from .request import FinishReason, Request


class StopRule(Protocol):
    """Looks at a request after each of its tokens; an extension point."""

    def applies_to(self, request: Request) -> bool:
        """Whether the rule wants to see this request's tokens at all."""
        ...

    def check(self, request: Request, output_token_ids: NDArray[np.int32]) -> Finished | None:
        """The request's end, if the last of these tokens is its last; the array is a view and not to be written."""
        ...


class StopTokens:
    """Ends a request at one of its own stop token ids, and names the token."""

    def applies_to(self, request: Request) -> bool:
        return bool(request.sampling_params.stop_token_ids)

    def check(self, request: Request, output_token_ids: NDArray[np.int32]) -> Finished | None:
        last = int(output_token_ids[-1])
        if last in (request.sampling_params.stop_token_ids or ()):
            return Finished(reason=FinishReason.STOP, stop_reason=last)
        return None


def check_token(
    request: Request,
    output_token_ids: NDArray[np.int32],
    *,
    at_limit: bool,
    eos_token_ids: tuple[int, ...],
    rules: Sequence[StopRule],
) -> Finished | None:
    """The end of a request after its last token: end token, stop rules, then length.

    The first rule is the request's stop tokens; a stop that is also the last permitted token
    is a stop.
    """
    if int(output_token_ids[-1]) in eos_token_ids and not request.sampling_params.ignore_eos:
        return Finished(reason=FinishReason.STOP)
    for rule in rules:
        if rule.applies_to(request) and (end := rule.check(request, output_token_ids)):
            return end
    return Finished(reason=FinishReason.LENGTH) if at_limit else None
