"""What the door asks of a constrained request, and what its masks are made for."""

from __future__ import annotations

import os
from importlib.util import find_spec

from ..runner.compile_pool import CANNOT
from ..runner.grammar_spec import Vocabulary, spec_of
from ..runner.runner import RunnerInfo
from ..scheduler.errors import InvalidRequestError, NotBuiltError
from ..scheduler.params import SamplingParams
from .error_names import about
from .tokenizer import Tokenizer

# Each of these may leave no token at all where the grammar allows few.
_EXCLUDED = ("ignore_eos", "min_tokens", "allowed_token_ids", "bad_words", "bad_words_token_ids")
# Packages that compile grammars, and how they are installed: xgrammar alone would bring a GPU's.
_NEEDED = {
    "xgrammar": "--no-deps xgrammar apache-tvm-ffi",
    "tvm_ffi": "--no-deps apache-tvm-ffi",
    "pydantic": "pydantic",
    "transformers": "transformers",
}


def stop_token_ids(info: RunnerInfo) -> list[int]:
    """Tokens that end a constrained text: those that end any text."""
    return list(info.eos_token_ids)


def vocabulary_of(tokenizer: Tokenizer, info: RunnerInfo) -> Vocabulary:
    """Bytes of all tokens; control and special tokens have none, so no constrained text holds them."""
    count = min(tokenizer.vocab_size, info.vocab_size)
    hidden = tokenizer.special_ids.union(info.eos_token_ids)
    return Vocabulary(
        tokens=[b"" if token in hidden else tokenizer.token_bytes(token) for token in range(count)],
        width=info.vocab_size,
        stop_token_ids=stop_token_ids(info),
    )


class ConstraintCheck:
    """Refuses constrained requests that can never be served. The grammar itself is looked at where it is compiled."""

    def __init__(self, info: RunnerInfo, tokenizer: Tokenizer | None) -> None:
        self._info = info
        self._reason = _why_not(info, tokenizer)

    def refuse(self, params: SamplingParams, request_id: str) -> None:
        """Raise InvalidRequestError for a constraint that cannot be honoured."""
        structured = params.structured_output
        if structured is None:
            return
        if self._reason is not None:
            raise NotBuiltError(f"structured_output cannot be honoured: {self._reason} (request {request_id})")
        for name in _EXCLUDED:
            if value := getattr(params, name):
                raise InvalidRequestError(
                    f"{name}={value!r} does not go together with structured_output: "
                    f"the two could leave no token to choose (request {request_id})"
                )
        end, limit = structured.reasoning_end_token_id, self._info.vocab_size
        if end is not None and (end >= limit or end in self._info.eos_token_ids):
            raise InvalidRequestError(
                f"reasoning_end_token_id is {end}, needed is a token below {limit} that ends no text "
                f"(request {request_id})"
            )
        with about(request_id):
            spec_of(structured)


def _why_not(info: RunnerInfo, tokenizer: Tokenizer | None) -> str | None:
    if "grammars" not in info.capabilities:
        return "the runner knows no masks"
    if tokenizer is None:
        return "the engine has no tokenizer"
    if not info.eos_token_ids:
        return "the model has no end token"
    for name, command in _NEEDED.items():
        if find_spec(name) is None:
            return f"{name} is not installed (pip install {command})"
    return None if hasattr(os, "fork") else CANNOT
