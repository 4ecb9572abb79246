"""Blocks that were given up while steps under way may still touch them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import chain

from .block_pool import BlockPool
from .errors import BooksError


class Fences:
    """Gives blocks back to the pool as soon as the last step that may touch them has ended."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._completed = 0
        self._waiting: list[tuple[int, list[int]]] = []

    @property
    def num_blocks(self) -> int:
        """Blocks that wait; one that two requests gave up counts twice."""
        return sum(len(blocks) for _, blocks in self._waiting)

    def give_back(self, blocks: list[int], fence: int) -> None:
        """Release blocks after step ``fence``; now, if it has ended."""
        if fence <= self._completed:
            self._pool.release(blocks)
        elif blocks:
            self._waiting.append((fence, blocks))

    def has_ended(self, step: int) -> bool:
        """Whether a step's result was applied."""
        return step <= self._completed

    def open(self, completed: int) -> None:
        """Release what waited for steps up to ``completed``."""
        self._completed = completed
        if not self._waiting:
            return
        for fence, blocks in self._waiting:
            if fence <= completed:
                self._pool.release(blocks)
        self._waiting = [entry for entry in self._waiting if entry[0] > completed]

    def num_on_their_way(self) -> int:
        """Waiting blocks that will be free, since nobody else holds them."""
        return self._pool.num_held_only(Counter(chain.from_iterable(blocks for _, blocks in self._waiting)))

    def waiting(self) -> Iterable[list[int]]:
        """The blocks that wait."""
        return (blocks for _, blocks in self._waiting)

    def check(self) -> None:
        """Raise BooksError if blocks wait for a step that has ended."""
        for fence, blocks in self._waiting:
            if fence <= self._completed:
                raise BooksError(f"{len(blocks)} blocks wait for step {fence}, step {self._completed} has ended")
