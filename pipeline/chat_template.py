"""Turns a conversation into a prompt through the model's own template: a Jinja program from a file, run in a box."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, cast

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..scheduler.errors import InvalidRequestError

TIME_LIMIT = 1.0  # seconds; a template of a real model takes some 50 us a message
MAX_TEXT = 16 << 20  # characters of one rendered prompt, and of one repeated string or list
MAX_BITS = 1 << 16  # of an integer power
MAX_RANGE = 1_000_000  # turns of all loops over range() in one rendering


class ChatTemplate:
    """The templates of a model; most have one.

    Args:
        texts: Jinja source by name: "default", or "tool_use" for requests with tools.
        variables: the texts of the model's special tokens: ``bos_token``, ``eos_token``...
        now: what ``strftime_now`` reads.
    """

    def __init__(
        self,
        texts: Mapping[str, str],
        variables: Mapping[str, str] | None = None,
        *,
        now: Callable[[], datetime] = datetime.now,
        time_limit: float = TIME_LIMIT,
    ) -> None:
        self.texts = dict(texts)
        self._variables = dict(variables or {})
        self._now, self._time_limit = now, time_limit
        self._compiled: dict[str, jinja2.Template] = {}

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt.

        Args:
            messages: dicts with "role" and "content"; a message with "tool_calls" may have no content.
            add_generation_prompt: end with the beginning of the answer.
            variables: more names for the template, such as ``enable_thinking``.

        Raises:
            InvalidRequestError: messages of the wrong form, an error in the template or raised by it, a rendering
                that takes more than the limits of this module.
        """
        check_messages(messages)
        given = {**self._variables, **variables, "messages": messages, "tools": list(tools) if tools else None}
        name = "tool_use" if tools and "tool_use" in self.texts else "default"
        template = self._template(name)
        given |= {"add_generation_prompt": add_generation_prompt, **self._helpers()}
        try:
            return self._run(template, given)
        except Exception as error:
            raise InvalidRequestError(f"chat template {name!r}: {str(error) or type(error).__name__}") from error

    def _run(self, template: jinja2.Template, given: dict[str, Any]) -> str:
        """Render piece by piece, looking at the clock: a template may loop for as long as it likes."""
        parts: list[str] = []
        deadline, size = time.monotonic() + self._time_limit, 0
        for part in template.generate(given):
            parts.append(part)
            size += len(part)
            if size > MAX_TEXT:
                raise _RefusedError(f"the prompt is longer than {MAX_TEXT} characters")
            if time.monotonic() > deadline:
                raise _RefusedError(f"not rendered after {self._time_limit} s")
        return "".join(parts)

    def _template(self, name: str) -> jinja2.Template:
        if name not in self.texts:
            names = ", ".join(sorted(self.texts))
            raise InvalidRequestError(f"the model has no {name!r} chat template, only: {names or 'none'}")
        if name not in self._compiled:
            try:
                self._compiled[name] = self._environment.from_string(self.texts[name])
            except jinja2.TemplateError as error:
                raise InvalidRequestError(f"chat template {name!r}, line {_line(error)}: {error}") from error
        return self._compiled[name]

    @cached_property
    def _environment(self) -> jinja2.Environment:
        box: Any = _Box(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation])
        box.filters["tojson"] = _to_json
        box.globals.pop("lipsum", None)
        return box

    def _helpers(self) -> dict[str, Any]:
        """Functions that templates expect; made anew for each rendering, since the loop budget is its own."""
        return {"raise_exception": _raise, "strftime_now": self._strftime_now, "range": _Range(MAX_RANGE)}

    def _strftime_now(self, form: str) -> str:
        return self._now().strftime(form)


def check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    """Refuse what no template can take.

    Raises:
        InvalidRequestError: no messages; one that is no dict, or lacks a role or content.
    """
    if isinstance(messages, str | bytes) or not messages:
        raise InvalidRequestError("messages must be a list of at least one message")
    for index, message in enumerate(messages):
        _check_message(message, f"messages[{index}]")


def _check_message(message: Any, where: str) -> None:
    if not isinstance(message, Mapping):
        raise InvalidRequestError(f"{where} is {type(message).__name__}, expected a dict")
    fields = cast("Mapping[str, Any]", message)
    role, content = fields.get("role"), fields.get("content")
    if not isinstance(role, str) or not role:
        raise InvalidRequestError(f"{where} has role {role!r}, expected a name")
    if content is None and not fields.get("tool_calls"):
        raise InvalidRequestError(f"{where} has no content")
    if not isinstance(content, str | list | None):
        raise InvalidRequestError(f"{where} has content of type {type(content).__name__}, expected text or a list")


class _RefusedError(Exception):
    """Raised by a template, or by a limit of its rendering."""


class _Box(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, which gives no access to files, internals or mutation, with limits on growth added."""

    intercepted_binops = frozenset(["*", "**"])

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and isinstance(left, int) and left.bit_length() * right > MAX_BITS:
            raise OverflowError(f"a power has more than {MAX_BITS} bits")
        if operator == "*" and _repeated(left, right) > MAX_TEXT:
            raise OverflowError(f"a repetition is longer than {MAX_TEXT}")
        return super().call_binop(context, operator, left, right)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return not attr.startswith("_") and super().is_safe_attribute(obj, attr, value)


def _repeated(left: Any, right: Any) -> int:
    """Length of "ab" * 3 or 3 * "ab"; 0 for numbers."""
    series, times = (right, left) if isinstance(left, int) else (left, right)
    sized = isinstance(series, str | list | tuple) and isinstance(times, int)
    return len(cast("str", series)) * times if sized else 0


class _Range:
    """``range`` for one rendering: all its loops together have a limit."""

    def __init__(self, left: int) -> None:
        self._left = left

    def __call__(self, *arguments: int) -> range:
        numbers = range(*arguments)
        self._left -= len(numbers)
        if self._left < 0:
            raise OverflowError(f"loops of more than {MAX_RANGE} turns")
        return numbers


class _Generation(jinja2.ext.Extension):
    """``{% generation %}`` marks the model's own words for training; here its body is all that matters."""

    tags = {"generation"}  # noqa: RUF012  the base class declares it

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(value: Any, indent: int | None = None, separators: Any = None, sort_keys: bool = False) -> str:
    """Plain JSON: Jinja's own filter would escape it for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    raise _RefusedError(message)


def _line(error: jinja2.TemplateError) -> int | str:
    return getattr(error, "lineno", None) or "?"
