"""Text of a growing list of tokens, given out as it becomes certain."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from .tokenizer import Tokenizer

_decoder = codecs.getincrementaldecoder("utf-8")


class IncrementalDetokenizer:
    """Gives a stream's text in deltas that join to ``tokenizer.decode`` of all its tokens.

    A character whose bytes are spread over tokens waits for its last one: at most 3 bytes are held. Bytes that can
    no longer become a character give U+FFFD at once; those that still could, but end the stream, give one U+FFFD in
    ``finish``. The work for a token does not depend on how many came before.

    (The Rust library's ``DecodeStream`` costs as much on good text, but waits for ever on bytes that never become a
    character, and each further token then costs more than the last.)
    """

    __slots__ = ("_at_start", "_skip", "_tokenizer", "_utf8")

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._utf8 = _decoder("replace")
        self._at_start = tokenizer.strips_first_space

    def feed(self, ids: Iterable[int]) -> str:
        """The text that these tokens complete; often empty in the middle of a character."""
        data = self._tokenizer.join_bytes(ids, self._skip)
        if self._at_start and data:
            self._at_start = False
            data = self._tokenizer.strip_first(data)
        return self._utf8.decode(data)

    def finish(self) -> str:
        """What was held when the stream ended: "" or one U+FFFD."""
        return self._utf8.decode(b"", final=True)
