"""Compiled grammars that were used before, as many as fit."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import msgspec

from ..scheduler.errors import BooksError
from .grammar_spec import GrammarSpec


class GrammarCacheStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of the compiled grammars that are kept, since the start where not said otherwise."""

    num_grammars: int = 0  # kept now
    num_bytes: int = 0  # theirs
    num_hits: int = 0  # constraints whose grammar was there
    num_misses: int = 0  # constraints that had to be compiled, those that were refused included


class GrammarCache:
    """Forgets the least recently used first. One cache serves one vocabulary, so that is not in the key.

    Args:
        max_bytes: of all grammars in it together; a larger one is not kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._found: OrderedDict[GrammarSpec, tuple[Any, int]] = OrderedDict()
        self.num_bytes = self.num_hits = self.num_misses = 0

    def __len__(self) -> int:
        return len(self._found)

    def get(self, spec: GrammarSpec) -> Any | None:
        """A compiled grammar, or None."""
        found = self._found.get(spec)
        if found is None:
            self.num_misses += 1
            return None
        self.num_hits += 1
        self._found.move_to_end(spec)
        return found[0]

    def put(self, spec: GrammarSpec, compiled: Any, size: int) -> None:
        """Keep a grammar of this many bytes."""
        if spec in self._found or size > self._max_bytes:
            return
        self._found[spec] = (compiled, size)
        self.num_bytes += size
        while self.num_bytes > self._max_bytes:
            _, (_, old) = self._found.popitem(last=False)
            self.num_bytes -= old

    def statistics(self) -> GrammarCacheStatistics:
        """Counts as they are now."""
        return GrammarCacheStatistics(
            num_grammars=len(self._found),
            num_bytes=self.num_bytes,
            num_hits=self.num_hits,
            num_misses=self.num_misses,
        )

    def check(self) -> None:
        """Raise BooksError unless the bytes are those of the grammars, and no more than may be."""
        held = sum(size for _, size in self._found.values())
        if held != self.num_bytes or held > self._max_bytes:
            raise BooksError(f"grammars of {held} bytes are kept, {self.num_bytes} are counted of {self._max_bytes}")
