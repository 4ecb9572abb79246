"""The messages that a user gives, until a template makes a prompt of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec

from ..scheduler.errors import InvalidRequestError
from .tokenizer import Tokenizer

LONG_CONVERSATION = 100  # messages and tools; longer ones are rendered in a thread
_NEEDED = {"messages": "a list of at least one message", "tools": "a list of tools"}


def as_list(name: str, given: Any) -> list[Any]:
    """Messages or tools as a list; they may come from any iterable. Raises InvalidRequestError for what is none."""
    no_series = getattr(given, "shape", None) == ()  # pyright: ignore[reportUnknownArgumentType]
    if no_series or isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        kind = type(given).__name__  # pyright: ignore[reportUnknownArgumentType]
        raise InvalidRequestError(f"{name} is {kind}, needed is {_NEEDED[name]}")
    return list(cast("Iterable[Any]", given))


class Conversation(msgspec.Struct, frozen=True):
    """Messages that the model's chat template makes a prompt of."""

    messages: Sequence[Any]
    tools: Sequence[Any] | None = None

    def listed(self) -> Conversation:
        """What a user gives, in lists of our own. Raises InvalidRequestError for what is no series."""
        tools = as_list("tools", self.tools) if self.tools is not None else None
        return Conversation(as_list("messages", self.messages), tools)

    @property
    def is_long(self) -> bool:
        """Whether its prompt takes longer to make than the host's loop can spare."""
        return len(self.messages) + len(self.tools or ()) > LONG_CONVERSATION

    def render(self, tokenizer: Tokenizer) -> str:
        """The prompt. Raises InvalidRequestError for messages of the wrong form and for errors of the template."""
        return tokenizer.apply_chat_template(self.messages, tools=self.tools)

    def copy(self) -> Conversation:
        """The same, out of its sender's hands: what is worked on in a thread must not change meanwhile."""
        return cast("Conversation", _copy(self))


def _copy(value: Any) -> Any:
    """Lists and dicts anew, at any depth."""
    match value:
        case Conversation(messages=messages, tools=tools):
            return Conversation(_copy(messages), _copy(tools))
        case list() | tuple():
            return [_copy(item) for item in cast("Sequence[Any]", value)]
        case Mapping():
            return {name: _copy(item) for name, item in cast("Mapping[Any, Any]", value).items()}
        case _:
            return value
