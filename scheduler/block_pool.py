"""The blocks of the KV cache: who holds them, what they contain, who is reused next."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile

from .errors import BooksError
from .kv_events import Journal

NULL_BLOCK = 0


class BlockPool:
    """Blocks 1..num_blocks with reference counts, an LRU order of the free ones, and keys.

    A free block keeps its content and its key until it is handed out again, so it can still
    be shared. Block 0 is the null block and is never handed out.

    A text's last token is never computed, so the block that it fills lacks one token. It is
    remembered by the key that it will have, and one request alone may take it and complete it.

    Args:
        num_blocks: usable blocks.
        num_groups: groups of layers. They share the blocks, and what one has entered no other finds:
            under equal keys they keep different layers.
    """

    def __init__(self, num_blocks: int, num_groups: int = 1) -> None:
        self.num_blocks = num_blocks
        self._refs = [0] * (num_blocks + 1)
        self._key: list[bytes | None] = [None] * (num_blocks + 1)
        self._group = [0] * (num_blocks + 1)  # of a block with a key, whose it is
        self._block_of: list[dict[bytes, int]] = [{} for _ in range(num_groups)]
        self._incomplete: dict[bytes, int] = {}
        self._key_to_come: dict[int, bytes] = {}
        self.num_evictions = 0
        self.journal = Journal()
        # First in, first reused. An ordered dict gives up a block from the middle at once.
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks + 1))

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds, cached ones included."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks that can be found by their key, held ones included."""
        return sum(map(len, self._block_of))

    def take(self, count: int) -> list[int]:
        """Hand out ``count`` blocks, the longest free first. Raises BooksError if too few are free."""
        if count > len(self._free):
            raise BooksError(f"{count} blocks were taken, {len(self._free)} are free")
        free, keys, refs = self._free, self._key, self._refs
        blocks = [free.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            if keys[block] is not None or block in self._key_to_come:
                self._forget(block)
            refs[block] = 1
        return blocks

    def find(self, key: bytes, group: int = 0) -> int:
        """The group's block with this key, or the null block."""
        return self._block_of[group].get(key, NULL_BLOCK)

    def find_prefix(self, keys: Sequence[bytes]) -> list[int]:
        """The first group's blocks with these keys, up to the first that is not there."""
        return list(takewhile(bool, map(self._block_of[0].get, keys)))  # pyright: ignore[reportReturnType]

    def find_incomplete(self, key: bytes) -> int:
        """A block that nobody holds and that has this key when its last token is computed; or the null block."""
        block = self._incomplete.get(key, NULL_BLOCK)
        return block if block in self._free else NULL_BLOCK

    def claim(self, block: int) -> None:
        """Hand out an incomplete block with its content."""
        del self._free[block]
        self._forget(block)
        self._refs[block] = 1

    def num_held_of(self, blocks: Iterable[int]) -> int:
        """How many of these blocks somebody holds."""
        refs = self._refs
        return sum([refs[block] > 0 for block in blocks])

    def is_private(self, block: int) -> bool:
        """Whether a held block is read by its holder alone, now and later: nobody else holds or finds it."""
        return self._refs[block] == 1 and self._key[block] is None

    def share(self, blocks: Iterable[int]) -> None:
        """Hold cached blocks once more."""
        refs, free = self._refs, self._free
        for block in blocks:
            if refs[block] == 0:
                del free[block]
            refs[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Hold blocks once less, a sequence's tail first.

        Cached blocks join the end of the free order, so the tail is reused before the head;
        blocks without a key can serve nobody and are reused first.
        """
        refs, free, keys, to_come = self._refs, self._free, self._key, self._key_to_come
        useless: list[int] = []
        for block in reversed(blocks):
            left = refs[block] = refs[block] - 1
            if left == 0:
                free[block] = None
                if keys[block] is None and block not in to_come:
                    useless.append(block)
            elif left < 0:
                raise BooksError(f"block {block} was released more often than it was held")
        for block in reversed(useless):
            self._free.move_to_end(block, last=False)

    def num_held_only(self, holds: Mapping[int, int]) -> int:
        """How many of these blocks nobody holds beyond so many holds: they would become free without them."""
        return sum(self._refs[block] == count for block, count in holds.items())

    def publish(self, blocks: Sequence[int], keys: Sequence[bytes], places: Iterable[int], group: int = 0) -> list[int]:
        """Let held blocks of a table be found by their keys; of equal blocks the first stays.

        Returns the places that were not entered: an equal block is there, or the block has a key already.
        """
        block_of, own, owner = self._block_of[group], self._key, self._group
        refused: list[int] = []
        for place in places:
            block, key = blocks[place], keys[place]
            if key in block_of or own[block] is not None:
                refused.append(place)
                continue
            block_of[key] = block
            own[block] = key
            owner[block] = group
        return refused

    def publish_incomplete(self, block: int, key: bytes) -> None:
        """Remember a held block that lacks the last of its tokens."""
        if key not in self._incomplete and key not in self._block_of[0] and self._key[block] is None:
            self._incomplete[key] = block
            self._key_to_come[block] = key

    def forget_all(self) -> bool:
        """Forget every key, if nobody holds a block."""
        if len(self._free) != self.num_blocks:
            return False
        self._key = [None] * (self.num_blocks + 1)
        for block_of in self._block_of:
            block_of.clear()
        self._incomplete.clear()
        self._key_to_come.clear()
        return True

    def _forget(self, block: int) -> None:
        if block in self._key_to_come:
            del self._incomplete[self._key_to_come.pop(block)]
        key = self._key[block]
        if key is not None:
            group = self._group[block]
            del self._block_of[group][key]
            self._key[block] = None
            self.num_evictions += 1
            self.journal.removed(key, group)

    def check(self, holds: Sequence[int]) -> None:
        """Raise BooksError unless ``holds[b]`` is how often block b is held, and all agrees."""
        for block in range(1, self.num_blocks + 1):
            if self._refs[block] != holds[block]:
                raise BooksError(f"block {block} has {self._refs[block]} references, {holds[block]} holders")
            if (self._refs[block] == 0) != (block in self._free):
                raise BooksError(f"block {block} has {self._refs[block]} references, free: {block in self._free}")
        for group, block_of in enumerate(self._block_of):
            for key, block in block_of.items():
                if self._key[block] != key or self._group[block] != group:
                    raise BooksError(f"block {block} is found by a key that is not its own")
        for block, key in enumerate(self._key):
            if key is not None and self._block_of[self._group[block]].get(key) != block:
                raise BooksError(f"block {block} has a key by which it is not found")
        if {key: block for block, key in self._key_to_come.items()} != self._incomplete:
            raise BooksError(f"{len(self._incomplete)} incomplete blocks, {len(self._key_to_come)} keys to come")
