"""Who runs in the place of requests that found no room, and how long that counts against them."""

from __future__ import annotations

from collections.abc import Iterable

from .running_table import RunningTable


class Turns:
    """Requests that were admitted out of turn, each with those that it overtook.

    It gives way to them as long as one of them waits. Those that come later it has not overtaken.
    """

    def __init__(self, table: RunningTable) -> None:
        self._table = table
        self._overtaken: dict[str, tuple[int, set[str]]] = {}  # by request: its row, and whom it overtook

    def overtake(self, req_id: str, row: int, overtaken: Iterable[str]) -> None:
        """A request got a row before others that stood before it in the queue."""
        self._overtaken[req_id] = (row, set(overtaken))

    def left_queue(self, req_id: str) -> None:
        """A request waits no longer."""
        for late, (row, overtaken) in list(self._overtaken.items()):
            overtaken.discard(req_id)
            if not overtaken:
                self._table.come_into_turn(row)
                del self._overtaken[late]

    def left_row(self, req_id: str) -> None:
        """A request runs no longer."""
        self._overtaken.pop(req_id, None)
