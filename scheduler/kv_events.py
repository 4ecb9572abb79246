"""What happens to cached blocks, for routers and other caches that keep a picture of this one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray


class BlockStored(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Consecutive blocks of one text can be found from now on.

    Args:
        block_hashes: their keys, as the prefix cache has them.
        parent_block_hash: the key of the block before; None: they begin a text.
        token_ids: their tokens, ``block_size`` for each block.
        adapter: with which they were computed. A salt is a secret and is not told.
        group: the group of layers whose block table they stand in.
    """

    block_hashes: list[bytes]
    parent_block_hash: bytes | None
    token_ids: list[int]
    block_size: int
    adapter: str | None = None
    group: int = 0


class BlockRemoved(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Blocks were handed out anew: their old content can no longer be found."""

    block_hashes: list[bytes]
    group: int = 0


class AllBlocksCleared(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The prefix cache was emptied."""


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared


class KVEventBatch(msgspec.Struct, frozen=True, kw_only=True):
    """All events of one step, in order.

    Blocks are told of when a plan is made that fills them; what is read from them is ordered
    behind that step.
    """

    number: int  # 0, 1, 2, ... without gaps, from the engine's first follower on
    step: int  # the newest plan at that time
    time: float  # seconds on the engine's clock
    events: list[KVEvent]


class KVEventsLost(msgspec.Struct, frozen=True, kw_only=True):
    """In place of batches that a slow follower did not get: numbers ``first`` to ``last``."""

    first: int
    last: int


# --- from the KV cache to the scheduler, which knows the tokens


class Stored(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Full blocks ``first`` to ``first + count - 1`` of a request's table in one group were entered.

    ``released``: as it ended.
    """

    req_id: str
    first: int
    count: int = 1
    released: bool = False
    group: int = 0

    def goes_on_with(self, req_id: str, block: int, released: bool, group: int) -> bool:
        """Whether a block of this request is the next one."""
        end = self.first + self.count
        return (self.req_id, end, self.released, self.group) == (req_id, block, released, group)


class Removed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The block of this key was handed out anew."""

    key: bytes
    group: int = 0


KVChange = Stored | Removed


class Journal:
    """Writes down changes of the prefix cache in order, while somebody wants to know them."""

    def __init__(self) -> None:
        self._changes: list[KVChange] | None = None

    @property
    def is_open(self) -> bool:
        """Whether somebody wants to know."""
        return self._changes is not None

    def open(self, wanted: bool) -> None:
        """Begin a new page, or none."""
        self._changes = [] if wanted else None

    def take(self) -> list[KVChange]:
        """The page."""
        changes, self._changes = self._changes, None
        return changes or []

    def stored(self, req_id: str, block: int, released: bool, group: int) -> None:
        """A full block of a request was entered; consecutive ones become one change."""
        if self._changes is None:
            return
        last = self._changes[-1] if self._changes else None
        if isinstance(last, Stored) and last.goes_on_with(req_id, block, released, group):
            self._changes[-1] = msgspec.structs.replace(last, count=last.count + 1)
        else:
            self._changes.append(Stored(req_id=req_id, first=block, released=released, group=group))

    def removed(self, key: bytes, group: int) -> None:
        """A cached block was handed out anew."""
        if self._changes is not None:
            self._changes.append(Removed(key=key, group=group))


class ReplayBuffer:
    """The newest batches, for followers that come back.

    Args:
        size: batches kept; older ones are given up.
    """

    def __init__(self, size: int = 10_000) -> None:
        self._batches: deque[KVEventBatch] = deque(maxlen=size)

    def add(self, batches: Iterable[KVEventBatch]) -> None:
        """New batches, in the order of their numbers."""
        self._batches.extend(batches)

    def since(self, number: int) -> list[KVEventBatch]:
        """The batches from ``number`` on that are still there; where the list ends, all is told."""
        return [batch for batch in self._batches if batch.number >= number]


class Described(NamedTuple):
    """What an event says of a request's blocks beyond their places."""

    keys: list[bytes]  # of all its full blocks
    token_ids: list[int] | NDArray[np.int32]  # its tokens, or more
    adapter: str | None


def events_of(changes: list[KVChange], describe: Callable[[Stored], Described], block_size: int) -> list[KVEvent]:
    """Changes as followers are told of them."""
    return [
        _stored(change, describe(change), block_size)
        if isinstance(change, Stored)
        else BlockRemoved(block_hashes=[change.key], group=change.group)
        for change in changes
    ]


def _stored(change: Stored, text: Described, block_size: int) -> BlockStored:
    first, end = change.first, change.first + change.count
    return BlockStored(
        block_hashes=text.keys[first:end],
        parent_block_hash=text.keys[first - 1] if first else None,
        token_ids=[int(token) for token in text.token_ids[first * block_size : end * block_size]],
        block_size=block_size,
        adapter=text.adapter,
        group=change.group,
    )
