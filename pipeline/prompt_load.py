"""How many prompt tokens are on their way to their first output."""

from __future__ import annotations


class PromptLoad:
    """Prompt tokens of completions that have given no token yet.

    A text counts from when it is tokenized; a completion that runs counts no more.
    """

    def __init__(self) -> None:
        self._tokens: dict[str, int] = {}
        self.total = 0

    def enter(self, key: str, num_tokens: int) -> None:
        """A completion's prompt, or what is known of it now."""
        self.leave(key)
        self._tokens[key] = num_tokens
        self.total += num_tokens

    def leave(self, key: str) -> None:
        """A completion gave its first token, or has ended; it may have left before."""
        self.total -= self._tokens.pop(key, 0)
