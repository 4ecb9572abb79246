"""Finds stop strings in a text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence

from ..scheduler.errors import InvalidRequestError


class StopTrie:
    """The automaton that finds all stop strings at once (Aho and Corasick, 1975), made as far as texts reach into it.

    A state is a beginning of stop strings, 0 the empty one. Making one costs nothing but a look at each string: a
    state appears when a text first comes to it, so a long stop string that no text begins is never walked. Searches
    on one thread may share it; the completions of a request do.

    Args:
        stops: the strings, none empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise InvalidRequestError("a stop string is empty")
        self.stops = list(stops)
        self._next: list[dict[str, int] | None] = []  # None: no text has left this state yet
        self._begun: list[list[int]] = []  # the stop strings that begin like this
        self._depth: list[int] = []
        self._back: list[int] = []  # the state of the longest proper suffix that has one
        self.found: list[int | None] = []  # the first named of the stop strings that end here
        self.open: list[int] = []  # length of the longest suffix that can still grow into a stop string
        self._add(list(range(len(self.stops))), depth=0, back=0)
        self.first = frozenset(stop[0] for stop in self.stops)

    def __len__(self) -> int:
        """States made so far."""
        return len(self._next)

    def step(self, state: int, character: str) -> int:
        """The state after one more character."""
        if self._next[state] is None:
            self._grow(state)
        while (after := self._children(state).get(character)) is None and state:
            state = self._back[state]
        return after or 0

    def _children(self, state: int) -> dict[str, int]:
        """Those of a state that has grown; then all it falls back to have grown too."""
        return self._next[state] or {}

    def _grow(self, state: int) -> None:
        """Make the states behind one, and first those behind all that it falls back to."""
        chain = [state]
        while state and self._next[state := self._back[state]] is None:
            chain.append(state)
        for one in reversed(chain):
            self._next[one] = self._made_children(one)

    def _made_children(self, state: int) -> dict[str, int]:
        depth, groups = self._depth[state], dict[str, list[int]]()
        for index in self._begun[state]:
            if len(stop := self.stops[index]) > depth:
                groups.setdefault(stop[depth], []).append(index)
        return {
            character: self._add(begun, depth + 1, self.step(self._back[state], character) if state else 0)
            for character, begun in groups.items()
        }

    def _add(self, begun: list[int], depth: int, back: int) -> int:
        state = len(self._next)
        self._next.append(None)
        self._begun.append(begun)
        self._depth.append(depth)
        self._back.append(back)
        ends = next((index for index in begun if len(self.stops[index]) == depth), None)
        goes_on = any(len(self.stops[index]) > depth for index in begun)
        self.found.append(_earlier(ends, self.found[back]) if state else None)
        self.open.append(depth if goes_on or not state else self.open[back])
        return state


class StopStrings:
    """Searches one text for all stop strings at once, one step a character.

    The match that is complete first wins, whatever the pieces; of several that are complete at the same character,
    the one named first. Only a suffix that could still become a stop string is held back.

    Args:
        stops: the strings, none empty; or their automaton, shared with other searches.
        include: the matched string stays in the text.
    """

    def __init__(self, stops: Sequence[str] | StopTrie, include: bool = False) -> None:
        self._trie = stops if isinstance(stops, StopTrie) else StopTrie(stops)
        self._include = include
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
        if self._state == 0 and self._trie.first.isdisjoint(text):
            return text, None
        pending = self._held + text
        for end, character in enumerate(text, len(self._held) + 1):
            self._state = self._trie.step(self._state, character)
            stop = self._trie.found[self._state]
            if stop is not None and active:
                return self._cut(pending, end, self._trie.stops[stop])
        return self._hold(pending)

    def finish(self) -> str:
        """The text held back, when the stream ended without a match."""
        held, self._held, self._state = self._held, "", 0
        return held

    def _cut(self, pending: str, end: int, stop: str) -> tuple[str, str]:
        self._matched, self._held = stop, ""
        return pending[: end if self._include else end - len(stop)], stop

    def _hold(self, pending: str) -> tuple[str, None]:
        keep = len(pending) - self._trie.open[self._state]
        self._held = pending[keep:]
        return pending[:keep], None


def _earlier(left: int | None, right: int | None) -> int | None:
    """The stop string that is named first, of those that are there."""
    return right if left is None else left if right is None else min(left, right)
