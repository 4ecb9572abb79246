"""The kinds of columns that plans, tables and runners have, and empty ones that nobody can write to."""

from __future__ import annotations

from struct import pack
from typing import Any

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
TokenArray = NDArray[np.int32]
Tokens = list[int] | NDArray[np.integer[Any]]

TOKEN = np.dtype("<i4")  # the same bytes on every machine: keys are made of them
TOKEN_BYTES = TOKEN.itemsize

NO_INTS: IntArray = np.zeros(0, np.int64)
NO_BOOLS: BoolArray = np.zeros(0, np.bool_)
NO_INTS.setflags(write=False)
NO_BOOLS.setflags(write=False)


def joined(columns: list[IntArray]) -> IntArray:
    """One column of several; often there is but one."""
    if len(columns) == 1:
        return columns[0]
    return np.concatenate(columns) if columns else NO_INTS


def bytes_of_tokens(tokens: Tokens) -> bytes:
    """Token ids as bytes, ``TOKEN_BYTES`` each. Raises struct.error for a list in which something else stands."""
    if isinstance(tokens, list):
        return pack(f"<{len(tokens)}i", *tokens)  # a third of the time that numpy takes for a list
    return np.asarray(tokens, TOKEN).tobytes()


def column_of_tokens(tokens: Tokens) -> TokenArray:
    """Token ids as a column that nobody can write to."""
    return np.frombuffer(bytes_of_tokens(tokens), TOKEN)
