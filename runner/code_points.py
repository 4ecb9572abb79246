"""Sets of characters as sorted ranges of code points; halves of surrogates, which no text has, are in none."""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Iterable
from functools import cache

Ranges = tuple[tuple[int, int], ...]  # first and last of each, sorted, with gaps between them

EVERY: Ranges = ((0, 0xD7FF), (0xE000, 0x10FFFF))


def union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """All that is in any of the ranges, which may overlap; without halves of surrogates."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return common(tuple(merged), EVERY)


def common(one: Ranges, other: Ranges) -> Ranges:
    """What is in both."""
    found: list[tuple[int, int]] = []
    i = j = 0
    while i < len(one) and j < len(other):
        low, high = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if low <= high:
            found.append((low, high))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return tuple(found)


def without(ranges: Ranges) -> Ranges:
    """All other characters."""
    gaps: list[tuple[int, int]] = []
    start = 0
    for low, high in ranges:
        if start < low:
            gaps.append((start, low - 1))
        start = high + 1
    if start <= EVERY[-1][1]:
        gaps.append((start, EVERY[-1][1]))
    return common(tuple(gaps), EVERY)


def of(characters: str) -> Ranges:
    """These characters."""
    return union((ord(one), ord(one)) for one in characters)


def size(ranges: Ranges) -> int:
    """How many characters there are."""
    return sum(high - low + 1 for low, high in ranges)


_ASCII: dict[str, Ranges] = {
    "d": ((0x30, 0x39),),
    "w": union([(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)]),
    "s": union([(0x09, 0x0D), (0x20, 0x20)]),
}


def ascii_class(kind: str) -> Ranges:
    r"""What ``\d``, ``\w`` or ``\s`` means in ASCII; in upper case what is not in it."""
    found = _ASCII[kind.lower()]
    return found if kind.islower() else without(found)


@cache
def unicode_class(kind: str) -> Ranges:
    """The same in all of Unicode, as ``re`` sees it."""
    if kind.isupper():
        return without(unicode_class(kind.lower()))
    found: list[tuple[int, int]] = [(0xFEFF, 0xFEFF)] if kind == "s" else []  # it is white space in JavaScript
    for low, high in EVERY:
        text = array("I", range(low, high + 1)).tobytes().decode(f"utf-32-{sys.byteorder[0]}e")
        found += [(low + one.start(), low + one.end() - 1) for one in re.finditer(rf"\{kind}+", text)]
    return union(found)
