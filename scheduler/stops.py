"""When a request ends by itself: the rules, in the order in which they are asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast, runtime_checkable

import msgspec
import numpy as np
from numpy.typing import NDArray

from .errors import ConfigError
from .messages import Fault, Finished
from .repetition import REPEATED
from .request import FinishReason, Request
from .request_state import RequestState
from .setting_types import shown


@runtime_checkable
class StopRule(Protocol):
    """Looks at a request after each of its tokens; an extension point.

    A rule decides by itself whether ``min_tokens`` holds it up. It is called in the scheduler's
    turn and must not block; one that raises ends its request with an error, and nobody else's.
    """

    def applies_to(self, request: Request) -> bool:
        """Whether the rule wants to see this request's tokens at all."""
        ...

    def check(self, request: Request, output_token_ids: NDArray[np.int32]) -> Finished | None:
        """The request's end, if the last of these tokens is its last; the array is a view and not to be written."""
        ...


def checked_rules(rules: Sequence[StopRule]) -> list[StopRule]:
    """The rules as a list. Raises ConfigError for what is none."""
    if not isinstance(rules, list | tuple):
        raise ConfigError(f"stop_rules is {shown(rules)}, needed is a list of objects with the methods of StopRule")
    for rule in rules:
        if not isinstance(rule, StopRule):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"a stop rule is {shown(rule)}, needed is an object with the methods of StopRule")
    return list(rules)


def as_end(answer: object) -> Finished | None:
    """What a rule answered, its reason one of FinishReason. Raises ConfigError for what a rule may not answer."""
    if answer is None:
        return None
    if not isinstance(answer, Finished) or answer.reason not in tuple(FinishReason):
        raise ConfigError(f"check gave {shown(answer)}, needed is None or Finished with a reason of FinishReason")
    stop_reason, error = cast("tuple[Any, Any]", (answer.stop_reason, answer.error))
    if not isinstance(stop_reason, int | str | None) or not isinstance(error, str | None):
        raise ConfigError(f"check gave {shown(answer)}, needed are a stop_reason of int or text and an error of text")
    # Plain text, equal to a reason, will do. Whose fault an error is, a rule does not choose.
    reason = FinishReason(answer.reason)
    fault: Fault = "rule" if reason is FinishReason.ERROR else "request"
    return msgspec.structs.replace(answer, reason=reason, fault=fault)


def check_token(
    state: RequestState,
    output_token_ids: NDArray[np.int32],
    *,
    at_limit: bool,
    eos_token_ids: tuple[int, ...],
    rules: Sequence[StopRule],
) -> Finished | None:
    """The end of a request after its last token, if this is one.

    In this order: end token, the request's stop tokens, rules of the user, length; then, not
    before ``min_tokens``, repetition. So a stop that is also the last permitted token is a stop.
    An end or stop token ends the request whenever it comes: below ``min_tokens`` the sampler
    does not choose it.
    """
    request, params, last = state.request, state.request.sampling_params, int(output_token_ids[-1])
    if last in eos_token_ids and not params.ignore_eos:
        return Finished(reason=FinishReason.STOP)
    if last in (params.stop_token_ids or ()):
        return Finished(reason=FinishReason.STOP, stop_reason=last)
    for rule in rules:
        if rule.applies_to(request) and (end := as_end(rule.check(request, output_token_ids))):
            return end
    if at_limit:
        return Finished(reason=FinishReason.LENGTH)
    if state.repetition is None or len(output_token_ids) < params.min_tokens:
        return None
    return REPEATED if state.repetition.repeats(output_token_ids) else None
