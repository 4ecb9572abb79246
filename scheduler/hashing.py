"""Keys of cached KV blocks: the one function that makes them, for every tier.

A key is the SHA-256 digest of its parent's key and the block's tokens; the first block's
parent is a root that holds what all of them depend on. Parts are typed and length-prefixed,
so that no two different inputs run together into the same bytes.
"""

from __future__ import annotations

from hashlib import sha256

import numpy as np
from numpy.typing import ArrayLike

VERSION = b"callboard.kv.1"


def root_key(*, weights_id: str = "", block_size: int, adapter: str | None = None, salt: str | None = None) -> bytes:
    """The parent of a request's first block (32 bytes)."""
    parts = sha256(VERSION)
    for kind, text in ((b"w", weights_id), (b"b", str(block_size)), (b"a", adapter), (b"s", salt)):
        # None and "" differ: an absent part has no length.
        data = b"" if text is None else text.encode()
        parts.update(kind + (b"-" if text is None else b"+" + len(data).to_bytes(8, "little")) + data)
    return parts.digest()


def extend_keys(keys: list[bytes], root: bytes, tokens: ArrayLike, block_size: int) -> None:
    """Append the keys of the full blocks of ``tokens`` that ``keys`` does not cover yet.

    ``tokens`` are the request's tokens from block ``len(keys)`` on.
    """
    data = np.asarray(tokens, dtype="<i8").tobytes()
    width = 8 * block_size
    parent = keys[-1] if keys else root
    for start in range(0, len(data) - width + 1, width):
        parent = sha256(parent + data[start : start + width]).digest()
        keys.append(parent)
