"""Finds stop strings in a text that arrives in pieces."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ..scheduler.errors import InvalidRequestError


class StopStrings:
    """Searches for all stop strings at once, one step a character (Aho and Corasick, 1975).

    The match that is complete first wins, whatever the pieces; of several that are complete at the same character,
    the one named first. Only a suffix that could still become a stop string is held back.

    Args:
        stops: the strings, none empty.
        include: the matched string stays in the text.
    """

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        if not all(stops):
            raise InvalidRequestError("a stop string is empty")
        self._stops = list(stops)
        self._include = include
        self._build()
        self._state = 0
        self._held = ""
        self._matched: str | None = None

    def feed(self, text: str, active: bool = True) -> tuple[str, str | None]:
        """Take in new text; returns what can be given out and the stop string that it completes, if any.

        Args:
            active: False ignores stop strings that this text completes (the request is below its minimum); one that
                it begins still counts when later text completes it.
        """
        if self._matched is not None:
            return "", self._matched
        if self._state == 0 and self._first.isdisjoint(text):
            return text, None
        pending = self._held + text
        for end, character in enumerate(text, len(self._held) + 1):
            self._state = self._step(self._state, character)
            stop = self._found[self._state]
            if stop is not None and active:
                return self._cut(pending, end, self._stops[stop])
        return self._hold(pending)

    def finish(self) -> str:
        """The text held back, when the stream ended without a match."""
        held, self._held, self._state = self._held, "", 0
        return held

    def _cut(self, pending: str, end: int, stop: str) -> tuple[str, str]:
        self._matched, self._held = stop, ""
        return pending[: end if self._include else end - len(stop)], stop

    def _hold(self, pending: str) -> tuple[str, None]:
        keep = len(pending) - self._open[self._state]
        self._held = pending[keep:]
        return pending[:keep], None

    def _step(self, state: int, character: str) -> int:
        while state and character not in self._next[state]:
            state = self._back[state]
        return self._next[state].get(character, 0)

    def _build(self) -> None:
        """States are prefixes of stop strings; 0 is the empty one."""
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._found: list[int | None] = [None]  # the first named of the stop strings that end here
        for index, stop in enumerate(self._stops):
            self._add(index, stop)
        self._first = frozenset(self._next[0])
        self._link()

    def _add(self, index: int, stop: str) -> None:
        state = 0
        for character in stop:
            if character not in self._next[state]:
                self._next[state][character] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._found.append(None)
            state = self._next[state][character]
        if self._found[state] is None:
            self._found[state] = index

    def _link(self) -> None:
        """For each state its longest proper suffix that is a state (``_back``), nearest to the root first."""
        self._back = [0] * len(self._next)
        self._open = [0] * len(self._next)  # length of the longest suffix that can still grow into a stop string
        queue = deque([0])
        while queue:
            state = queue.popleft()
            self._open[state] = self._depth[state] if self._next[state] else self._open[self._back[state]]
            for character, after in self._next[state].items():
                self._back[after] = self._step(self._back[state], character) if state else 0
                self._found[after] = _earlier(self._found[after], self._found[self._back[after]])
                queue.append(after)


def _earlier(left: int | None, right: int | None) -> int | None:
    """The stop string that is named first, of those that are there."""
    return right if left is None else left if right is None else min(left, right)
