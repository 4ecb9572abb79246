"""The keys of a request's full blocks, made as its tokens become known."""

from __future__ import annotations

from .arrays import TOKEN_BYTES, TokenArray, bytes_of_tokens
from .config import SchedulerConfig
from .hashing import digest_of, extend_keys_by_bytes, root_key
from .request import Request
from .request_state import RequestState


class BlockKeys:
    """Extends requests' keys; without prefix caching it makes none."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._width = config.block_size * TOKEN_BYTES

    def hash_known(self, state: RequestState) -> None:
        """Make the keys of a request that holds no row, up to its last full block."""
        if self._config.enable_prefix_caching:
            missing = state.token_ids()[len(state.digests) * self._config.block_size :]
            self._extend(state, bytes_of_tokens(missing))

    def extend(self, state: RequestState, tokens: TokenArray, full: int) -> list[bytes]:
        """Make the keys up to block ``full``; returns the new ones. ``tokens`` are all of the request's."""
        return self.extend_all([state], tokens[None], [0], [full])[0]

    def extend_all(
        self, states: list[RequestState], tokens: TokenArray, rows: list[int], full: list[int]
    ) -> list[list[bytes]]:
        """Make the keys of requests, each up to its full blocks; returns the new ones.

        ``tokens[rows[i]]`` are all of request i's, in rows that lie one behind another.
        """
        if not self._config.enable_prefix_caching:
            return [[] for _ in states]
        data, stride, width = tokens.data.cast("B"), tokens.strides[0], self._width
        make, new = digest_of(self._config.prefix_hash), list[list[bytes]]()
        for state, row, count in zip(states, rows, full, strict=True):
            digests, have = state.digests, len(state.digests)
            text = data[row * stride + have * width : row * stride + count * width]
            if digests and count == have + 1:  # nearly always, so it is done in place
                digests.append(make(digests[-1] + text))
            else:
                self._extend(state, text)
            new.append(digests[have:])
        return new

    def _extend(self, state: RequestState, data: bytes | memoryview) -> None:
        config = self._config
        root = b"" if state.digests else self._root(state.request)  # the parent of the first block, and of no other
        extend_keys_by_bytes(state.digests, root, data, config.block_size, digest=config.prefix_hash)

    def _root(self, request: Request) -> bytes:
        return root_key(
            weights_id=self._config.weights_id,
            block_size=self._config.block_size,
            adapter=request.adapter,
            salt=request.cache_salt,
            digest=self._config.prefix_hash,
        )
