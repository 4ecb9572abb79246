"""Regular expressions in the compiler's dialect: what Python and the compiler read differently is spelled out."""

from __future__ import annotations

from ..scheduler.errors import InvalidRequestError

# Python's meaning under re.ASCII. The compiler's own sets differ: its dot takes line ends, its \s takes U+FEFF.
_CLASSES = {"d": "0-9", "w": "a-zA-Z0-9_", "s": r" \t\n\r\f\v"}
_DOT = r"[^\n]"
_PLAIN = frozenset("nrtfvxu0")  # escapes that both read alike


def to_ascii_classes(pattern: str) -> str:
    """The pattern with its classes written as sets. Raises InvalidRequestError for what would be read otherwise."""
    parts: list[str] = []
    in_set, place = False, 0
    while place < len(pattern):
        sign = pattern[place]
        taken = 1
        if sign == "\\":
            taken, sign = 2, _escape(pattern, place, in_set)
        elif in_set:
            in_set = sign != "]"
        elif sign == "[":
            in_set = True
            taken = 2 if pattern[place + 1 : place + 2] == "^" else 1
            sign = pattern[place : place + taken]
            if pattern[place + taken : place + taken + 1] == "]":  # Python: a literal; the compiler: an empty set
                sign, taken = sign + r"\]", taken + 1
        elif sign == ".":
            sign = _DOT
        parts.append(sign)
        place += taken
    return "".join(parts)


def _escape(pattern: str, place: int, in_set: bool) -> str:
    kind = pattern[place + 1 : place + 2]
    if kind in _CLASSES:
        return _CLASSES[kind] if in_set else f"[{_CLASSES[kind]}]"
    if kind and kind.lower() in _CLASSES and not in_set:
        return f"[^{_CLASSES[kind.lower()]}]"
    if not kind or (kind.isascii() and kind.isalnum() and kind not in _PLAIN):
        where = " inside a set" if in_set else ""
        raise InvalidRequestError(
            f"the pattern has \\{kind}{where} at {place}, which is not supported: {pattern[:80]!r}"
        )
    return "\\" + kind
