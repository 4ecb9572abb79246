"""References of a schema: each leads to a place inside it, which is checked as a schema like all others."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from .schema_errors import refuse


class References:
    """Where the references of one schema lead."""

    def __init__(self, root: Any) -> None:
        self._root = root

    def resolve(self, schema: Any, at: str) -> tuple[str, Any]:
        """Follow references to a schema that is none: where it is, and itself."""
        seen: set[str] = set()
        target = "#"
        while isinstance(schema, dict) and "$ref" in schema:
            target = schema["$ref"]
            if not isinstance(target, str) or not (target == "#" or target.startswith("#/")):
                refuse(f"{at}/$ref", f"{target!r} is no place in this schema, such as '#/$defs/name'")
            if target in seen:
                refuse(f"{at}/$ref", f"{target!r} refers to itself")
            seen.add(target)
            schema = self._find(target, at)
        return target, schema

    def _find(self, target: str, at: str) -> Any:
        found = self._root
        for step in unquote(target[1:]).split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            elif isinstance(found, dict) and name in found:
                found = found[name]
            else:
                refuse(f"{at}/$ref", f"{target!r} leads nowhere")
            if isinstance(found, dict) and "$id" in found:
                refuse(f"{at}/$ref", f"{target!r} leads through an $id, which is not supported")
        return found

    def definition(self, target: str) -> str | None:
        """The pointer of a definition of the root, where it stays; None for all other targets."""
        steps = unquote(target[2:]).split("/")
        in_place = len(steps) == 2 and steps[0] in ("$defs", "definitions") and isinstance(self._root[steps[0]], dict)
        return "/".join(steps) if in_place else None

    def refuse_loop(self, schema: Any, at: str) -> None:
        """Refuse a schema that is defined by itself at the same place of a text."""
        seen: set[int] = set()
        ahead = [self.resolve(schema, at)[1]]
        start = ahead[0]
        while ahead:
            one = ahead.pop()
            if id(one) in seen or not isinstance(one, dict):
                continue
            seen.add(id(one))
            parts: list[Any] = [part for name in ("anyOf", "oneOf", "allOf") for part in one.get(name) or ()]
            for part in parts:
                ahead.append(self.resolve(part, at)[1])
                if ahead[-1] is start:
                    refuse(f"{at}/$ref", f"{schema['$ref']!r} refers to itself")
