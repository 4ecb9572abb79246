"""Garbage collection while an engine runs, for those who ask for it; the interpreter belongs to the host."""

from __future__ import annotations

import gc


class Frozen:
    """Keeps the collector from looking again at what was there when the engine started.

    A full collection walks over every object of the process: modules, tables of tokenizers, the
    host's own data. Frozen ones are passed over, so that a collection while streams run stays short.
    Nothing is switched off: new garbage is collected as always.
    """

    def __init__(self) -> None:
        self._ours = gc.get_freeze_count() == 0  # else the host has frozen objects, and thawing is its own affair
        gc.collect()
        gc.freeze()

    def thaw(self) -> None:
        """Let the collector look at everything again, unless the host had frozen something itself."""
        if self._ours:
            gc.unfreeze()
            self._ours = False
