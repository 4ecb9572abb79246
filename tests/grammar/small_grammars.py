"""Grammars over a small vocabulary of bytes, compiled in this process."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import numpy as np

from callboard.runner.grammar_spec import GrammarSpec, Vocabulary, spec_of
from callboard.runner.mask_words import allowed_tokens
from callboard.runner.request_matcher import RequestMatcher
from callboard.scheduler import StructuredOutput

END = 0
THOUGHT = 1  # ends a reasoning
# First bytes after which xgrammar takes some second bytes that UTF-8 does not have, where a grammar, a free string or a
# long repeat is told by what is not in it. Walks take the other bytes; characters that begin so stand in pieces.
LOOSE = (0xE0, 0xED, 0xF0, 0xF4)
_PIECES = ["🎂".encode(), b'{"', b'":', b'": "', b'", "', b"}}", b'"}', b"true", b"  ", b"\n  "]
VOCABULARY = Vocabulary(
    tokens=[b"", b"", *(bytes([byte]) for byte in range(256)), *_PIECES],
    width=2 + 256 + len(_PIECES) + 5,  # logits wider than the vocabulary
    stop_token_ids=[END],
)
TOKENS = VOCABULARY.tokens


@cache
def _backend() -> tuple[Any, Any]:
    from callboard.runner import xgrammar_backend

    return xgrammar_backend, xgrammar_backend.tokenizer_info(VOCABULARY)


@cache
def _compiled(spec: GrammarSpec) -> Any:
    backend, info = _backend()
    return backend.load(backend.compile_spec(spec, info).serialize_json().encode(), info)


def matcher(reasoning_end: int | None = None, **constraint: Any) -> RequestMatcher:
    """At the beginning of a constraint, given as a field of StructuredOutput."""
    backend, _ = _backend()
    return RequestMatcher(backend.new_matcher(_compiled(spec_of(StructuredOutput(**constraint)))), reasoning_end)


def allows(text: str | bytes, **constraint: Any) -> bool:
    """Whether a constraint takes a text, byte by byte, and may end behind it."""
    one = matcher(**constraint)
    data = text.encode() if isinstance(text, str) else text
    return all(one.accept(2 + byte) for byte in data) and one.accept(END)


def may_begin(data: bytes, structured: StructuredOutput) -> bool:
    """Whether a constraint takes some bytes, one by one, as the beginning of a text."""
    one = RequestMatcher(_backend()[0].new_matcher(_compiled(spec_of(structured))), None)
    return all(one.accept(2 + byte) for byte in data)


def fill(matchers: Any, bitmask: Any, rows: Any) -> None:
    """Fill masks, as the engine does."""
    _backend()[0].BatchFill()(matchers, bitmask, rows)


def ids(text: str) -> list[int]:
    """A text byte by byte."""
    return [2 + byte for byte in text.encode()]


def text(token_ids: list[int]) -> bytes:
    """The bytes of tokens; the end has none, nor have logits without a token."""
    return b"".join(TOKENS[token] for token in token_ids if token < len(TOKENS))


def walk(one: RequestMatcher, seed: int, most: int = 400) -> bytes | None:
    """A random text of a grammar, any allowed token as likely as any other; None if it does not end."""
    dice, out = random.Random(seed), []
    mask = np.zeros((1, -(-VOCABULARY.width // 32)), np.int32)
    for _ in range(most):
        fill([one.native], mask, [0])
        allowed = allowed_tokens(mask[0].view(np.uint32), VOCABULARY.width).tolist()
        assert allowed, f"nothing may follow {text(out)!r}"
        # An end is taken when it may be: else most walks would not end.
        token = END if END in allowed else dice.choice(_structure_first(allowed, dice))
        assert one.accept(token)
        if token == END:
            return text(out)
        out.append(token)
    return None


def _structure_first(allowed: list[int], dice: random.Random) -> list[int]:
    """Now and then only quotes and closing brackets, where one is allowed, so that strings and lists end."""
    allowed = [token for token in allowed if len(TOKENS[token]) != 1 or TOKENS[token][0] not in LOOSE]
    closing = [token for token in allowed if TOKENS[token] in (b'"', b"}", b"]", b'"}')]
    return closing if closing and dice.random() < 0.3 else allowed


def as_json(data: bytes) -> Any:
    """What a text says in JSON."""
    return json.loads(data.decode())
