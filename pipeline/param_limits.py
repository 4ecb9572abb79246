"""What sampling parameters may ask of this model and this runner; asked at the door."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..runner.runner import RunnerInfo
from ..scheduler.errors import InvalidRequestError, NotBuiltError
from ..scheduler.logit_params import ALL_TOKENS
from ..scheduler.params import SamplingParams

# parameter -> its value where it asks for nothing, and what a runner that honours it names among its capabilities
NEEDS: dict[str, tuple[tuple[Any, ...], str]] = {
    "top_p": ((1.0,), "sampling"),
    "top_k": ((0, -1), "sampling"),
    "min_p": ((0.0,), "sampling"),
    "presence_penalty": ((0.0,), "penalties"),
    "frequency_penalty": ((0.0,), "penalties"),
    "repetition_penalty": ((1.0,), "penalties"),
    "logit_bias": ((None, {}), "logit_bias"),
    "allowed_token_ids": ((None,), "allowed_token_ids"),
    "bad_words": ((None, ()), "bad_words"),
    "bad_words_token_ids": ((None, ()), "bad_words"),
    "logprobs": ((None,), "logprobs"),
    "prompt_logprobs": ((None,), "prompt_logprobs"),
}


class ParamLimits:
    """Refuses by name what the runner would not honour and what the model does not have.

    Args:
        runner: its class, for error texts.
        max_logprobs: most log-probabilities beside the token's own; ALL_TOKENS: no limit but the vocabulary.
        has_tokenizer: whether words can be made tokens.
    """

    def __init__(self, info: RunnerInfo, runner: str, *, max_logprobs: int, has_tokenizer: bool) -> None:
        self._info, self._runner = info, runner
        self._max_logprobs = info.vocab_size if max_logprobs == ALL_TOKENS else max_logprobs
        self._has_tokenizer = has_tokenizer

    def check(self, params: SamplingParams, request_id: str) -> None:
        """Raise NotBuiltError for what the runner does not honour, InvalidRequestError for what no runner could."""
        self._check_tokens(params, request_id)
        for name in ("logprobs", "prompt_logprobs"):
            self._check_logprobs(name, getattr(params, name), request_id)
        for name, (nothing, capability) in NEEDS.items():
            value = getattr(params, name)
            if value not in nothing and capability not in self._info.capabilities:
                raise NotBuiltError(
                    f"{name}={value!r} needs {capability!r}, which {self._runner} cannot do (request {request_id})"
                )
        if params.bad_words and not self._has_tokenizer:
            raise InvalidRequestError(
                f"bad_words needs a tokenizer, the engine has none: give bad_words_token_ids (request {request_id})"
            )

    def _check_tokens(self, params: SamplingParams, request_id: str) -> None:
        self._check_below("stop_token_ids", params.stop_token_ids or (), request_id)
        self._check_below("logit_bias token", params.logit_bias or (), request_id)
        self._check_below("allowed_token_ids", params.allowed_token_ids or (), request_id)
        for sequence in params.bad_words_token_ids or ():
            self._check_below("bad_words_token_ids", sequence, request_id)

    def _check_below(self, what: str, tokens: Iterable[int], request_id: str) -> None:
        highest = max(tokens, default=0)
        if highest >= self._info.vocab_size:
            raise InvalidRequestError(
                f"{what} is {highest}, limits are 0 and {self._info.vocab_size - 1} (request {request_id})"
            )

    def _check_logprobs(self, name: str, count: int | None, request_id: str) -> None:
        if count is None:
            return
        wanted = self._info.vocab_size if count == ALL_TOKENS else count
        if wanted > self._max_logprobs:
            raise InvalidRequestError(
                f"{name} is {count}, limit is {self._max_logprobs} (max_logprobs of the engine; request {request_id})"
            )
