"""Names of open sessions."""

from __future__ import annotations

import itertools

from ..scheduler.errors import InvalidRequestError
from .board import MARK, public_id
from .door import check_id


class SessionNames:
    """Gives each session a name inside the engine that no other ever has, so that a late message means no other."""

    def __init__(self) -> None:
        self._open: dict[str, str] = {}  # by id
        self._numbers = itertools.count()

    def open(self, session_id: str | None) -> str:
        """The name of a new session. Raises InvalidRequestError for an id that an open session has."""
        number = next(self._numbers)
        if session_id is None:
            session_id = next(name for i in itertools.count(number) if (name := f"session-{i}") not in self._open)
        check_id(session_id, "session id")
        if session_id in self._open:
            raise InvalidRequestError(f"session id {session_id!r} is in use by a session that is open")
        name = self._open[session_id] = f"{session_id}{MARK}{number}"
        return name

    def close(self, name: str) -> None:
        """A session has ended; its id may be used again."""
        if self._open.get(public_id(name)) == name:
            del self._open[public_id(name)]
