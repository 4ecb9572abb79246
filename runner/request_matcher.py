"""One request's place in its grammar."""

from __future__ import annotations

from typing import Any, Protocol

from ..scheduler.errors import BooksError


class Matcher(Protocol):
    """What is used of xgrammar's matcher."""

    def accept_token(self, token_id: int) -> bool: ...
    def is_terminated(self) -> bool: ...
    def rollback(self, num_tokens: int = 1) -> None: ...
    def reset(self) -> None: ...


class RequestMatcher:
    """Follows a request's outputs, and goes back when some of them are taken back.

    Args:
        matcher: at the grammar's beginning.
        reasoning_end: outputs up to and with this token are free; None: none are.
        number: of the request's arrival.

    Attributes:
        num_accepted: outputs that it has seen.
        epoch: number of the request's admission; results for another one are not for it.
        last_step: the last step that samples for this admission; 0: none yet.
        refused: the grammar refused a token: nothing is known of it any more.
    """

    __slots__ = ("_begin", "_matcher", "_reasoning_end", "epoch", "last_step", "num_accepted", "number", "refused")

    def __init__(self, matcher: Matcher, reasoning_end: int | None = None, *, number: int = 0) -> None:
        self.number = number
        self._matcher = matcher
        self._reasoning_end = reasoning_end
        self._begin: int | None = 0 if reasoning_end is None else None  # the first output that the grammar sees
        self.num_accepted = 0
        self.epoch = self.last_step = 0
        self.refused = False

    @property
    def native(self) -> Any:
        """The matcher that fills masks."""
        return self._matcher

    @property
    def reasons(self) -> bool:
        """Whether the free part is not over."""
        return self._begin is None

    @property
    def has_ended(self) -> bool:
        """Whether an end token was accepted."""
        return self._begin is not None and self._matcher.is_terminated()

    @property
    def is_free(self) -> bool:
        """Whether nothing more is known of what may come: behind the end, or behind a refusal."""
        return self.refused or self.has_ended

    def accept(self, token: int) -> bool:
        """One more output; False, and nothing changed, if the grammar refuses it."""
        if self._begin is None:
            if token == self._reasoning_end:
                self._begin = self.num_accepted + 1
        elif not self._matcher.accept_token(token):
            return False
        self.num_accepted += 1
        return True

    def back_to(self, count: int) -> None:
        """Forget outputs, so that ``count`` are left. Raises BooksError if there are not as many."""
        surplus = self.num_accepted - count
        if surplus < 0:
            raise BooksError(f"a request goes on at output {count}, its grammar has seen {self.num_accepted}")
        if not surplus:
            return
        self.num_accepted = count
        if self._begin is None:
            return
        if count < self._begin:
            self._matcher.reset()
            self._begin = None
        else:
            self._matcher.rollback(surplus)
