"""Regular expressions as Python's ``re`` reads them, parsed to a tree; what has no place in a grammar is refused.

``re`` itself judges whether a pattern is well formed, so only patterns that it takes are parsed here. Matched is always
the whole text, so lazy repeats mean the same as greedy ones, and groups only group.
"""

from __future__ import annotations

import re
import unicodedata
import warnings
from typing import NoReturn

import msgspec

from ..scheduler.errors import InvalidRequestError
from .code_points import EVERY, Ranges, ascii_class, of, unicode_class, union, without


class Characters(msgspec.Struct, frozen=True):
    """One character out of a set."""

    ranges: Ranges


class Repeat(msgspec.Struct, frozen=True):
    """A node a number of times; ``most`` None: without limit."""

    node: Node
    least: int
    most: int | None


class Alternatives(msgspec.Struct, frozen=True):
    """One of several sequences of nodes."""

    branches: tuple[tuple[Node, ...], ...]


Node = Characters | Repeat | Alternatives

_CATEGORIES = frozenset("dDwWsS")
_CONTROLS = {"a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11}  # \b only inside a set
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_COUNTS = re.compile(r"\{(\d*)(?:(,)(\d*))?\}")
_OCTAL = re.compile(r"0[0-7]{0,2}|[0-3][0-7]{2}")
_OCTAL_IN_SET = re.compile(r"[0-7]{1,3}")


def parse_regex(pattern: str) -> Alternatives:
    """The tree of a pattern. Raises InvalidRequestError for what ``re`` rejects and for what no grammar can say."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what later versions may read otherwise; read is what this one says
            re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise InvalidRequestError(f"the pattern {pattern[:80]!r} is not valid: {error}") from None
    return _Parser(pattern).whole()


class _Parser:
    def __init__(self, pattern: str) -> None:
        self._pattern, self._place = pattern, 0

    def whole(self) -> Alternatives:
        return self._alternatives(first=True, last=True)

    def _alternatives(self, *, first: bool, last: bool) -> Alternatives:
        """Up to the end or a closing bracket. ``first``, ``last``: the text begins or ends here, so ^ or $ holds."""
        branches: list[tuple[Node, ...]] = []
        while True:
            branches.append(self._branch(first=first, last=last))
            if not self._take("|"):
                return Alternatives(tuple(branches))

    def _branch(self, *, first: bool, last: bool) -> tuple[Node, ...]:
        nodes: list[Node] = []
        while self._at() and self._at() not in "|)":
            start = self._place
            if self._take("^") or self._take("\\A"):
                if nodes or not first:
                    self._refuse("an anchor that is not at the beginning", start)
            elif self._take("$") or self._take("\\Z"):
                if not last or (self._at() and self._at() not in "|)"):
                    self._refuse("an anchor that is not at the end", start)
            else:
                nodes.append(self._repeated(first=first and not nodes, last=last))
                continue
            if self._counts() is not None:
                self._refuse("a repeated anchor", start)
        return tuple(nodes)

    def _repeated(self, *, first: bool, last: bool) -> Node:
        start = self._place
        node = self._atom(first=first, last=last)
        counts = self._counts()
        if counts is None:
            return node
        if self._take("+"):
            self._refuse("a possessive repeat", start)
        self._take("?")
        return Repeat(node, *counts)

    def _counts(self) -> tuple[int, int | None] | None:
        for sign, counts in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return counts
        found = _COUNTS.match(self._pattern, self._place)
        if not found or found[0] == "{}":  # then the bracket stands for itself
            return None
        self._place = found.end()
        least = int(found[1] or 0)
        if found[2] is None:
            return least, least
        return least, int(found[3]) if found[3] else None

    def _atom(self, *, first: bool, last: bool) -> Node:
        if self._take("("):
            return self._group(first=first, last=last)
        if self._take("["):
            return Characters(self._set())
        if self._take("."):
            return Characters(without(of("\n")))
        if self._at() == "\\":
            return Characters(self._escape(in_set=False, negated=False))
        return Characters(of(self._next()))

    def _group(self, *, first: bool, last: bool) -> Node:
        start = self._place - 1
        if self._take("?P<"):
            self._place = self._pattern.index(">", self._place) + 1
        elif self._at() == "?" and not self._take("?:"):
            self._refuse(f"{self._pattern[start : start + 4]!r}", start)
        # An anchor inside holds where the group stands once, and nothing but the text's end can come after it.
        after = self._after_group()
        node = self._alternatives(
            first=first and (not after or after not in "*+?{"), last=last and (not after or after in "|)")
        )
        self._next()
        return node

    def _after_group(self) -> str:
        """The sign behind the group that begins here."""
        depth, place, in_set = 1, self._place, False
        while depth:
            sign = self._pattern[place]
            place += 2 if sign == "\\" else 1
            if in_set:
                in_set = sign != "]"
            elif sign == "[":
                in_set = True
                place += self._pattern.startswith("^", place)
                place += self._pattern.startswith("]", place)
            else:
                depth += {"(": 1, ")": -1}.get(sign, 0)
        return self._pattern[place : place + 1]

    # --- characters

    def _set(self) -> Ranges:
        negated = self._take("^")
        found: list[tuple[int, int]] = []
        begin = self._place
        while self._place == begin or self._at() != "]":
            member = self._member(negated)
            if self._at() == "-" and self._pattern[self._place + 1] != "]":
                self._next()
                member = ((member[0][0], self._member(negated)[0][0]),)
            found += member
        self._next()
        return without(union(found)) if negated else union(found)

    def _member(self, negated: bool) -> Ranges:
        if self._at() == "\\":
            return self._escape(in_set=True, negated=negated)
        code = ord(self._next())
        return ((code, code),)

    def _escape(self, *, in_set: bool, negated: bool) -> Ranges:
        start = self._place
        self._next()
        kind = self._next()
        if kind in _CATEGORIES:
            # Allowed is what the class means in ASCII and in Unicode alike, excluded what it means in either.
            return ascii_class(kind) if kind.islower() != negated else unicode_class(kind)
        code = self._code(kind, start, in_set=in_set)
        return ((code, code),)

    def _code(self, kind: str, start: int, *, in_set: bool) -> int:
        octal = (_OCTAL_IN_SET if in_set else _OCTAL).match(self._pattern, start + 1)
        if octal:
            self._place = octal.end()
            return int(octal[0], 8)
        if kind in _HEX_DIGITS:
            self._place += _HEX_DIGITS[kind]
            return int(self._pattern[start + 2 : self._place], 16)
        if kind == "N":
            end = self._pattern.index("}", start)
            name, self._place = self._pattern[start + 3 : end], end + 1
            return ord(unicodedata.lookup(name))
        if kind in _CONTROLS and (in_set or kind != "b"):
            return _CONTROLS[kind]
        if kind.isascii() and kind.isalnum():
            self._refuse(f"\\{kind}", start)
        return ord(kind)

    # --- the text

    def _at(self) -> str:
        return self._pattern[self._place : self._place + 1]

    def _next(self) -> str:
        self._place += 1
        return self._pattern[self._place - 1]

    def _take(self, text: str) -> bool:
        found = self._pattern.startswith(text, self._place)
        self._place += len(text) * found
        return found

    def _refuse(self, what: str, place: int) -> NoReturn:
        raise InvalidRequestError(f"the pattern has {what} at {place}, which is not supported: {self._pattern[:80]!r}")


ANY_CHARACTER = Characters(EVERY)
