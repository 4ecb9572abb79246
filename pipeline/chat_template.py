"""Turns a conversation into a prompt through the model's own template: a Jinja program from a file, run in a box."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, cast

import jinja2

from ..scheduler.errors import InvalidRequestError
from .conversation import as_list
from .template_box import CLOCK, MAX_TEXT, Box, Clock, Range, RefusedError, make_box

TIME_LIMIT = 1.0  # seconds; a template of a real model takes some 50 us a message


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
        messages: Iterable[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Iterable[Mapping[str, Any]] | None = None,
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
        messages, tools = checked_messages(messages), checked_tools(tools)
        given = {**self._variables, **variables, "messages": messages, "tools": tools}
        name = "tool_use" if tools and "tool_use" in self.texts else "default"
        template = self._template(name)
        given |= {"add_generation_prompt": add_generation_prompt, **self._helpers()}
        try:
            return self._run(template, given)
        except Exception as error:
            reason = _parts_reason(messages, error) or str(error) or type(error).__name__
            raise InvalidRequestError(f"chat template {name!r}: {reason}") from error

    def _run(self, template: jinja2.Template, given: dict[str, Any]) -> str:
        """Render piece by piece, looking at the clock: a template may go on for as long as it likes."""
        parts: list[str] = []
        clock, size = Clock(self._time_limit), 0
        for part in template.generate(given | {CLOCK: clock}):
            parts.append(part)
            size += len(part)
            if size > MAX_TEXT:
                raise RefusedError(f"the prompt is longer than {MAX_TEXT:,} characters")
            clock.check()
        return "".join(parts)

    def _template(self, name: str) -> jinja2.Template:
        if name not in self.texts:
            names = ", ".join(sorted(self.texts))
            raise InvalidRequestError(f"the model has no {name!r} chat template, only: {names or 'none'}")
        if name not in self._compiled:
            try:
                self._compiled[name] = self._environment.compiled(self.texts[name])
            except jinja2.TemplateError as error:
                raise InvalidRequestError(f"chat template {name!r}, line {_line(error)}: {error}") from error
        return self._compiled[name]

    @cached_property
    def _environment(self) -> Box:
        return make_box()

    def _helpers(self) -> dict[str, Any]:
        """Functions that templates expect; made anew for each rendering, since the loop budget is its own."""
        return {"raise_exception": _raise, "strftime_now": self._strftime_now, "range": Range()}

    def _strftime_now(self, form: str) -> str:
        return self._now().strftime(form)


def checked_messages(messages: Any) -> list[Mapping[str, Any]]:
    """The messages as a list; they may come from any iterable.

    Raises:
        InvalidRequestError: no messages; one that is no dict, or lacks a role or content.
    """
    listed = as_list("messages", messages)
    if not listed:
        raise InvalidRequestError("messages is empty, needed is a list of at least one message")
    for index, message in enumerate(listed):
        _check_message(message, f"messages[{index}]")
    return listed


def checked_tools(tools: Any) -> list[Any] | None:
    """The tools as a list, None where there are none. Raises InvalidRequestError for what is no list."""
    if tools is None:
        return None
    return as_list("tools", tools) or None


def _parts_reason(messages: Sequence[Mapping[str, Any]], error: Exception) -> str | None:
    """Templates for text fail on a content of parts wherever they come to join it to a text."""
    if not isinstance(error, TypeError):
        return None
    places = (index for index, message in enumerate(messages) if isinstance(message.get("content"), list))
    index = next(places, None)
    return None if index is None else f"messages[{index}].content is a list; this model's template takes text"


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


def _raise(message: str) -> None:
    raise RefusedError(message)


def _line(error: jinja2.TemplateError) -> int | str:
    return getattr(error, "lineno", None) or "?"
