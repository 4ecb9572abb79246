"""The door: the one place where what users pass with a request is checked, before anything is held for it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any, cast

import msgspec
import numpy as np

from ..scheduler.errors import InvalidRequestError, NotBuiltError
from ..scheduler.params import OutputKind, SamplingParams
from ..scheduler.setting_types import shown
from .board import MARK
from .constraints import ConstraintCheck
from .conversation import Conversation
from .error_names import about
from .intake import LONG_PROMPT, Intake, Prompted
from .param_limits import ParamLimits
from .tokenizer import Tokenizer


class Door:
    """Makes a ``Prompted`` of what a user passes. Raises InvalidRequestError by name: what, got, needed, whose."""

    def __init__(
        self, intake: Intake, tokenizer: Tokenizer | None, limits: ParamLimits, constraints: ConstraintCheck
    ) -> None:
        self._intake, self._tokenizer = intake, tokenizer
        self._limits, self._constraints = limits, constraints
        self._numbers = itertools.count()

    def make_id(self, in_use: Callable[[str], bool]) -> str:
        """A request id that nobody uses."""
        made = (f"request-{number}" for number in self._numbers)
        return next(name for name in made if not in_use(name))

    def check(
        self,
        prompt: Any,
        params: Any,
        *,
        request_id: Any,
        priority: Any = 0,
        cache_salt: Any = None,
        adapter: Any = None,
        output_kind: OutputKind | None = None,
    ) -> Prompted:
        """Check all that takes no time; the intake does the rest. ``output_kind`` takes the place of the given one."""
        check_id(request_id)
        params = self.check_params(params, request_id)
        if output_kind is not None:
            params = msgspec.structs.replace(params, output_kind=output_kind)
        self.check_options(priority, cache_salt, adapter, request_id)
        return Prompted(
            request_id=request_id,
            keys=[],
            **self.check_prompt(prompt, request_id),
            params=params,
            priority=priority,
            cache_salt=cache_salt,
        )

    def check_options(self, priority: Any, cache_salt: Any, adapter: Any, request_id: str) -> None:
        """Check what says how a request, or a session, is to be served."""
        if not isinstance(priority, int) or isinstance(priority, bool):
            raise InvalidRequestError(f"priority is {shown(priority)}, needed is a whole number (request {request_id})")
        if cache_salt is not None:
            _check_text("cache_salt", cache_salt, "text or None", request_id)
        if adapter is not None:
            raise NotBuiltError(f"adapter={shown(adapter)} is not supported yet (request {request_id})")

    def check_prompt(self, prompt: Any, request_id: str) -> dict[str, Any]:
        """The prompt as fields of ``Prompted``; each token and message of long ones is looked at in the intake."""
        if isinstance(prompt, Conversation):
            with about(request_id):
                return self._check_conversation(prompt.listed())
        if isinstance(prompt, str):
            _check_text("prompt", prompt, "text", request_id)
            if self._tokenizer is None:
                raise InvalidRequestError(
                    f"prompt is text and the engine has no tokenizer, give token ids (request {request_id})"
                )
            return {"text": prompt}
        token_ids = _listed(prompt, request_id)
        self._intake.check_count(len(token_ids), request_id)
        if is_short := len(token_ids) <= LONG_PROMPT:
            token_ids = self._intake.checked_tokens(token_ids, request_id)
        return {"token_ids": token_ids, "is_checked": is_short}

    def _check_conversation(self, conversation: Conversation) -> dict[str, Any]:
        if self._tokenizer is None:
            raise InvalidRequestError("chat needs a tokenizer with a chat template, the engine has none")
        if conversation.is_long or self._tokenizer.has_slow_template:
            return {"conversation": conversation.copy()}
        return {"text": conversation.render(self._tokenizer), "add_special_tokens": False}

    def check_params(self, params: Any, request_id: str) -> SamplingParams:
        """The parameters, if what they ask for can be done with this model; None: the defaults."""
        if params is None:
            return SamplingParams()
        if not isinstance(params, SamplingParams):
            kind = type(params).__name__
            raise InvalidRequestError(f"params is {kind}, needed is SamplingParams (request {request_id})")
        self._constraints.refuse(params, request_id)
        if params.stop_strings and self._tokenizer is None:
            raise InvalidRequestError(f"stop strings need a tokenizer, the engine has none (request {request_id})")
        for stop in params.stop_strings:
            _check_text("stop", stop, "text", request_id)
        for word in params.bad_words or ():
            _check_text("bad_words", word, "text", request_id)
        self._limits.check(params, request_id)
        return params


def check_id(name: Any, what: str = "request id") -> None:
    """Raise InvalidRequestError for what cannot name a request, or a session."""
    if not isinstance(name, str) or not name or MARK in name:
        raise InvalidRequestError(f"{what} is {shown(name)}, needed is text that is not empty, without NUL")
    _check_text(what, name, "text", repr(name))


def _check_text(what: str, value: Any, needed: str, request_id: str) -> None:
    if not isinstance(value, str):
        raise InvalidRequestError(f"{what} is {shown(value)}, needed is {needed} (request {request_id})")
    if value.isascii():
        return
    try:
        value.encode()
    except UnicodeEncodeError as error:
        at = error.start
        raise InvalidRequestError(
            f"{what}[{at}] is {shown(value[at])}, half of a surrogate pair, which no UTF-8 can express "
            f"(request {request_id})"
        ) from None


def _listed(prompt: Any, request_id: str) -> list[Any]:
    """What should be token ids, as a list of our own."""
    no_series = getattr(prompt, "shape", None) == ()  # an array of no dimension only seems to be one
    if no_series or isinstance(prompt, bytes | bytearray | dict | set) or not hasattr(prompt, "__iter__"):
        kind = type(prompt).__name__  # pyright: ignore[reportUnknownArgumentType]
        raise InvalidRequestError(f"prompt is {kind}, needed is text or a list of token ids (request {request_id})")
    if isinstance(prompt, np.ndarray):
        array = cast("np.ndarray[Any, np.dtype[Any]]", prompt)
        return array.tolist() if array.ndim == 1 and array.dtype.kind in "iu" else list(array)
    return list(cast("Iterable[Any]", prompt))
