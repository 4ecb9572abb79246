"""What a reservation has been given so far."""

from __future__ import annotations

from collections.abc import Iterator

from .kv_events import KVChange
from .messages import Admitted, Granted, Reserve, Victim


class Grants:
    """A ``Granted`` in the making."""

    def __init__(self, wants: Reserve) -> None:
        self.victims: Iterator[Victim] = iter(wants.victims)
        self.soon_passed = wants.soon_passed
        self.step = wants.step
        self.replaced: dict[str, list[tuple[int, int, int]]] = {}
        self.grown: dict[str, list[int]] = {}
        self.grown_more: dict[str, list[list[int]]] = {}
        self.stalled: set[str] = set()
        self.lacks_blocks = False  # a running request got no blocks, and it is its turn
        self.holders = list(wants.holders)
        self.displaced = list(wants.displaced)
        self.preempted: list[str] = []
        self.admitted: list[Admitted] = []
        self.refused = False
        self.head_fits_soon = False  # when steps under way have ended: nobody is to take that room
        self.num_out_of_turn = 0

    def take_back(self) -> None:
        """Who was preempted in the end keeps nothing that was granted before."""
        for req_id in self.preempted:
            for given in (self.grown, self.grown_more, self.replaced):
                given.pop(req_id, None)

    def answer(self, num_free_blocks: int, changes: list[KVChange]) -> Granted:
        """The record for whoever asked."""
        return Granted(
            grown=self.grown,
            grown_more=self.grown_more,
            replaced=self.replaced,
            stalled=self.stalled,
            preempted=self.preempted,
            admitted=self.admitted,
            refused=self.refused,
            num_free_blocks=num_free_blocks,
            changes=changes,
        )
