"""Whether the caller is inside of a trio run, found out without importing trio."""

from __future__ import annotations

import sys
from typing import Any


def trio_of_caller() -> Any:
    """``trio.lowlevel`` if the caller is inside of a trio run, else None.

    Another thread may be importing trio at this moment (as compilers and model libraries do on the
    way): what is there by half does not run.
    """
    lowlevel = getattr(sys.modules.get("trio"), "lowlevel", None)
    in_trio_run = getattr(lowlevel, "in_trio_run", None)
    return lowlevel if in_trio_run is not None and in_trio_run() else None
