"""The two kinds of columns that plans, tables and runners have, and empty ones that nobody can write to."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

NO_INTS: IntArray = np.zeros(0, np.int64)
NO_BOOLS: BoolArray = np.zeros(0, np.bool_)
NO_INTS.setflags(write=False)
NO_BOOLS.setflags(write=False)
