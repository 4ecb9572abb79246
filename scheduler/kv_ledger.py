"""What the parts of the KV cache share: its blocks, who holds them, and who waits for them to be free."""

from __future__ import annotations

from collections.abc import Sequence

from .block_pool import BlockPool
from .block_table import BlockTable
from .fences import Fences
from .kv_grants import Grants
from .kv_groups import GroupSizes, KVGroup
from .kv_holders import Holders
from .messages import Victim


class Ledger:
    """Block tables of those who run in ``tables``, of those who only keep blocks in ``holders``."""

    def __init__(
        self, num_blocks: int, block_size: int, groups: Sequence[KVGroup], max_in_flight_tokens: int | None
    ) -> None:
        self.sizes = GroupSizes(groups, block_size, max_in_flight_tokens)
        self.groups = range(len(groups))
        self.pool = BlockPool(num_blocks, len(groups))
        self.fences = Fences(self.pool)
        self.tables: dict[str, BlockTable] = {}
        self.holders = Holders(self.fences, whole=self.sizes.has_windows)

    def preempt(self, victim: Victim, grants: Grants) -> None:
        """Take a request's row; its blocks are kept, and the first to be given up."""
        self.holders.keep(victim.req_id, self.tables.pop(victim.req_id), victim.fence)
        grants.holders.insert(0, victim.req_id)
        grants.preempted.append(victim.req_id)
