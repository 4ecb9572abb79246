"""How a schema is refused: with the place of what is wrong, and why."""

from __future__ import annotations

from typing import Any, NoReturn

from ..scheduler.errors import InvalidRequestError

Schema = dict[str, Any]


def refuse(at: str, why: str) -> NoReturn:
    """Raise InvalidRequestError for the part of a schema at this JSON pointer."""
    raise InvalidRequestError(f"the schema at {at}: {why}")


def escaped(name: str) -> str:
    """A property's name as a JSON pointer has it."""
    return name.replace("~", "~0").replace("/", "~1")


def refuse_half(text: str, at: str) -> None:
    """Refuse a text with half of a surrogate pair, which no file can hold."""
    if any("\ud800" <= sign <= "\udfff" for sign in text):
        refuse(at, f"{text!a} has half a character")


def check_counts(given: Schema, what: str, at: str) -> tuple[int, int | None]:
    """The least and most of something; they are written back as whole numbers where they are given."""
    names = f"min{what}", f"max{what}"
    for name in names:
        if name in given:
            given[name] = _count(given[name], f"{at}/{name}")
    least, most = given.get(names[0], 0), given.get(names[1])
    if most is not None and least > most:
        refuse(f"{at}/{names[0]}", f"{least} is above {names[1]}, which is {most}")
    return least, most


def _count(value: Any, at: str) -> int:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value < 2**31 or value != int(value):
        refuse(at, f"{value!r} is no whole number from 0 to 2**31")
    return int(value)


def drop_if_false(given: Schema, name: str, at: str) -> None:
    """Take out a keyword that says nothing when it is false; otherwise it is refused."""
    if given.pop(name, False) is not False:
        refuse(f"{at}/{name}", "only false is supported")
