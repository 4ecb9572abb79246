"""What the scheduler tells of its requests, and to those who follow: counts of each step, events of the KV cache.

Costs next to nothing while nobody follows: admissions are counted, and that is all.
"""

from __future__ import annotations

from collections.abc import Callable

from .kv_events import AllBlocksCleared, Described, KVChange, KVEvent, KVEventBatch, Stored, events_of
from .messages import Admitted, EngineCoreEvent, EventKind, Finished
from .plan import SchedulerOutput
from .request_state import RequestState
from .statistics import HitRate, PrefillStats, PrefixCacheStats, SchedulerStats


class Reports:
    """Counts and events between one record and the next.

    Args:
        block_size: tokens in a block.
        keyed: whether prefixes are looked up and kept.
    """

    def __init__(self, block_size: int, keyed: bool) -> None:
        self.follows_kv = False
        self.follows_steps = False
        self.hit_rate = HitRate()
        self.ending: dict[str, RequestState] = {}  # ended, and their blocks not given back yet; while followed
        self._block_size, self._keyed = block_size, keyed
        self._batches: list[KVEventBatch] = []
        self._num_batches = 0
        self.ended: dict[str, Finished] = {}  # requests whose ends were not told yet
        self._events: list[EngineCoreEvent] = []
        self._first, self._again = [0, 0, 0], [0, 0, 0]  # requests, queries, hits
        self._reset = False
        self._preemptions = 0  # told so far

    # --- admissions

    def admitted(self, state: RequestState, admitted: Admitted) -> None:
        """A request got its blocks: its look-up is counted for the counts of a step and the hit rate.

        The KV cache counts the same look-ups since its beginning, for its own statistics.
        """
        tokens, cached = state.num_tokens, admitted.num_cached_tokens
        if not state.num_preemptions:
            state.prefill = self._prefill(len(state.request.prompt_token_ids), cached)
        if not (self._keyed and state.request.sampling_params.reads_prefix_cache):
            return
        counts = self._again if state.num_preemptions else self._first
        for place, number in enumerate((1, tokens, cached)):
            counts[place] += number
        if not state.num_preemptions:
            self.hit_rate.add(1, tokens, cached)

    def _prefill(self, prompt: int, cached: int) -> PrefillStats:
        full = prompt // self._block_size * self._block_size if self._keyed else 0
        return PrefillStats(
            num_prompt_tokens=prompt, num_cached_tokens=cached, num_cacheable_tokens=max(full - cached, 0)
        )

    # --- events and ends of requests

    @property
    def has_notices(self) -> bool:
        """Whether something waits to be delivered that needs no step's result."""
        return bool(self.ended or self._events or self._batches)

    def note(self, kind: EventKind, request_id: str, step: int, now: float) -> None:
        """Something has happened to a request."""
        self._events.append(EngineCoreEvent(kind=kind, request_id=request_id, step=step, time=now))

    def take_notices(self) -> tuple[dict[str, Finished], list[EngineCoreEvent]]:
        """Ends and events that were not delivered yet."""
        taken = self.ended, self._events
        self.ended, self._events = {}, []
        return taken

    # --- events of the KV cache

    def take_changes(self, changes: list[KVChange], running: Callable[[str], Described], step: int, now: float) -> None:
        """One reservation's changes become a batch; ``running`` describes requests that have not ended."""
        if changes:
            events = events_of(changes, lambda change: self._describe(change, running), self._block_size)
            self._add(events, step, now)
        self.ending.clear()

    def cleared(self, step: int, now: float) -> None:
        """The prefix cache was emptied."""
        self._reset = True
        self.hit_rate.reset()
        if self.follows_kv:
            self._add([AllBlocksCleared()], step, now)

    def take_batches(self) -> list[KVEventBatch]:
        """Batches that were not delivered yet."""
        batches, self._batches = self._batches, []
        return batches

    def _describe(self, change: Stored, running: Callable[[str], Described]) -> Described:
        if not change.released:
            return running(change.req_id)
        return described(self.ending[change.req_id])

    def _add(self, events: list[KVEvent], step: int, now: float) -> None:
        self._batches.append(KVEventBatch(number=self._num_batches, step=step, time=now, events=events))
        self._num_batches += 1

    # --- counts of a step

    def take_step(
        self,
        plan: SchedulerOutput,
        *,
        num_new_tokens: int,
        num_running: int,
        num_waiting: int,
        preemptions: int,
        kv_usage: float,
    ) -> SchedulerStats:
        """The record of a step whose result was applied; ``preemptions`` are all so far."""
        stats = SchedulerStats(
            step=plan.step,
            num_scheduled_reqs=len(plan.req_ids),
            num_scheduled_tokens=plan.total_num_scheduled_tokens,
            num_new_tokens=num_new_tokens,
            num_running=num_running,
            num_waiting=num_waiting,
            num_preemptions=preemptions - self._preemptions,
            kv_usage=kv_usage,
            prefix=self._take_prefix(),
        )
        self._preemptions = preemptions
        return stats

    def follow_steps(self, num_preemptions: int) -> None:
        """Somebody wants records from now on; what was counted before is in none of them."""
        if not self.follows_steps:
            self._take_prefix()
            self._preemptions = num_preemptions
            self.follows_steps = True

    def _take_prefix(self) -> PrefixCacheStats:
        (requests, queries, hits), (again, again_queries, again_hits) = self._first, self._again
        taken = PrefixCacheStats(
            reset=self._reset,
            requests=requests,
            queries=queries,
            hits=hits,
            preempted_requests=again,
            preempted_queries=again_queries,
            preempted_hits=again_hits,
        )
        self._first, self._again, self._reset = [0, 0, 0], [0, 0, 0], False
        return taken


def described(state: RequestState) -> Described:
    """A request that holds no row."""
    return Described(state.digests, state.token_ids(), state.request.adapter)
