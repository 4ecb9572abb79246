"""The KV cache manager as an actor: one reservation a step."""

from __future__ import annotations

from ..actors import Actor, Ask
from .kv_cache_manager import KVCacheManager
from .messages import Granted, Reserve, ResetPrefixCache


class KVCacheActor(Actor):
    """Answers reservations in the order in which they come."""

    def __init__(self, core: KVCacheManager) -> None:
        super().__init__("kv_cache")
        self.core = core
        # Only the scheduler asks, and it waits for each answer: one place is enough.
        self.wants = self.mailbox.lane("reserve", 1)

    async def run(self) -> None:
        ask: Ask[Reserve | ResetPrefixCache, Granted | bool]
        async for ask in self.wants:
            try:
                ask.reply.set_result(self._answer(ask.message))
            except BaseException as error:
                ask.reply.set_error(error)
                raise

    def _answer(self, message: Reserve | ResetPrefixCache) -> Granted | bool:
        match message:
            case Reserve():
                return self.core.reserve(message)
            case ResetPrefixCache():
                return self.core.reset_prefix_cache()
