"""Compiled grammars that were used before, as many as fit."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from .grammar_spec import GrammarSpec


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
