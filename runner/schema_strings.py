"""Strings of a schema: their patterns are written as JSON writes what they match."""

from __future__ import annotations

from ..scheduler.errors import InvalidRequestError
from .regex_dialect import Form, as_compiled, of_length
from .schema_errors import Schema, check_counts, refuse

FORMATS = frozenset({
    "email", "date", "time", "date-time", "duration", "ipv4", "ipv6", "hostname", "uuid", "uri", "uri-reference",
    "uri-template", "json-pointer", "relative-json-pointer",
})  # fmt: skip


def check_string(given: Schema, form: Form, at: str) -> None:
    """Rewrite the keywords of a string; at most one of pattern, format and length."""
    kind = given.get("format")
    if "format" in given and (not isinstance(kind, str) or kind not in FORMATS):
        refuse(f"{at}/format", f"{kind!r} is not supported; supported are {', '.join(sorted(FORMATS))}")
    least, most = check_counts(given, "Length", at)
    has_length = "minLength" in given or "maxLength" in given
    if ("pattern" in given) + ("format" in given) + has_length > 1:
        refuse(at, "of pattern, format and limits of length one is supported at a time")
    if "pattern" in given:
        given["pattern"] = compiled_pattern(given["pattern"], form, f"{at}/pattern")
    elif has_length:
        # By itself the compiler would let control characters and halves of characters into such a string.
        for name in ("minLength", "maxLength"):
            given.pop(name, None)
        given["pattern"] = f"^{of_length(least, most, form)}$"


def compiled_pattern(pattern: object, form: Form, at: str) -> str:
    """A pattern of strings or names; matched is the whole string."""
    if not isinstance(pattern, str):
        refuse(at, f"{pattern!r} is no text")
    try:
        return f"^{as_compiled(pattern, form)}$"
    except InvalidRequestError as error:
        refuse(at, str(error))
