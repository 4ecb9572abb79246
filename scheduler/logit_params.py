"""Ranges of the sampling parameters that change logits or ask for log-probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from .errors import InvalidRequestError
from .ranges import TOKEN_LIMIT, number, whole
from .setting_types import shown

LARGEST_PENALTY = 2.0
# Logits are divided by these. The limits keep what any model gives far from what float32 can hold.
LEAST_TEMPERATURE, LARGEST_TEMPERATURE = 1e-6, 100.0
LEAST_REPETITION, LARGEST_REPETITION = 1e-6, 1e6
LARGEST_BIAS = 100.0
ALL_TOKENS = -1  # as a count of log-probabilities


def check_temperature(temperature: object) -> None:
    """Raise InvalidRequestError unless it is 0 or within its range."""
    number("temperature", temperature, 0.0, LARGEST_TEMPERATURE)
    if temperature != 0:
        number("temperature", temperature, LEAST_TEMPERATURE, LARGEST_TEMPERATURE)


def check_penalties(presence: object, frequency: object, repetition: object) -> None:
    """Raise InvalidRequestError for a penalty out of its range."""
    number("presence_penalty", presence, -LARGEST_PENALTY, LARGEST_PENALTY)
    number("frequency_penalty", frequency, -LARGEST_PENALTY, LARGEST_PENALTY)
    number("repetition_penalty", repetition, LEAST_REPETITION, LARGEST_REPETITION)


def check_logprobs(name: str, count: object) -> None:
    """Raise InvalidRequestError unless it is None, a count, or -1, which stands for the whole vocabulary."""
    if count is not None:
        whole(name, count, ALL_TOKENS, TOKEN_LIMIT)


def checked_bias(bias: Any) -> dict[int, float] | None:
    """A copy of token id -> what is added to its logit. Raises InvalidRequestError for other forms and ranges."""
    if bias is None:
        return None
    if not isinstance(bias, Mapping):
        raise InvalidRequestError(f"logit_bias is {shown(bias)}, needed is a dict of token ids and numbers")
    pairs = cast("Mapping[Any, Any]", bias)
    for token, value in pairs.items():
        whole("logit_bias token", token, 0, TOKEN_LIMIT)
        number(f"logit_bias[{token}]", value, -LARGEST_BIAS, LARGEST_BIAS)
    return dict(pairs)


def checked_tokens(name: str, tokens: Any) -> tuple[int, ...] | None:
    """A copy of token ids, at least one. Raises InvalidRequestError for other forms and ranges."""
    if tokens is None:
        return None
    listed = _listed(name, tokens, "a list of token ids")
    if not listed:
        raise InvalidRequestError(f"{name} is empty, at least 1 token id is needed")
    for token in listed:
        whole(name, token, 0, TOKEN_LIMIT)
    return tuple(listed)


def checked_sequences(name: str, sequences: Any) -> tuple[tuple[int, ...], ...] | None:
    """A copy of token sequences, none empty. Raises InvalidRequestError for other forms and ranges."""
    if sequences is None:
        return None
    listed = _listed(name, sequences, "a list of lists of token ids")
    return tuple(checked_tokens(name, sequence) or () for sequence in listed)


def checked_words(name: str, words: Any) -> tuple[str, ...] | None:
    """A copy of strings, none empty. Raises InvalidRequestError for other forms."""
    if words is None:
        return None
    listed = _listed(name, words, "a list of strings that are not empty")
    if not all(isinstance(word, str) and word.strip() for word in listed):
        raise InvalidRequestError(f"{name} is {shown(words)}, needed is a list of strings that are not empty")
    return tuple(listed)


def _listed(name: str, values: Any, needed: str) -> Sequence[Any]:
    if isinstance(values, list | tuple):
        return cast("Sequence[Any]", values)
    raise InvalidRequestError(f"{name} is {shown(values)}, needed is {needed}")
