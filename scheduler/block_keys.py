"""The keys of a request's full blocks, made as its tokens become known."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .config import SchedulerConfig
from .hashing import KEYED_TOKENS, digest_of, extend_keys, root_key
from .plan import IntArray
from .request import Request, RequestState

TokenArray = NDArray[np.int32]


class BlockKeys:
    """Extends requests' keys; without prefix caching it makes none."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config

    def hash_known(self, state: RequestState) -> None:
        """Make the keys of a request that holds no row, up to its last full block."""
        if self._config.enable_prefix_caching:
            self._extend(state, state.token_ids()[len(state.digests) * self._config.block_size :])

    def extend(self, state: RequestState, tokens: TokenArray, full: int) -> list[bytes]:
        """Make the keys up to block ``full``; returns the new ones. ``tokens`` are all of the request's."""
        size, have = self._config.block_size, len(state.digests)
        if full > have and self._config.enable_prefix_caching:
            self._extend(state, tokens[have * size : full * size])
        return state.digests[have:]

    def extend_all(
        self, states: list[RequestState], tokens: TokenArray, rows: IntArray, full: list[int]
    ) -> list[list[bytes]]:
        """Make the keys of many requests, each up to its full blocks; returns the new ones.

        ``tokens[rows[i]]`` are all of request i's.
        """
        if any(len(state.digests) + 1 != count for state, count in zip(states, full, strict=True)):
            columns = zip(states, rows.tolist(), full, strict=True)
            return [self.extend(state, tokens[row], count) for state, row, count in columns]
        return self._extend_by_one(states, tokens, rows, full)

    def _extend_by_one(
        self, states: list[RequestState], tokens: TokenArray, rows: IntArray, full: list[int]
    ) -> list[list[bytes]]:
        """The usual case, in which the tokens are gathered and turned into bytes all at once."""
        size, width = self._config.block_size, self._config.block_size * KEYED_TOKENS.itemsize
        ends = np.array(full) * size
        data = tokens[rows[:, None], ends[:, None] + np.arange(-size, 0)].astype(KEYED_TOKENS).tobytes()
        make, new = digest_of(self._config.prefix_hash), list[list[bytes]]()
        for start, state in zip(range(0, len(data), width), states, strict=True):
            parent = state.digests[-1] if state.digests else self._root(state.request)
            key = make(parent + data[start : start + width])
            state.digests.append(key)
            new.append([key])
        return new

    def _extend(self, state: RequestState, tokens: TokenArray | list[int]) -> None:
        config = self._config
        root = b"" if state.digests else self._root(state.request)  # the parent of the first block, and of no other
        extend_keys(state.digests, root, tokens, config.block_size, digest=config.prefix_hash)

    def _root(self, request: Request) -> bytes:
        return root_key(
            weights_id=self._config.weights_id,
            block_size=self._config.block_size,
            adapter=request.adapter,
            salt=request.cache_salt,
            digest=self._config.prefix_hash,
        )
