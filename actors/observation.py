"""Watching actors at work: who has a turn when, and what was done elsewhere meanwhile."""

from __future__ import annotations

from typing import Protocol


class Observer(Protocol):
    """Is told what actors do, while it is attached; without one a turn costs one comparison more."""

    def time(self) -> float:
        """Seconds on the clock that it goes by."""
        ...

    def wakes(self, actor: str) -> None:
        """An actor's wait is over: its turn begins."""
        ...

    def sleeps(self, actor: str, wait: str) -> None:
        """An actor waits for something from now on: its turn has ended. May come twice in a row."""
        ...

    def worked(self, where: str, what: str, began: float, ended: float, facts: dict[str, int]) -> None:
        """Something took place outside of the loop's thread; times on its clock."""
        ...
