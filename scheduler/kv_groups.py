"""Groups of layers with a block table each, since they keep the keys and values of different tokens.

A group without a window keeps all tokens. In one with a window a token sees itself and the
``window - 1`` before it, so a block is needed no more when the window has passed it. The null
block stands in its place.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, cast

import msgspec
import numpy as np

from .arrays import IntArray
from .errors import ConfigError
from .setting_types import at_least, shown


class KVGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Layers with one block table.

    Args:
        window: how many tokens a token sees in these layers, itself included; None: all before it.
        num_layers: layers in the group; a block has room for as many as the largest group of the model has.

    Raises ConfigError for a window or a number of layers below 1.
    """

    window: int | None = None
    num_layers: int = 1

    def __post_init__(self) -> None:
        if self.window is not None:
            at_least("window", self.window, 1)
        at_least("num_layers", self.num_layers, 1)


ONE_GROUP = (KVGroup(),)


def check_groups(groups: Any) -> None:
    """Raise ConfigError unless these are groups, at least one."""
    listed = cast("Sequence[Any]", groups) if isinstance(groups, list | tuple) else ()
    if not listed or not all(isinstance(group, KVGroup) for group in listed):
        raise ConfigError(f"kv_groups is {shown(cast('object', groups))}, needed are KVGroups, at least one")


class GroupSizes:
    """How many blocks requests need in each group.

    Args:
        in_flight: most tokens of a request that planned and not yet applied steps may hold; None: no limit,
            then a group with a window needs as much room as one without.
    """

    def __init__(self, groups: Sequence[KVGroup], block_size: int, in_flight: int | None = None) -> None:
        check_groups(groups)
        self.windows = [group.window for group in groups]
        self.one_whole = self.windows == [None]
        self.has_windows = any(window is not None for window in self.windows)
        self.block_size = block_size
        self._most = [self._most_in(window, in_flight) for window in self.windows]

    def _most_in(self, window: int | None, in_flight: int | None) -> int | None:
        if window is None or in_flight is None:
            return None
        return -(-(window - 1 + in_flight) // self.block_size) + 1

    def passed(self, group: int, num_tokens: int) -> int:
        """Blocks at a table's head that nobody needs once ``num_tokens`` are computed for good."""
        window = self.windows[group]
        return 0 if window is None else max(num_tokens - window + 1, 0) // self.block_size

    def num_passed(self, num_tokens: IntArray) -> IntArray:
        """The same over all groups, for each of many requests."""
        starts = [num_tokens - window + 1 for window in self.windows if window is not None]
        return sum((np.maximum(start, 0) // self.block_size for start in starts), np.zeros_like(num_tokens))

    def seen(self, group: int, num_blocks: int) -> int:
        """Of so many blocks how many, the last ones, the token behind them sees."""
        window = self.windows[group]
        return num_blocks if window is None else min(num_blocks, -(-(window - 1) // self.block_size))

    def room(self, group: int, num_tokens: int, hit: int = 0) -> int:
        """Blocks that a table of ``num_tokens`` must have at once, where ``hit`` are found in the cache.

        A group with a window gives blocks back on the way, so it needs no more than window and
        steps in flight take up.
        """
        return self.length(group, num_tokens, passed=hit - self.seen(group, hit))

    def length(self, group: int, num_tokens: int, passed: int) -> int:
        """The same where a window has passed so many blocks at the table's head; they do not count."""
        whole = -(-num_tokens // self.block_size) - passed
        most = self._most[group]
        return whole if most is None else min(whole, most)

    def total_room(self, num_tokens: int) -> int:
        """The same over all groups, when nothing is found."""
        if self.one_whole:
            return -(-num_tokens // self.block_size)
        return sum(self.room(group, num_tokens) for group in range(len(self.windows)))

    def longest_text(self, num_blocks: int, limit: int) -> int:
        """Tokens, up to ``limit``, for which so many blocks are enough."""
        size = self.block_size
        if self.one_whole:
            return min(limit, num_blocks * size)
        most = bisect_right(range(-(-limit // size)), num_blocks, key=lambda n: self.total_room((n + 1) * size))
        return min(limit, most * size)
