"""The door: the one place where what users pass with a request is checked, before anything is held for it."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import Any

import msgspec

from ..scheduler.errors import InvalidRequestError, NotBuiltError
from ..scheduler.params import OutputKind, SamplingParams
from .board import MARK
from .constraints import ConstraintCheck
from .intake import Intake, Prompted
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
        add_special_tokens: bool = True,
        output_kind: OutputKind | None = None,
    ) -> Prompted:
        """Check everything that can be checked without tokenizing; ``output_kind`` takes the place of the given one."""
        check_id(request_id)
        params = self.check_params(params, request_id)
        if output_kind is not None:
            params = msgspec.structs.replace(params, output_kind=output_kind)
        self.check_options(priority, cache_salt, adapter, request_id)
        text, token_ids = self.check_prompt(prompt, request_id)
        return Prompted(
            request_id=request_id,
            keys=[],
            text=text,
            token_ids=token_ids,
            params=params,
            priority=priority,
            cache_salt=cache_salt,
            add_special_tokens=add_special_tokens,
        )

    def check_options(self, priority: Any, cache_salt: Any, adapter: Any, request_id: str) -> None:
        """Check what says how a request, or a session, is to be served."""
        if not isinstance(priority, int) or isinstance(priority, bool):
            raise InvalidRequestError(f"priority is {priority!r}, needed is a whole number (request {request_id})")
        if cache_salt is not None:
            _check_text("cache_salt", cache_salt, "text or None", request_id)
        if adapter is not None:
            raise NotBuiltError(f"adapter={adapter!r} is not supported yet (request {request_id})")

    def check_prompt(self, prompt: Any, request_id: str) -> tuple[str | None, list[int] | None]:
        """The prompt as text or as token ids; the other is None."""
        if isinstance(prompt, str):
            _check_text("prompt", prompt, "text", request_id)
            if self._tokenizer is None:
                raise InvalidRequestError(
                    f"prompt is text and the engine has no tokenizer, give token ids (request {request_id})"
                )
            return prompt, None
        token_ids = _token_ids(prompt, request_id)
        self._intake.check_prompt(token_ids, request_id)
        return None, token_ids

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
        raise InvalidRequestError(f"{what} is {name!r}, needed is text that is not empty, without NUL")
    _check_text(what, name, "text", name)


def _check_text(what: str, value: Any, needed: str, request_id: str) -> None:
    if not isinstance(value, str):
        raise InvalidRequestError(f"{what} is {value!r}, needed is {needed} (request {request_id})")
    if value.isascii():
        return
    try:
        value.encode()
    except UnicodeEncodeError as error:
        at = error.start
        raise InvalidRequestError(
            f"{what}[{at}] is {value[at]!r}, half of a surrogate pair, which no UTF-8 can express "
            f"(request {request_id!r})"
        ) from None


def _token_ids(prompt: Any, request_id: str) -> list[int]:
    if isinstance(prompt, bytes | bytearray | dict | set) or not hasattr(prompt, "__iter__"):
        kind = type(prompt).__name__  # pyright: ignore[reportUnknownArgumentType]
        raise InvalidRequestError(f"prompt is {kind}, needed is text or a list of token ids (request {request_id})")
    tokens: list[Any] = list(prompt)
    if set(map(type, tokens)) == {int}:
        return tokens  # 100,000 tokens in 3 ms, by the loop below in 10
    return [_token_id(place, token, request_id) for place, token in enumerate(tokens)]


def _token_id(place: int, token: Any, request_id: str) -> int:
    if type(token) is int:
        return token
    try:
        # An array of one number counts as a number for `index`: a prompt of two dimensions is refused first.
        if not isinstance(token, bool) and getattr(token, "shape", ()) == ():
            return operator.index(token)
    except TypeError:
        pass
    raise InvalidRequestError(f"prompt[{place}] is {token!r}, needed is a token id (request {request_id})")
