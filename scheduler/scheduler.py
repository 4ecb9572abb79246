"""The scheduler: decides in each step which tokens of which requests are computed.

A step is ``propose`` (what all requests want, under the token budget), one ``Reserve`` to the
KV cache, and ``commit`` (what was granted becomes a plan). There is no prefill or decode
phase: each step lets a request's computed tokens catch up with the tokens it has, those that
steps under way have promised included. So a plan may be made before the result of the one
before is known, and nothing here asks how many steps are under way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .admission import Admission
from .arrays import IntArray, joined
from .arrivals import Arrivals, too_long
from .books import Books
from .cadence import PrefillCadence
from .config import SchedulerConfig
from .departures import Departures
from .draft import Draft, Full, Head, blocks_wanted, newly_full, newly_passed, soon_passed, want_running
from .ends import Ends
from .errors import (
    BooksError,
    CallboardError,
    ConfigError,
    MisuseError,
    NotBuiltError,
    PolicyError,
    RunnerError,
)
from .grammar_room import GrammarRoom
from .kv_cache_manager import KVCacheManager
from .logprobs import cut_like_tokens
from .messages import EngineCoreOutputs, Fault, Finished, Follow, Granted, Publish, Reserve
from .pause import PauseState
from .plan import ModelRunnerOutput, SchedulerOutput
from .plan_maker import PlanMaker
from .policy import Policy
from .request import FinishReason, Request
from .result_fields import check_fields
from .results import failures, new_prompt_logprobs, waves_of_tokens
from .statistics import PrefillStats, SchedulerStatistics
from .stops import StopRule
from .victims import victims_of_growth

NOTHING_GRANTED = Granted()


class Scheduler:
    """Queues requests, plans steps, and applies their results. No await, no clock, no I/O."""

    def __init__(self, config: SchedulerConfig, stop_rules: Sequence[StopRule] = ()) -> None:
        self.config = config
        self.books = Books(config)
        self._table, self._waiting = self.books.table, self.books.waiting
        self._departures = Departures(self.books)
        self._ends = Ends(self.books, stop_rules)
        self._admission = Admission(self.books, self._departures, self._ends)
        self._arrivals = Arrivals(self.books, self._departures)
        self._cadence = PrefillCadence(config.prefill_schedule_interval)
        self._maker = PlanMaker(self.books, self._departures, self._admission, self._cadence)
        self._draft: Draft | None = None

    # --- requests come and go

    def add_request(self, request: Request, now: float = 0.0) -> None:
        """Queue a request. Raises InvalidRequestError for one that can never be served."""
        self._arrivals.add(request, now)

    def abort(self, request_ids: str | Iterable[str], now: float = 0.0) -> list[str]:
        """End requests at once; returns the ids that were alive. Not between ``propose`` and ``commit``."""
        self._refuse_within_step("abort")
        wanted = [request_ids] if isinstance(request_ids, str) else request_ids
        states = [state for req_id in dict.fromkeys(wanted) if (state := self.books.requests.get(req_id))]
        self._departures.finish([(state, Finished(reason=FinishReason.ABORT)) for state in states], now)
        return [state.request_id for state in states]

    def grammar_news(
        self,
        ready: Iterable[str],
        failed: Mapping[str, str],
        now: float = 0.0,
        *,
        broken: Mapping[str, str] | None = None,
        numbers: Mapping[str, int] | None = None,
    ) -> None:
        """Requests whose grammars are ready join the queue; the others end. Not between ``propose`` and ``commit``.

        ``numbers`` are those of the arrivals that are meant: what is told of one that has ended is no news of
        a later one with its id.
        """
        self._refuse_within_step("grammar_news")
        meant = self._arrivals.is_meant(numbers or {})
        self._arrivals.grammar_news(
            list(filter(meant, ready)),
            {req_id: text for req_id, text in failed.items() if meant(req_id)},
            {req_id: text for req_id, text in (broken or {}).items() if meant(req_id)},
            now,
        )

    def reject(self, request_id: str, error: CallboardError) -> None:
        """Answer a request that could not be queued."""
        fault: Fault = "policy" if isinstance(error, PolicyError) else "request"
        self.books.reports.ended[request_id] = Finished.by_error(str(error), fault)

    def tell_unsent(self, request_ids: Iterable[str]) -> None:
        """Answer that requests which will never come have ended."""
        self.books.reports.ended.update(dict.fromkeys(request_ids, Finished(reason=FinishReason.ABORT)))

    def bind_pool(self, num_blocks: int, now: float = 0.0) -> None:
        """Learn how many blocks the KV cache has, before the first plan; requests that it can never hold end."""
        if self.books.pool_blocks is None:
            self.books.pool_blocks = self.books.free_blocks = num_blocks
            self._departures.finish(too_long(self.books), now)

    def set_pause_state(self, pause_state: PauseState) -> None:
        """Plan less, or all again, from the next step on."""
        self._waiting.pause_state = pause_state
        self._waiting.refused = False

    def swap_policy(self, policy: str | Policy) -> None:
        """Go on under another policy; whoever waits goes on waiting there. Not between ``propose`` and ``commit``.

        Raises ConfigError for no policy and for an object that serves already, PolicyError for one that
        fails to take them over: then the old one stays. For one that fails later see ``Policy``.
        """
        self._refuse_within_step("swap_policy")
        self._waiting.swap(policy)

    def let_go_policy(self) -> None:
        """Nothing will be planned any more: another scheduler may have the policy's object."""
        self._waiting.let_go_policy()

    def preempt_all(self, now: float = 0.0) -> None:
        """Take rows and blocks from all running requests, which go to the queue's head in their order.

        They keep their tokens; what steps under way give them is dropped. Not between
        ``propose`` and ``commit``.
        """
        self._refuse_within_step("preempt_all")
        self._departures.preempt_all(now)

    def close_session(self, session: str) -> None:
        """Give back what is kept for a session, or will be when its request ends. Unknown ones are ignored."""
        self._departures.close_session(session)

    def _refuse_within_step(self, what: str) -> None:
        if self._draft is not None:
            raise MisuseError(f"{what} came between propose and commit of a step")

    # --- one step

    def propose(self, now: float) -> Reserve | None:
        """What the next step wants of the KV cache; None if it wants nothing."""
        books, config = self.books, self.config
        budget = 0 if self.pause_state is PauseState.PAUSED_ALL else config.max_num_scheduled_tokens
        self._draft = draft = want_running(
            self._table,
            budget=budget,
            cap=books.prefill_cap,
            hold_prompts=not self._cadence.is_due,
            head=self._head(now),
        )
        grow = blocks_wanted(self._table, draft, config.block_size)
        budget -= draft.total
        settled = newly_passed(self._table, books.sizes)
        self._waiting.refused &= not settled  # blocks come back: the head of the queue is asked for again
        publish = self._newly_full(draft)
        changes = bool(self._departures.has_releases or settled or grow or publish)
        asks = not draft.holds_prompts and (changes or self._departures.owed or not self._waiting.waits_for_change)
        admit, displaced = self._admission.candidates(budget, now) if asks else ([], [])
        if not (changes or admit):
            return None
        return Reserve(
            completed=self._departures.tell_completed(),
            step=books.step + 1,
            release=self._departures.take_releases(),
            settled=settled,
            soon_passed=soon_passed(self._table, books.sizes) if grow else 0,
            grow=grow,
            victims=victims_of_growth(books, grow),
            holders=self._waiting.holders(),
            publish=publish,
            admit=admit,
            displaced=displaced,
            num_rows=self._table.num_free,
            backfill=config.max_backfill - self._table.num_out_of_turn,
            token_budget=budget,
            prefill_cap=books.prefill_cap,
            split_prompts=config.enable_chunked_prefill,
            keep_free=books.keep_free,
            report=books.reports.follows_kv,
        )

    def commit(self, granted: Granted, now: float) -> SchedulerOutput:
        """Turn what was granted into the plan of the next step."""
        draft = self._take_draft()
        self.books.step += 1
        if granted is not NOTHING_GRANTED:
            self._waiting.refused = granted.refused
            self.take_answer(granted, now)
        return self._maker.make(draft, granted, now)

    def update_from_output(self, plan: SchedulerOutput, output: ModelRunnerOutput, now: float) -> EngineCoreOutputs:
        """Apply a step's result; what it says of requests that are gone is dropped.

        Raises RunnerError for the result of another step, or one that holds what is not built.
        """
        self._enter_completed(plan, output)
        if output.failed:
            self._departures.finish(failures(plan, output, self._table, self.books.requests), now)
        req_ids: list[str] = []
        token_ids: list[IntArray] = []
        prefill: dict[str, PrefillStats] = {}
        prompt_logprobs = new_prompt_logprobs(plan, output, self._table, self.books.requests)
        for rows, tokens in waves_of_tokens(plan, output, self._table):
            known = self._table.append(rows, tokens)
            req_ids += self._table.ids_of(rows)
            token_ids.append(tokens)
            prefill |= self._first_outputs(rows)
            if ends := self._ends.among(rows, tokens, known):
                self._departures.finish(ends, now)
        self.books.counts.generated_tokens += len(req_ids)
        return self._outputs(
            req_ids=req_ids,
            token_ids=joined(token_ids),
            logprobs=cut_like_tokens(output.logprobs, req_ids),
            prompt_logprobs=prompt_logprobs,
            prefill=prefill,
            scheduler_stats=self.books.take_step_stats(plan, len(req_ids)),
        )

    # --- between steps

    def release(self, kv: KVCacheManager) -> None:
        """Give back what finished requests held, when no plan is to be made."""
        self.take_answer(kv.reserve(self.take_releases()), 0.0)

    def take_releases(self) -> Reserve:
        """A reservation that only gives back; its answer goes to ``take_answer``."""
        departures = self._departures
        return Reserve(
            completed=departures.tell_completed(),
            release=departures.take_releases(),
            report=self.books.reports.follows_kv,
        )

    def take_answer(self, granted: Granted, now: float) -> None:
        """Learn from an answer of the KV cache how full it is, and what has changed in it."""
        self.books.free_blocks = granted.num_free_blocks
        self.books.reports.take_changes(granted.changes, self.books.describe, self.books.step, now)

    def follow(self, wanted: Follow) -> None:
        """Report what somebody wants to know, from now on."""
        self.books.reports.follows_kv |= wanted.kv_events
        if wanted.steps:
            self.books.reports.follow_steps(self.books.counts.preemptions)

    def prefix_cache_was_reset(self, now: float) -> None:
        """The KV cache has forgotten all prefixes."""
        self.books.reports.cleared(self.books.step, now)

    def take_outputs(self) -> EngineCoreOutputs | None:
        """Ends and events that no step's result has carried; None if there are none."""
        return self._outputs() if self.books.reports.has_notices else None

    def _outputs(self, **given: Any) -> EngineCoreOutputs:
        reports = self.books.reports
        ended, events = reports.take_notices()
        return EngineCoreOutputs(
            step=self.books.completed, finished=ended, events=events, kv_events=reports.take_batches(), **given
        )

    # --- what running requests want

    def _head(self, now: float) -> Head | None:
        """The first of the queue, where running requests may have to leave it a part of the budget."""
        by_priority = self._waiting.displaces
        if not (by_priority or self._table.num_out_of_turn):
            return None
        return self._waiting.head(now, by_priority=by_priority)

    def _newly_full(self, draft: Draft) -> list[Publish]:
        if not self.config.enable_prefix_caching:
            return []
        full = newly_full(self._table, draft, self.config.block_size)
        return self._publish(full) if len(full.rows) else []

    def _publish(self, full: Full) -> list[Publish]:
        """Tell the KV cache of full blocks, with the keys that it does not know yet."""
        table = self._table
        states = [self.books.requests[req_id] for req_id in table.ids[full.rows].tolist()]
        counts = full.num_blocks.tolist()
        table.published[full.rows] = full.num_blocks * self.config.block_size
        keys = self.books.keys.extend_all(states, table.tokens, full.rows.tolist(), counts)
        return [
            Publish(req_id=state.request_id, num_full_blocks=count, digests=new, merges=in_step)
            for state, count, new, in_step in zip(states, counts, keys, full.in_step.tolist(), strict=True)
        ]

    def _take_draft(self) -> Draft:
        if self._draft is None:
            raise MisuseError("commit without propose")
        draft, self._draft = self._draft, None
        return draft

    # --- results

    def _enter_completed(self, plan: SchedulerOutput, output: ModelRunnerOutput) -> None:
        completed = self.books.completed
        if output.step != plan.step or plan.step <= completed:
            raise RunnerError(
                f"the result of step {output.step} came for step {plan.step}, after that of step {completed}"
            )
        check_fields(plan, output)
        self.books.completed = plan.step
        if self.books.sizes.has_windows:
            live = self._table.live(plan.rows, plan.epochs)
            self._table.settled[plan.rows[live]] += plan.num_tokens[live]

    def _first_outputs(self, rows: IntArray) -> dict[str, PrefillStats]:
        """How prompts were come by, for requests that give their first output."""
        table = self._table
        if not table.num_unanswered:
            return {}
        first = table.first_answers(rows)
        states = [self.books.requests[req_id] for req_id in table.ids[first].tolist()]
        return {state.request_id: state.prefill for state in states if state.prefill}

    # --- accounts

    @property
    def policy(self) -> Policy:
        """The waiting requests, in their order."""
        return self._waiting.policy

    @property
    def policy_failure(self) -> str | None:
        """Why the user's policy was given up, if it was."""
        return self._waiting.policy_failure

    @property
    def num_held_back(self) -> int:
        """Requests that the policy holds back while nothing runs: it is asked again when something arrives."""
        return self.num_waiting if self._waiting.held_back and not self.num_running else 0

    @property
    def grammars(self) -> GrammarRoom:
        """The requests that wait for their grammars."""
        return self.books.grammars

    @property
    def pause_state(self) -> PauseState:
        """What is planned at present."""
        return self._waiting.pause_state

    @property
    def num_running(self) -> int:
        """Requests that hold a row."""
        return self.books.num_running

    @property
    def num_waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    @property
    def num_requests(self) -> int:
        """Requests that have not ended."""
        return len(self.books.requests)

    @property
    def num_unfinished(self) -> int:
        """Requests with work to do in the present state of the pause."""
        return self.books.num_unfinished

    @property
    def num_generated(self) -> int:
        """Tokens that all requests have got."""
        return self.books.counts.generated_tokens

    @property
    def owes_release(self) -> bool:
        """Whether blocks would come back if the KV cache heard of an end, or of a step's end."""
        return self._departures.owed

    def statistics(self) -> SchedulerStatistics:
        """Counts as they are now."""
        return self.books.statistics()

    def check(self) -> None:
        """Raise BooksError unless queue, table and requests agree."""
        self.books.check()

    def check_against(self, kv: KVCacheManager) -> None:
        """Raise BooksError unless those who run are those who have a block table.

        Only while no reservation is under way; passes between ``propose`` and ``commit``.
        """
        if self._draft is not None:
            return
        running, tables = {state.request_id for state in self.books.running()}, kv.table_ids
        if bare := running - tables:
            raise BooksError(f"requests run without a block table: {sorted(bare)}")
        if left := tables - running - self._departures.releasing:
            raise BooksError(f"block tables are left of requests that do not run: {sorted(left)}")


def plan_step(
    scheduler: Scheduler, kv: KVCacheManager, encoder_cache: None = None, now: float = 0.0
) -> SchedulerOutput:
    """One step's plan, synchronously: propose, reserve, commit. For tests, benchmarks, simulation."""
    if encoder_cache is not None:
        raise NotBuiltError("no encoder cache is built yet, encoder_cache must be None")
    if kv.block_size != scheduler.config.block_size:
        raise ConfigError(f"block_size is {scheduler.config.block_size}, the KV cache's is {kv.block_size}")
    scheduler.bind_pool(kv.num_blocks, now)
    wants = scheduler.propose(now)
    granted = kv.reserve(wants) if wants else NOTHING_GRANTED
    return scheduler.commit(granted, now)
