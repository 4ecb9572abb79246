"""Counts that the scheduler and the KV cache keep, in all and for each step."""

from __future__ import annotations

from collections import deque

import msgspec


def share_held(num_free: int, num_blocks: int) -> float:
    """Share of a pool of blocks that is held, 0 to 1; 0 for a pool of which nothing is known."""
    return 1.0 - num_free / num_blocks if num_blocks else 0.0


class SchedulerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of the scheduler, since it was made where not said otherwise."""

    num_running: int  # requests that hold a row now
    num_waiting: int  # requests in the queue now
    num_preemptions: int  # times that a running request had to give its row up
    num_steps: int  # plans made that compute something
    num_prompt_tokens: int  # of requests queued
    num_generated_tokens: int  # outputs applied
    num_finished: int  # requests ended, aborted ones included
    num_parked: int = 0  # sessions between two inputs
    prefix_hit_rate: float  # share of prompt tokens found in the cache, over the last 1000 admissions
    num_deferred: int = 0  # requests outside the queue now: their grammars are being prepared


class PrefixCacheStats(msgspec.Struct, frozen=True, kw_only=True):
    """What admissions looked up in the prefix cache since the record before."""

    reset: bool = False  # the cache was emptied
    requests: int = 0  # first admissions
    queries: int = 0  # their tokens
    hits: int = 0  # of these, tokens that were found
    preempted_requests: int = 0  # the same for requests that came back after a preemption
    preempted_queries: int = 0
    preempted_hits: int = 0


class SchedulerStats(msgspec.Struct, frozen=True, kw_only=True):
    """The scheduler after the result of one step was applied."""

    step: int  # the step
    num_scheduled_reqs: int  # requests that it computed something for
    num_scheduled_tokens: int  # tokens that it computed
    num_new_tokens: int  # outputs that it gave, those of requests that are gone not counted
    num_running: int  # requests that hold a row
    num_waiting: int  # requests in the queue
    num_preemptions: int  # since the record before
    kv_usage: float  # share of the KV cache that is held, 0 to 1, at the newest plan that asked for blocks
    prefix: PrefixCacheStats  # since the record before


class KVGroupStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one group of layers."""

    window: int | None  # tokens that its layers see; None: all
    num_blocks: int  # in block tables now; one that two requests share counts twice
    num_returned: int  # given back so far by requests that went on running, since the window had passed them


class KVCacheStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of the KV cache."""

    num_blocks: int  # usable blocks, the null block not counted
    num_free_blocks: int  # held by nobody, cached ones included
    num_cached_blocks: int  # found by their key, held ones included
    num_fenced_blocks: int  # given up, but a step under way may touch them
    num_tables: int  # running requests, each with its block tables
    num_kept_blocks: int  # kept for requests without a row, which give them up when others need them
    prefix_queries: int  # tokens looked up at admissions, preempted requests' not counted
    prefix_hits: int  # tokens of these that were found
    preempted_queries: int  # the same for requests that come back after a preemption
    preempted_hits: int
    evictions: int  # cached blocks that were handed out anew
    groups: tuple[KVGroupStatistics, ...]  # of layers, each with block tables of its own

    @property
    def usage(self) -> float:
        """Share of the pool that is held, 0 to 1."""
        return share_held(self.num_free_blocks, self.num_blocks)


class PrefillStats(msgspec.Struct, frozen=True, kw_only=True):
    """How a prompt was come by, in tokens; fixed at the request's first admission."""

    num_prompt_tokens: int
    num_cached_tokens: int  # found in the prefix cache of this engine
    num_external_tokens: int = 0  # brought from elsewhere
    num_cacheable_tokens: int = 0  # computed by this request, and kept for others: full blocks

    @property
    def num_computed_tokens(self) -> int:
        """Tokens that had to be computed."""
        return self.num_prompt_tokens - self.num_cached_tokens - self.num_external_tokens


class HitRate:
    """The share of tokens that the newest look-ups found.

    Look-ups that were added together leave together, the oldest first, while more than
    ``window`` requests are counted.
    """

    def __init__(self, window: int = 1000) -> None:
        self._window = window
        self._added: deque[tuple[int, int, int]] = deque()  # requests, queries, hits
        self._requests = self._queries = self._hits = 0

    def add(self, requests: int, queries: int, hits: int) -> None:
        """Look-ups of some requests: tokens looked up, and found; of none they change nothing."""
        if not requests:
            return
        self._added.append((requests, queries, hits))
        self._count(requests, queries, hits)
        while len(self._added) > 1 and self._requests > self._window:
            self._count(*(-number for number in self._added.popleft()))

    def reset(self) -> None:
        """Forget all, with the cache."""
        self._added.clear()
        self._requests = self._queries = self._hits = 0

    @property
    def rate(self) -> float:
        """Tokens found of those looked up, 0 to 1; 0 before the first."""
        return self._hits / self._queries if self._queries else 0.0

    def _count(self, requests: int, queries: int, hits: int) -> None:
        self._requests += requests
        self._queries += queries
        self._hits += hits
