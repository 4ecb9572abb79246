"""What a compiler of grammars answers, and what is worth telling of what native code prints."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from .grammar_spec import GrammarSpec


class Compiled(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a ``GrammarSpec``: the grammar's bytes, or why there is none."""

    payload: bytes = b""
    error: str | None = None


Compile = Callable[[GrammarSpec], bytes]


def first_line(text: str) -> str:
    """The message without the native code's time and place."""
    line = next((line for line in text.splitlines() if line.strip()), "")
    return line.partition(": ")[2] if line.startswith("[") and ".cc:" in line else line


def first_warning(text: str) -> str | None:
    """The first thing that the compiler says it will not honour: a constraint is never dropped in silence."""
    for line in text.splitlines():
        if "Warning: " in line:
            return line.partition("Warning: ")[2]
    return None
