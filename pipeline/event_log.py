"""All that an engine tells those who follow it: lives of requests, cached blocks, steps."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ..actors import LoopPort
from ..scheduler.kv_events import KVEventBatch, KVEventsLost, ReplayBuffer
from ..scheduler.messages import EngineCoreEvent, EngineCoreOutputs
from .board import public_id
from .followers import Follower, Followers
from .step_stats import StepStats

# News that a slow follower may leave unread; beyond them the oldest are dropped.
UNREAD_LIMIT = 100_000
UNREAD_STEPS = 10_000

EventStream = Follower[EngineCoreEvent]
KVEventStream = Follower[KVEventBatch | KVEventsLost]
StepStatsStream = Follower[StepStats]


class EventLog:
    """Hands news to their followers.

    Batches of KV events are also kept for followers that come back; that begins with the first one.
    """

    def __init__(self, port: LoopPort) -> None:
        self._requests: Followers[EngineCoreEvent] = Followers(port, UNREAD_LIMIT)
        self._kv: Followers[KVEventBatch | KVEventsLost] = Followers(port, UNREAD_STEPS, _lost)
        self.steps: Followers[StepStats] = Followers(port, UNREAD_STEPS)
        self._replay = ReplayBuffer(UNREAD_STEPS)

    def follow(self) -> EventStream:
        """A new follower of requests."""
        return self._requests.follow()

    def follow_kv(self, replay_from: int | None) -> KVEventStream:
        """A new follower of cached blocks; with a number, the batches kept from there on come first."""
        return self._kv.follow([] if replay_from is None else self._replay.since(replay_from))

    def take(self, outputs: EngineCoreOutputs) -> None:
        """What one step has to tell, step statistics apart."""
        self.add(outputs.events)
        if outputs.kv_events:
            self._replay.add(outputs.kv_events)
            self._kv.add([*outputs.kv_events])

    def add(self, events: list[EngineCoreEvent]) -> None:
        """News of requests."""
        if events and self._requests:
            self._requests.add([_by_public_id(event) for event in events])

    def close(self, make_error: Callable[[], BaseException] | None = None) -> None:
        """Nothing more will come; each follower gets an error of its own, if there is one."""
        for followers in (self._requests, self._kv, self.steps):
            followers.close(make_error)


def _lost(first: KVEventBatch | KVEventsLost, last: KVEventBatch | KVEventsLost) -> KVEventsLost:
    assert isinstance(first, KVEventBatch)
    assert isinstance(last, KVEventBatch)
    return KVEventsLost(first=first.number, last=last.number)


def _by_public_id(event: EngineCoreEvent) -> EngineCoreEvent:
    request_id = public_id(event.request_id)
    return event if request_id == event.request_id else msgspec.structs.replace(event, request_id=request_id)
