"""What the parts of the scheduler share: its requests, their rows, the queue, and the counts."""

from __future__ import annotations

from dataclasses import dataclass

from .block_keys import BlockKeys
from .config import SchedulerConfig
from .errors import BooksError
from .grammar_room import GrammarRoom
from .kv_events import Described
from .messages import EventKind
from .pause import PauseState
from .plan import SchedulerOutput
from .reports import Reports, described
from .request_state import RequestState
from .running_table import RunningTable
from .statistics import SchedulerStatistics, SchedulerStats, share_held
from .turns import Turns
from .waiting import WaitingRoom


@dataclass(slots=True)
class Counts:
    """Since the scheduler was made; ``SchedulerStatistics`` says of what."""

    arrived: int = 0
    steps: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    finished: int = 0


class Books:
    """Who is where. Its parts keep their own order; this keeps them together.

    ``step`` is the last step planned, ``completed`` the last one whose result was applied.
    ``free_blocks`` is what the KV cache said last.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.sizes = config.group_sizes()
        self.requests: dict[str, RequestState] = {}
        self.table = RunningTable(config.max_num_running_reqs, config.max_model_len)
        self.waiting = WaitingRoom(
            config.policy, priority_preemption=config.priority_preemption, max_backfill=config.max_backfill
        )
        self.turns = Turns(self.table)
        self.grammars = GrammarRoom()
        self.keys = BlockKeys(config)
        self.reports = Reports(config.block_size, config.enable_prefix_caching)
        self.counts = Counts()
        self.pool_blocks = config.num_kv_blocks
        self.free_blocks = config.num_kv_blocks or 0
        self.step = self.completed = 0

    def running(self) -> list[RequestState]:
        """The requests that hold a row, in order of admission."""
        table = self.table
        return [self.requests[req_id] for req_id in table.ids[table.order].tolist()]

    def note(self, kind: EventKind, request_id: str, now: float) -> None:
        """Something has happened to a request at the present step."""
        self.reports.note(kind, request_id, self.step, now)

    def take_step_stats(self, plan: SchedulerOutput, num_new_tokens: int) -> SchedulerStats | None:
        """The record of a step whose result was applied; None while nobody follows."""
        if not self.reports.follows_steps:
            return None
        return self.reports.take_step(
            plan,
            num_new_tokens=num_new_tokens,
            num_running=self.num_running,
            num_waiting=len(self.waiting),
            preemptions=self.counts.preemptions,
            kv_usage=self.kv_usage,
        )

    def describe(self, req_id: str) -> Described:
        """What followers of the KV cache are told of a request that has not ended."""
        state = self.requests[req_id]
        if state.row < 0:
            return described(state)
        return Described(state.digests, self.table.tokens[state.row], state.request.adapter)

    @property
    def num_running(self) -> int:
        """Requests that hold a row."""
        return len(self.table.order)

    @property
    def num_unfinished(self) -> int:
        """Requests with work to do: none while all is paused, those that have begun while new ones are to wait."""
        paused = self.waiting.pause_state is PauseState.PAUSED_ALL
        return self.waiting.num_to_do + (0 if paused else self.num_running)

    @property
    def keep_free(self) -> int:
        """Blocks that an admission beside others leaves free."""
        return int(self.config.watermark * (self.pool_blocks or 0))

    @property
    def may_admit_more(self) -> bool:
        """Whether somebody waits for whom there is a row and, as far as is known, room."""
        return len(self.waiting) > 0 and self.table.num_free > 0 and not self.waiting.refused

    @property
    def prefill_cap(self) -> int:
        """Most tokens of one request in a step, 0 for no limit; a request that is alone has none."""
        return self.config.long_prefill_token_threshold if self.num_running + len(self.waiting) > 1 else 0

    @property
    def kv_usage(self) -> float:
        """Share of the KV cache that is held, 0 to 1, as far as is known."""
        return share_held(self.free_blocks, self.pool_blocks or 0)

    def statistics(self) -> SchedulerStatistics:
        """Counts as they are now."""
        counts = self.counts
        return SchedulerStatistics(
            num_running=self.num_running,
            num_waiting=len(self.waiting),
            num_preemptions=counts.preemptions,
            num_steps=counts.steps,
            num_prompt_tokens=counts.prompt_tokens,
            num_generated_tokens=counts.generated_tokens,
            num_finished=counts.finished,
            num_parked=len(self.waiting.sessions.parked),
            prefix_hit_rate=self.reports.hit_rate.rate,
            num_deferred=len(self.grammars),
        )

    def check(self) -> None:
        """Raise BooksError unless queue, table and requests agree."""
        self.table.check()
        waiting = [*self.waiting.policy, *self.grammars]
        if self.num_running + len(waiting) != len(self.requests):
            raise BooksError(f"{self.num_running} run, {len(waiting)} wait, {len(self.requests)} are known")
        if strangers := [state.request_id for state in waiting if self.requests.get(state.request_id) is not state]:
            raise BooksError(f"requests wait that are not known: {strangers}")
        if running := [state.request_id for state in waiting if state.row >= 0]:
            raise BooksError(f"requests wait and hold a row: {running}")
        if len({state.request_id for state in waiting}) != len(waiting):
            raise BooksError(f"{len(waiting)} wait, some of them twice")
        self.waiting.check(self.requests)
        for row in self.table.order.tolist():
            state = self.requests.get(self.table.ids[row])
            if state is None or state.row != row:
                raise BooksError(f"row {row} is held by {self.table.ids[row]!r}, which does not know of it")
