"""From bad words to the token sequences that may not come."""

from __future__ import annotations

import msgspec

from ..scheduler.params import SamplingParams
from .tokenizer import Tokenizer

TokenSequence = tuple[int, ...]


def with_token_ids(params: SamplingParams, tokenizer: Tokenizer | None) -> SamplingParams:
    """The parameters with ``bad_words`` as ``bad_words_token_ids``."""
    if not params.bad_words or tokenizer is None:
        return params
    sequences = [tuple(one) for one in params.bad_words_token_ids or ()]
    for word in params.bad_words:
        sequences += spellings(word, tokenizer)
    return msgspec.structs.replace(params, bad_words=None, bad_words_token_ids=tuple(dict.fromkeys(sequences)))


def spellings(word: str, tokenizer: Tokenizer) -> list[TokenSequence]:
    """A word's tokens at the beginning of a text, and inside it behind a space.

    As in vLLM the second counts only where the space is part of the first token: where it is a
    token of its own, the first spelling stands behind it.
    """
    plain = tuple(tokenizer.encode(word.lstrip(), add_special_tokens=False))
    spaced = tuple(tokenizer.encode(" " + word.lstrip(), add_special_tokens=False))
    differs = bool(plain and spaced) and spaced[0] != plain[0] and len(spaced) == len(plain)
    return [one for one in ([plain, spaced] if differs else [plain]) if one]
