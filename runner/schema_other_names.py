"""Names of an object's further properties: the compiler's own are those of named ones too, written with escapes."""

from __future__ import annotations

from collections.abc import Collection

from .code_points import of, without
from .regex_dialect import in_form
from .regex_tree import ANY_CHARACTER, Alternatives, Characters, Node, Repeat

_REST = Repeat(ANY_CHARACTER, 0, None)


def other_names(names: Collection[str]) -> str:
    """A pattern of all names but these that JSON writes without escapes."""
    followers: dict[str, set[str]] = {"": set()}  # beginnings of names, and the characters that follow them there
    for name in names:
        for end, character in enumerate(name):
            followers.setdefault(name[:end], set()).add(character)
        followers.setdefault(name, set())
    # A name that is none of these leaves them somewhere, or ends on the way.
    branches: list[tuple[Node, ...]] = []
    for beginning, found in followers.items():
        literal = tuple(Characters(of(character)) for character in beginning)
        if beginning not in names:
            branches.append(literal)
        branches.append((*literal, Characters(without(of("".join(found)))), _REST))
    return f"^{in_form(Alternatives(tuple(branches)), 'json')}$"
