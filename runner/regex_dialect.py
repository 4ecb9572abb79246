"""Patterns as the compiler is to read them: every set spelled out, every sign that it reads otherwise escaped.

A pattern means what ``re.fullmatch`` makes of it, in ASCII and in Unicode: where ``\\d``, ``\\w`` and ``\\s`` differ in
the two, a text is allowed that fits both. A set that is not
repeated many times is told by what is in it, as the compiler's complements hold bytes that are no UTF-8.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Literal

from ..scheduler.errors import InvalidRequestError
from . import code_points
from .code_points import Ranges
from .regex_tree import ANY_CHARACTER, Alternatives, Characters, Node, Repeat, parse_regex

Form = Literal["text", "json", "plain"]  # the text itself, inside a JSON string, or what is the same in all

_ESCAPED = code_points.union([(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C)])  # cannot stand in a JSON string as they are
_UNESCAPED = code_points.without(_ESCAPED)
_SHORT = code_points.of('"\\\b\f\n\r\t')  # what a backslash and one letter stand for
_PLAIN = code_points.common(_UNESCAPED, code_points.without(code_points.of("<>&")))
_LETTERS = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 0x22: '"', 0x5C: "\\"}
_HEX = "0123456789abcdef"
# Above this count a set is told by what is not in it: a hundred times faster to compile, but the compiler then takes
# bytes for a character that UTF-8 does not have: forms that are longer than need be. (Halves of surrogates are named.)
_MANY = 16
_HALVES = r"\ud800-\udfff"


def as_compiled(pattern: str, form: Form = "text") -> str:
    """The pattern in the compiler's dialect. Raises InvalidRequestError for what cannot be said in it."""
    try:
        return _written(parse_regex(pattern), _WRITERS[form])
    except RecursionError:
        raise InvalidRequestError(f"the pattern is nested too deep: {pattern[:80]!r}") from None
    except _NoCharacterError:
        where = {"text": "", "json": "", "plain": "; here quotes, backslashes, controls, <, > and & cannot"}[form]
        raise InvalidRequestError(
            f"the pattern has a set without a character that can be written{where}: {pattern[:80]!r}"
        ) from None


def in_form(node: Node, form: Form) -> str:
    """A pattern that was made here."""
    return _written(node, _WRITERS[form])


def of_length(least: int, most: int | None, form: Form) -> str:
    """Any text of so many characters."""
    return in_form(Repeat(ANY_CHARACTER, least, most), form)


class _NoCharacterError(Exception):
    """A set is empty, so no text could be."""


Writer = Callable[[Ranges, bool], str]


def _written(node: Node, write: Writer, *, many: bool = False) -> str:
    match node:
        case Characters():
            if not node.ranges:
                raise _NoCharacterError
            return write(node.ranges, many)
        case Alternatives():
            return "|".join("".join(_grouped(one, write, many) for one in branch) for branch in node.branches)
        case Repeat():
            inner = _written(node.node, write, many=many or max(node.least, node.most or 0) > _MANY)
            if not inner:
                return ""
            alone = isinstance(node.node, Characters) and (inner[0] == "[" or len(inner) == 1)
            return (inner if alone else f"(?:{inner})") + _times(node.least, node.most)


def _times(least: int, most: int | None) -> str:
    short = {(0, None): "*", (1, None): "+", (0, 1): "?"}
    return short.get((least, most)) or f"{{{least},{'' if most is None else most}}}"


def _grouped(node: Node, write: Writer, many: bool) -> str:
    inner = _written(node, write, many=many)
    return f"(?:{inner})" if inner and isinstance(node, Alternatives) else inner


def _in_text(ranges: Ranges, many: bool = False) -> str:
    """A set as it is; one character as itself."""
    if code_points.size(ranges) == 1:
        return _sign(ranges[0][0])
    if many and ranges[-1][1] == code_points.EVERY[-1][1]:
        return f"[^{_listed(code_points.without(ranges))}{_HALVES}]"
    caret = ord("^")
    if ranges[0][0] == caret:  # at the beginning it would turn the set around
        rest = ((caret + 1, ranges[0][1]), *ranges[1:]) if ranges[0][1] > caret else ranges[1:]
        return rf"(?:\^|{_in_text(rest)})"
    return f"[{_listed(ranges)}]"


def _listed(ranges: Ranges) -> str:
    # The compiler ends a control character's number at the first sign that is no hexadecimal digit: these come first,
    # and the circumflex, which may not be the first, is behind the digits and letters anyway.
    ordered = sorted(ranges, key=lambda one: (chr(one[0]) not in _HEX + _HEX.upper(), one))
    return "".join(map(_range, ordered))


def _range(ends: tuple[int, int]) -> str:
    low, high = ends
    return _sign(low) if low == high else f"{_sign(low)}-{_sign(high)}"


def _sign(code: int) -> str:
    sign = chr(code)
    return sign if code >= 0x80 or sign.isalnum() else f"\\u{code:04x}"


def _in_json(ranges: Ranges, many: bool) -> str:
    """The set's characters as they stand in a JSON string."""
    if code_points.size(ranges) == 1:
        return "".join(_sign(ord(sign)) for sign in json.dumps(chr(ranges[0][0]), ensure_ascii=False)[1:-1])
    # The compiler passes over escapes beside characters that need none, so a set has the ones or the others.
    if bare := code_points.common(ranges, _UNESCAPED):
        return _in_text(bare, many)
    if short := code_points.common(ranges, _SHORT):
        letters = code_points.of("".join(_LETTERS[low] for low in _codes(short)))
        return f"(?:{_sign(0x5C)}{_in_text(letters)})"
    raise _NoCharacterError


def _codes(ranges: Ranges) -> list[int]:
    return [code for low, high in ranges for code in range(low, high + 1)]


def _in_all(ranges: Ranges, many: bool) -> str:
    """Of the set's characters those that are written the same in JSON and XML."""
    found = code_points.common(ranges, _PLAIN)
    if not found:
        raise _NoCharacterError
    return _in_text(found, many)


_WRITERS: dict[Form, Writer] = {"text": _in_text, "json": _in_json, "plain": _in_all}
