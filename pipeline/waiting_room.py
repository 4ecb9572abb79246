"""How many may wait: requests beyond it are refused at the door."""

from __future__ import annotations

from ..scheduler.errors import EngineOverloadedError, InvalidRequestError
from .board import Board


class WaitingRoom:
    """Looks at the board before a request is put up there.

    Args:
        max_unfinished: completions that may be unfinished at once; each then has a place in every lane.
        max_tokens: prompt tokens without an output yet, from which on requests are refused; None: no limit.
    """

    def __init__(self, board: Board, max_unfinished: int, max_tokens: int | None) -> None:
        self._board = board
        self.max_unfinished, self._max_tokens = max_unfinished, max_tokens

    def refuse(self, request_id: str, n: int) -> None:
        """Refuse a request whose ``n`` completions may not all wait.

        Raises:
            InvalidRequestError: they could not even if nobody else waited.
            EngineOverloadedError: too many requests, or too many prompt tokens, wait now.
        """
        if n > self.max_unfinished:
            raise InvalidRequestError(f"n is {n}, limit is {self.max_unfinished} (request {request_id})")
        if self._board.num_places + n > self.max_unfinished:
            more = f" and {n} more are asked for" if n > 1 else ""
            raise EngineOverloadedError(
                f"{self._board.num_places} requests are unfinished{more}, limit is {self.max_unfinished} "
                f"(max_waiting and max_num_running_reqs together); try again later (request {request_id})"
            )
        load = self._board.load.total
        if self._max_tokens is not None and load >= self._max_tokens:
            raise EngineOverloadedError(
                f"{load} prompt tokens wait to be computed, limit is {self._max_tokens} (max_waiting_tokens); "
                f"try again later (request {request_id})"
            )
