"""The longest cached prefix that all groups of layers can go on from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from .block_pool import NULL_BLOCK, BlockPool
from .block_table import BlockTable
from .kv_groups import GroupSizes


class Hit(NamedTuple):
    """A cached prefix.

    Args:
        num_blocks: its length.
        found: for each group the blocks that are needed to go on from it, the prefix's last ones.
        incomplete: a block behind it that lacks only its last token; the null block: there is none.
    """

    num_blocks: int
    found: list[list[int]]
    incomplete: int = NULL_BLOCK

    def num_tokens(self, block_size: int) -> int:
        """Tokens whose keys and values are there."""
        return self.num_blocks * block_size + (block_size - 1 if self.incomplete else 0)

    def blocks(self) -> Iterable[int]:
        """The found blocks of all groups."""
        return chain(*self.found)


NO_HIT = Hit(0, [])


class Start(NamedTuple):
    """Where a request goes on.

    Args:
        num_tokens: computed already. At least one token is left, so that there is a result.
        write_from: where that one is in a block which others may read, the first token that is written; else 0.
        hit: the cached prefix it goes on from; or
        own: the table that was kept for it.
    """

    num_tokens: int
    write_from: int
    hit: Hit = NO_HIT
    own: BlockTable | None = None

    @classmethod
    def behind(cls, computed: int, num_tokens: int, *, hit: Hit = NO_HIT, own: BlockTable | None = None) -> Start:
        """Behind ``computed`` of a request's ``num_tokens`` tokens, the last of which is computed in any case."""
        if computed < num_tokens:
            return cls(computed, 0, hit, own)
        return cls(num_tokens - 1, num_tokens, hit, own)


def find_hit(pool: BlockPool, sizes: GroupSizes, keys: Sequence[bytes], limit: int) -> Hit:
    """Look a text up by the keys of its full blocks; at most ``limit`` of them are wanted."""
    if sizes.one_whole:
        return _find_whole(pool, keys[:limit])
    hit = longest_hit(sizes, min(limit, len(keys)), lambda group, i: pool.find(keys[i], group) != NULL_BLOCK)
    firsts = [hit - sizes.seen(group, hit) for group in range(len(sizes.windows))]
    return Hit(hit, [[pool.find(key, group) for key in keys[first:hit]] for group, first in enumerate(firsts)])


def _find_whole(pool: BlockPool, keys: Sequence[bytes]) -> Hit:
    blocks = pool.find_prefix(keys)
    behind = keys[len(blocks) : len(blocks) + 1]
    return Hit(len(blocks), [blocks], pool.find_incomplete(behind[0]) if behind else NULL_BLOCK)


def longest_hit(sizes: GroupSizes, limit: int, has: Callable[[int, int], bool]) -> int:
    """Blocks of the longest prefix that every group can go on from.

    A group without a window must have all its blocks, one with a window only those that the
    next token sees. A group that can only go on from a shorter prefix shortens it for all, so
    they are asked until they agree.

    Args:
        limit: most blocks of a prefix.
        has: whether a group has block number i of the prefix.
    """
    windowed = [group for group, window in enumerate(sizes.windows) if window is not None]
    hit = limit
    for group, window in enumerate(sizes.windows):
        if window is None:  # what holds for a prefix holds for a shorter one: these are asked once
            hit = next((i for i in range(hit) if not has(group, i)), hit)
    while True:
        agreed = hit
        for group in windowed:
            hit = _own_hit(sizes, group, hit, has)
        if hit == agreed:
            return hit


def _own_hit(sizes: GroupSizes, group: int, limit: int, has: Callable[[int, int], bool]) -> int:
    """The longest prefix of at most ``limit`` blocks that a group with a window can go on from."""
    end = limit
    for i in range(limit - 1, -1, -1):
        if end - i > sizes.seen(group, end):
            break
        if not has(group, i):
            end = i
    return end
