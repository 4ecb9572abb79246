"""Keys of cached KV blocks: the one function that makes them, for every tier.

A key is the digest of its parent's key, the block's tokens and the media items that reach into
the block; the first block's parent is a root that holds what all of them depend on. Parts are
typed and length-prefixed, so that no two different inputs run together into the same bytes.

A hit is not compared with the tokens behind it, which the KV cache does not hold: equal keys
are taken for equal content. So only cryptographic digests are offered, cut to no less than 128
bits. SHA-256 is the default: most CPUs have instructions for it. BLAKE2b is for those without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from hashlib import blake2b, sha256

import msgspec

from .arrays import TOKEN_BYTES, Tokens, bytes_of_tokens
from .errors import ConfigError

VERSION = b"callboard.kv.2"
LEAST_BITS = 128
_WIDEST = {"sha256": 256, "blake2b": 512}  # bits

Digest = Callable[[bytes], bytes]


class MediaItem(msgspec.Struct, frozen=True, kw_only=True):
    """An image or a sound whose embeddings stand in for some tokens of a prompt.

    Args:
        identifier: digest of the content as the model gets it: shape, type and processing
            included. Never cut: equal identifiers are taken for equal content.
        offset: index in the prompt of the first token that it stands in for.
        length: how many tokens it stands in for.
    """

    identifier: str
    offset: int
    length: int


@cache
def digest_of(name: str) -> Digest:
    """The digest that a setting names: "sha256", "blake2b", or either cut to a number of bits ("sha256-128").

    Raises ConfigError for one that is unknown, or so short that it might collide.
    """
    algorithm, cut, bits = name.partition("-")
    widest = _WIDEST.get(algorithm)
    if widest is None or (cut and not bits.isdecimal()):
        raise ConfigError(f"prefix_hash is {name!r}, known are {sorted(_WIDEST)}, each also cut, as in 'sha256-128'")
    size = int(bits or 256)
    if not LEAST_BITS <= size <= widest or size % 8:
        raise ConfigError(
            f"prefix_hash is {name!r}, {algorithm} has whole bytes from {LEAST_BITS} to {widest} bits: "
            "a shorter digest may collide, and hits are not verified"
        )
    if algorithm == "blake2b":
        return lambda data: blake2b(data, digest_size=size // 8).digest()
    if size == widest:
        return lambda data: sha256(data).digest()
    return lambda data: sha256(data).digest()[: size // 8]


@lru_cache(maxsize=1024)
def root_key(
    *,
    weights_id: str = "",
    block_size: int,
    adapter: str | None = None,
    salt: str | None = None,
    digest: str = "sha256",
) -> bytes:
    """The parent of a request's first block.

    ``weights_id`` and ``adapter`` name contents and not places: what is loaded anew under an old
    name gets another.
    """
    parts = [VERSION]
    for kind, text in ((b"w", weights_id), (b"b", str(block_size)), (b"a", adapter), (b"s", salt)):
        # None and "" differ: an absent part has no length.
        parts.append(kind + b"-" if text is None else kind + b"+" + _prefixed(text.encode()))
    return digest_of(digest)(b"".join(parts))


def extend_keys(
    keys: list[bytes],
    root: bytes,
    tokens: Tokens,
    block_size: int,
    *,
    items: Sequence[MediaItem] = (),
    digest: str = "sha256",
) -> None:
    """Append the keys of the full blocks of ``tokens`` that ``keys`` does not cover yet.

    ``tokens`` are the request's tokens from block ``len(keys)`` on; ``items`` are all its media.
    """
    extend_keys_by_bytes(keys, root, bytes_of_tokens(tokens), block_size, items=items, digest=digest)


def extend_keys_by_bytes(
    keys: list[bytes],
    root: bytes,
    data: bytes | memoryview,
    block_size: int,
    *,
    items: Sequence[MediaItem] = (),
    digest: str = "sha256",
) -> None:
    """The same for tokens that are bytes already, ``TOKEN_BYTES`` each."""
    width, make = TOKEN_BYTES * block_size, digest_of(digest)
    parent = keys[-1] if keys else root
    first = len(keys) * block_size
    for start in range(0, len(data) - width + 1, width):
        block = parent + data[start : start + width]
        if items:
            block += _items_in(items, first + start // TOKEN_BYTES, block_size)
        parent = make(block)
        keys.append(parent)


def _items_in(items: Sequence[MediaItem], start: int, block_size: int) -> bytes:
    """What the items say that reach into a block: who they are, and where they began.

    The place counts from the block's start; it is negative for an item that began before.
    """
    parts: list[bytes] = []
    for item in items:
        place = item.offset - start
        if place < block_size and place + item.length > 0:
            parts.append(b"m" + _prefixed(item.identifier.encode()) + place.to_bytes(8, "little", signed=True))
    return b"".join(parts)


def _prefixed(data: bytes) -> bytes:
    return len(data).to_bytes(8, "little") + data
