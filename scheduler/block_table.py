"""What a request holds in the KV cache: a block table for each group of layers."""

from __future__ import annotations

from .block_pool import NULL_BLOCK
from .errors import BooksError


class BlockTable:
    """A request's blocks in each group, the keys of its full ones, and how many of them are published.

    Args:
        groups: the blocks of each group, in order; of ``groups[g]`` the first ``passed[g]`` are the null block.
        passed: blocks at each table's head that the group's window has passed.
        keys: of the full blocks that are known, the same for all groups.
        published: full blocks that were entered in the prefix cache, or found there.
    """

    __slots__ = ("groups", "keys", "passed", "published")

    def __init__(self, groups: list[list[int]], passed: list[int], keys: list[bytes], published: int) -> None:
        self.groups = groups
        self.passed = passed
        self.keys = keys
        self.published = published

    def held(self) -> list[list[int]]:
        """The blocks of each group without the null block."""
        return [blocks[passed:] for blocks, passed in zip(self.groups, self.passed, strict=True)]

    def num_held(self, group: int) -> int:
        """Blocks of one group without the null block."""
        return len(self.groups[group]) - self.passed[group]

    @property
    def num_blocks(self) -> int:
        """Blocks of all groups without the null block."""
        return sum(map(len, self.groups)) - sum(self.passed)

    @property
    def length(self) -> int:
        """Blocks that every group has a place for."""
        return min(map(len, self.groups))

    def cut(self, num_blocks: int) -> list[list[int]]:
        """Take at least so many blocks, in all, from the tails of the tables; returns them by group."""
        return self.cut_at(max(0, self.length - -(-num_blocks // len(self.groups))))

    def cut_at(self, end: int) -> list[list[int]]:
        """Take what stands behind the first ``end`` blocks of each table; returns it by group."""
        tails = [blocks[end:] for blocks in self.groups]
        for blocks in self.groups:
            del blocks[end:]
        self.published = min(self.published, end)
        return tails

    def missing(self, num_blocks: int) -> list[int]:
        """What each group lacks for ``num_blocks`` more than all of them have."""
        if len(self.groups) == 1:
            return [num_blocks]
        lengths = [len(blocks) for blocks in self.groups]
        target = self.length + num_blocks
        return [max(0, target - length) for length in lengths]

    def extend(self, new: list[list[int]]) -> None:
        """Append blocks to each group's table."""
        for blocks, joining in zip(self.groups, new, strict=True):
            blocks.extend(joining)

    def pass_by(self, group: int, count: int) -> list[int]:
        """Put the null block in the place of a group's first ``count`` blocks; returns those that stood there."""
        old = self.passed[group]
        if count <= old:
            return []
        blocks = self.groups[group]
        passed, blocks[old:count] = blocks[old:count], [NULL_BLOCK] * (count - old)
        self.passed[group] = count
        return passed

    def check(self, req_id: str) -> None:
        """Raise BooksError if a block stands where a window has passed."""
        for blocks, passed in zip(self.groups, self.passed, strict=True):
            if any(blocks[:passed]):
                raise BooksError(f"{req_id!r} still has blocks among the {passed} that its window has passed")
