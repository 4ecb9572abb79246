"""Refuses a misspelt keyword by name, with the one that was probably meant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import msgspec


def refuse_unknown(what: str, given: Iterable[str], known: Sequence[str], error: type[Exception]) -> None:
    """Raise the error for the first name that is not known."""
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            raise error(f"unknown {what} {name!r}, {hint}")


class NamesChecked(type(msgspec.Struct)):
    """The class of records whose keywords users write by hand; subclasses say what they are called.

    A record that is decoded has its names checked by the decoder.
    """

    what: str
    error: type[Exception]

    if not TYPE_CHECKING:  # a type checker goes by the fields

        def __call__(cls, *arguments: Any, **given: Any) -> Any:
            refuse_unknown(cls.what, given, cls.__struct_fields__, cls.error)
            return super().__call__(*arguments, **given)
