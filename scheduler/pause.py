"""Pausing: what a scheduler still plans, and by which name a user asks for it."""

from __future__ import annotations

import enum
from typing import Literal

PauseMode = Literal["wait", "abort", "keep"]


class PauseState(enum.IntEnum):
    """What is planned."""

    UNPAUSED = 0
    PAUSED_NEW = 1  # requests that have begun go on, those that wait for their first admission stay
    PAUSED_ALL = 2  # nothing


STATE_OF_MODE: dict[PauseMode, PauseState] = {
    "wait": PauseState.PAUSED_NEW,
    "abort": PauseState.PAUSED_NEW,
    "keep": PauseState.PAUSED_ALL,
}
