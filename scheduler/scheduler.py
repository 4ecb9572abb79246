"""The scheduler: decides in each step which tokens of which requests are computed.

A step is ``propose`` (what all requests want, under the token budget), one ``Reserve`` to the
KV cache, and ``commit`` (what was granted becomes a plan). There is no prefill or decode
phase: each step lets a request's computed tokens catch up with the tokens it has, those that
steps under way have promised included. So a plan may be made before the result of the one
before is known, and nothing here asks how many steps are under way.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from . import stops
from .block_keys import BlockKeys
from .cadence import PrefillCadence
from .config import SchedulerConfig
from .draft import Draft, Head, blocks_wanted, newly_full, newly_passed, soon_passed, want_running
from .errors import BooksError, ConfigError, InvalidRequestError, PolicyError
from .grammar_room import GrammarRoom
from .kv_cache_manager import KVCacheManager
from .kv_events import Described
from .limits import pool_error, refuse_invalid, token_limit
from .logprobs import cut_like_tokens
from .messages import (
    Admit,
    Admitted,
    EngineCoreEvent,
    EngineCoreOutputs,
    Finished,
    Follow,
    Granted,
    Grow,
    Publish,
    Release,
    Reserve,
    Victim,
)
from .pause import PauseState
from .plan import NO_INTS, BlockIds, IntArray, ModelRunnerOutput, NewRequestData, SchedulerOutput
from .policy import Policy
from .repetition import watch_repetition
from .reports import Reports, described
from .request import STATUS_OF_REASON, FinishReason, Request, RequestState, RequestStatus
from .results import new_prompt_logprobs, waves_of_tokens
from .running_table import RunningTable
from .sessions import holder_of
from .statistics import PrefillStats, SchedulerStatistics
from .waiting import WaitingRoom

NOTHING_GRANTED = Granted()

Growth = tuple[dict[int, BlockIds], dict[int, list[BlockIds]]]  # by row: the first group's blocks, further groups'
Replaced = dict[str, list[tuple[int, int, int]]]  # by request: group, place in its table, block


class Scheduler:
    """Queues requests, plans steps, and applies their results. No await, no clock, no I/O."""

    def __init__(self, config: SchedulerConfig, stop_rules: Sequence[stops.StopRule] = ()) -> None:
        self.config = config
        self._waiting = WaitingRoom(
            config.policy, priority_preemption=config.priority_preemption, max_backfill=config.max_backfill
        )
        self._rules = stops.checked_rules(stop_rules)
        self._table = RunningTable(config.max_num_running_reqs, config.max_model_len)
        self._keys = BlockKeys(config)
        self.grammars = GrammarRoom()
        self._cadence = PrefillCadence(config.prefill_schedule_interval)
        self._requests: dict[str, RequestState] = {}
        self._sizes = config.group_sizes()
        self.reports = Reports(config.block_size, config.enable_prefix_caching)
        self._pool_blocks = config.num_kv_blocks
        self._free_blocks = config.num_kv_blocks or 0
        self._step = 0
        self._completed = 0  # the last step whose result was applied
        self._told = 0  # the last step of which the KV cache knows that it has ended
        self._draft: Draft | None = None
        self._releases: list[Release] = []
        self._fence = 0  # the last step that may touch blocks which were given up
        self._finished_ids: set[str] = set()
        self._preempted_ids: set[str] = set()
        self._ended: dict[str, Finished] = {}
        self._events: list[EngineCoreEvent] = []
        self._num_arrived = self._num_steps = self._num_preemptions = self._num_prompt_tokens = self._num_tokens = (
            self._num_finished
        ) = 0

    # --- requests come and go

    def add_request(self, request: Request, now: float = 0.0) -> None:
        """Queue a request. Raises InvalidRequestError for one that can never be served."""
        if request.request_id in self._requests:
            raise InvalidRequestError(f"request id {request.request_id!r} is in use by a request that is alive")
        refuse_invalid(request, self.config, self._sizes, self._pool_blocks)
        state = RequestState(request)
        state.repetition = watch_repetition(request.sampling_params.repetition_detection, self.config.max_model_len)
        state.digests = list(request.block_digests or ())
        self._keys.hash_known(state)
        state.number = self._num_arrived = self._num_arrived + 1
        if not self.grammars.park(state):
            self._waiting.add(state)  # first: a policy that raises has taken nothing in
        self._requests[request.request_id] = state
        self._waiting.sessions.begin(request)
        self._num_prompt_tokens += len(request.prompt_token_ids)
        self._note("QUEUED", request.request_id, now)

    def abort(self, request_ids: str | Iterable[str], now: float = 0.0) -> list[str]:
        """End requests at once; returns the ids that were alive. Not between ``propose`` and ``commit``."""
        if self._draft is not None:
            raise BooksError(f"abort of {request_ids} came between propose and commit of a step")
        wanted = [request_ids] if isinstance(request_ids, str) else request_ids
        states = [state for req_id in dict.fromkeys(wanted) if (state := self._requests.get(req_id))]
        self._finish([(state, Finished(reason=FinishReason.ABORT)) for state in states], now)
        return [state.request_id for state in states]

    def grammar_news(self, ready: Iterable[str], failed: Mapping[str, str], now: float = 0.0) -> None:
        """Requests whose grammars are ready join the queue; failed ones end. Not between ``propose`` and ``commit``."""
        failed = dict(failed)
        for state in filter(None, map(self.grammars.release, ready)):
            try:
                self._waiting.add(state)
            except PolicyError as error:
                self.grammars.take_back(state)
                failed[state.request_id] = str(error)
            self._waiting.refused = False  # it may come before the one that found no room
        ends = {req_id: Finished(reason=FinishReason.ERROR, error=text) for req_id, text in failed.items()}
        self._finish([(self._requests[req_id], end) for req_id, end in ends.items() if req_id in self._requests], now)

    def reject(self, request_id: str, error: str) -> None:
        """Answer a request that could not be queued."""
        self._ended[request_id] = Finished(reason=FinishReason.ERROR, error=error)

    def bind_pool(self, num_blocks: int) -> None:
        """Learn how many blocks the KV cache has, before the first plan."""
        if self._pool_blocks is None:
            self._pool_blocks = self._free_blocks = num_blocks

    def set_pause_state(self, pause_state: PauseState) -> None:
        """Plan less, or all again, from the next step on."""
        self._waiting.pause_state = pause_state
        self._waiting.refused = False

    def swap_policy(self, policy: str | Policy) -> None:
        """Go on under another policy; whoever waits goes on waiting there. Not between ``propose`` and ``commit``.

        Raises ConfigError for no policy, PolicyError for one that fails: then the old one stays.
        """
        if self._draft is not None:
            raise BooksError("swap_policy came between propose and commit of a step")
        self._waiting.swap(policy)

    def preempt_all(self, now: float = 0.0) -> None:
        """Take rows and blocks from all running requests, which go to the queue's head in their order.

        They keep their tokens; what steps under way give them is dropped. Not between
        ``propose`` and ``commit``.
        """
        if self._draft is not None:
            raise BooksError("preempt_all came between propose and commit of a step")
        table = self._table
        for row in table.order[::-1].tolist():
            self._preempt(self._requests[table.ids[row]], now)
        for state in self._waiting.preempted.values():
            state.num_held = 0
            self._releases.append(Release(req_id=state.request_id, fence=self._fence))
        for holder in self._waiting.sessions.take_all():
            self._releases.append(Release(req_id=holder, fence=self._fence))
        self._waiting.refused = False

    def close_session(self, session: str) -> None:
        """Give back what is kept for a session, or will be when its request ends. Unknown ones are ignored."""
        if self._waiting.sessions.close(session):
            self._releases.append(Release(req_id=holder_of(session), fence=self._fence))

    # --- one step

    def propose(self, now: float) -> Reserve | None:
        """What the next step wants of the KV cache; None if it wants nothing."""
        config = self.config
        budget = 0 if self.pause_state is PauseState.PAUSED_ALL else config.max_num_scheduled_tokens
        self._draft = draft = want_running(
            self._table,
            budget=budget,
            cap=self._prefill_cap(),
            block_size=config.block_size,
            hold_prompts=not self._cadence.is_due,
            head=self._head(now),
        )
        grow = blocks_wanted(self._table, draft)
        budget -= int(draft.num_tokens.sum())
        settled = newly_passed(self._table, self._sizes)
        self._waiting.refused &= not settled  # blocks come back: the head of the queue is asked for again
        publish = self._newly_full(draft)
        admit, displaced = ([], []) if draft.holds_prompts else self._candidates(budget, now)
        if not (self._releases or settled or grow or publish or admit):
            return None
        return Reserve(
            completed=self._tell(),
            step=self._step + 1,
            release=self._take_releases(),
            settled=settled,
            soon_passed=soon_passed(self._table, self._sizes) if grow else 0,
            grow=grow,
            victims=self._victims(grow),
            holders=self._waiting.holders(),
            publish=publish,
            admit=admit,
            displaced=displaced,
            num_rows=self._table.num_free,
            backfill=config.max_backfill - self._table.num_out_of_turn,
            token_budget=budget,
            prefill_cap=self._prefill_cap(),
            split_prompts=config.enable_chunked_prefill,
            keep_free=self._keep_free,
            report=self.reports.follows_kv,
        )

    def commit(self, granted: Granted, now: float) -> SchedulerOutput:
        """Turn what was granted into the plan of the next step."""
        draft = self._take_draft()
        self._step += 1
        if granted is not NOTHING_GRANTED:
            self._waiting.refused = granted.refused
            self.take_answer(granted, now)
        grown = self._apply_growth(granted)
        rows, num_tokens = self._without_losers(draft, granted, now)
        fresh = [self._admit(admitted, now) for admitted in granted.admitted]
        if fresh:
            rows = np.append(rows, [new.row for new in fresh])
            num_tokens = np.append(num_tokens, [a.num_scheduled_tokens for a in granted.admitted])
        self._cadence.planned(num_tokens, left_over=self._may_admit_more)
        if granted.replaced:
            self._fence = self._step  # this step still touches the blocks that were replaced
        return self._make_plan(rows, num_tokens, grown, fresh, granted.replaced)

    def update_from_output(self, plan: SchedulerOutput, output: ModelRunnerOutput, now: float) -> EngineCoreOutputs:
        """Apply a step's result; what it says of requests that are gone is dropped."""
        if output.step != plan.step or plan.step <= self._completed:
            raise BooksError(
                f"the result of step {output.step} came for step {plan.step}, after that of step {self._completed}"
            )
        self._completed = plan.step
        if self._sizes.has_windows:
            live = self._table.live(plan.rows, plan.epochs)
            self._table.settled[plan.rows[live]] += plan.num_tokens[live]
        req_ids: list[str] = []
        token_ids: list[IntArray] = []
        prefill: dict[str, PrefillStats] = {}
        prompt_logprobs = new_prompt_logprobs(plan, output, self._table, self._requests)
        for rows, tokens in waves_of_tokens(plan, output, self._table):
            self._table.append(rows, tokens)
            req_ids += self._table.ids[rows].tolist()
            token_ids.append(tokens)
            prefill |= self._first_outputs(rows)
            self._end_of_requests(rows, tokens, now)
        self._num_tokens += len(req_ids)
        stats = self.reports.take_step(
            plan,
            num_new_tokens=len(req_ids),
            num_running=self.num_running,
            num_waiting=self.num_waiting,
            num_preemptions=self._num_preemptions,
            kv_usage=1.0 - self._free_blocks / self._pool_blocks if self._pool_blocks else 0.0,
        )
        columns = np.concatenate(token_ids) if token_ids else NO_INTS
        return self._outputs(
            req_ids=req_ids,
            token_ids=columns,
            logprobs=cut_like_tokens(output.logprobs, req_ids),
            prompt_logprobs=prompt_logprobs,
            prefill=prefill,
            scheduler_stats=stats,
        )

    def release(self, kv: KVCacheManager) -> None:
        """Give back what finished requests held, when no plan is to be made."""
        self.take_answer(kv.reserve(self.take_releases()), 0.0)

    def take_releases(self) -> Reserve:
        """A reservation that only gives back; its answer goes to ``take_answer``."""
        return Reserve(completed=self._tell(), release=self._take_releases(), report=self.reports.follows_kv)

    def take_answer(self, granted: Granted, now: float) -> None:
        """Learn from an answer of the KV cache how full it is, and what has changed in it."""
        self._free_blocks = granted.num_free_blocks
        self.reports.take_changes(granted.changes, self._describe, self._step, now)

    def follow(self, wanted: Follow) -> None:
        """Report what somebody wants to know, from now on."""
        self.reports.follows_kv |= wanted.kv_events
        if wanted.steps:
            self.reports.follow_steps(self._num_preemptions)

    def prefix_cache_was_reset(self, now: float) -> None:
        """The KV cache has forgotten all prefixes."""
        self.reports.cleared(self._step, now)

    def take_outputs(self) -> EngineCoreOutputs | None:
        """Ends and events that no step's result has carried; None if there are none."""
        if not self._ended and not self._events and not self.reports.has_events:
            return None
        return self._outputs()

    # --- what running requests want

    def _prefill_cap(self) -> int:
        """Most tokens of one request; a request that is alone has no cap."""
        return self.config.long_prefill_token_threshold if len(self._table.order) + len(self._waiting) > 1 else 0

    def _head(self, now: float) -> Head | None:
        """The first of the queue, where running requests may have to leave it a part of the budget."""
        by_priority = self._waiting.displaces
        if not (by_priority or self._table.num_out_of_turn):
            return None
        return self._waiting.head(now, by_priority=by_priority)

    def _victims(self, grow: list[Grow]) -> list[Victim]:
        """Who gives way, first to last; only made when the free blocks may not suffice."""
        if sum(want.num_blocks for want in grow) * len(self.config.kv_groups) <= self._free_blocks:
            return []
        return self._as_victims(self._running_last_first())

    def _running_last_first(self) -> list[RequestState]:
        """All that run, the first to give way first: those admitted out of their turn, then as the policy says."""
        table = self._table
        running = [self._requests[req_id] for req_id in table.ids[table.order].tolist()]
        victims = self.policy.victims(running)
        return (
            sorted(victims, key=lambda state: not table.out_of_turn[state.row]) if table.num_out_of_turn else [*victims]
        )

    def _as_victims(self, states: Iterable[RequestState]) -> list[Victim]:
        last_step = self._table.last_step
        return [Victim(req_id=state.request_id, fence=int(last_step[state.row])) for state in states]

    def _newly_full(self, draft: Draft) -> list[Publish]:
        if not self.config.enable_prefix_caching:
            return []
        return [self._publish(*found) for found in newly_full(self._table, draft, self.config.block_size)]

    def _publish(self, row: int, full: int, in_step: bool) -> Publish:
        self._table.published[row] = full
        state = self._requests[self._table.ids[row]]
        return Publish(
            req_id=state.request_id,
            num_full_blocks=full,
            digests=self._keys.extend(state, self._table.tokens[state.row], full),
            merges=in_step,
        )

    def _tell(self) -> int:
        """The last step that has ended, as the KV cache is told now."""
        self._told = self._completed
        return self._completed

    def _take_releases(self) -> list[Release]:
        releases, self._releases = self._releases, []
        return releases

    # --- what waiting requests want

    def _candidates(self, budget: int, now: float) -> tuple[list[Admit], list[Victim]]:
        """Waiting requests in the policy's order, as rows and budget could take them; who gives way to the first."""
        rows = self._table.num_free
        if not rows:
            most = int(self._waiting.displaces or self._table.num_out_of_turn > 0)
        else:
            most = rows + self.config.max_backfill - self._table.num_out_of_turn
        most = min(most, budget)
        states = self._waiting.candidates(most, now, blocks_come_back=self.owes_release)
        states = [state for state in states if self._can_ever_fit(state, now)]
        if not states:
            return [], []
        tight = not rows or self._sizes.total_room(states[0].num_tokens) + self._keep_free > self._free_blocks
        displaced = self._displaced_by(states[0]) if tight else []
        return [self._ask_admission(state) for state in states], displaced

    def _displaced_by(self, head: RequestState) -> list[Victim]:
        """Who gives blocks and rows to the head of the queue, first to last."""
        if not (self._waiting.displaces or self._table.num_out_of_turn):
            return []
        out_of_turn = self._table.out_of_turn
        urgent = self._waiting.displaces
        return self._as_victims(
            state
            for state in self._running_last_first()
            if out_of_turn[state.row] or (urgent and state.request.priority > head.request.priority)
        )

    def _ask_admission(self, state: RequestState) -> Admit:
        kept_as, num_held = self._waiting.kept_for(state)
        return Admit(
            req_id=state.request_id,
            num_tokens=state.num_tokens,
            digests=state.digests,
            read_cache=state.request.sampling_params.reads_prefix_cache,
            resumed=state.num_preemptions > 0,
            num_held=num_held,
            kept_as=kept_as,
        )

    def _can_ever_fit(self, state: RequestState, now: float) -> bool:
        error = pool_error(state.request, self._sizes, self._pool_blocks)
        if error:
            self._finish([(state, Finished(reason=FinishReason.ERROR, error=error))], now)
        return not error

    # --- from grants to a plan

    def _take_draft(self) -> Draft:
        if self._draft is None:
            raise BooksError("commit without propose")
        draft, self._draft = self._draft, None
        return draft

    def _apply_growth(self, granted: Granted) -> Growth:
        """What joins the tables of rows: in the first group of layers, and in each further one."""
        grown: dict[int, BlockIds] = {}
        more: dict[int, list[BlockIds]] = {}
        for req_id, blocks in granted.grown.items():
            if state := self._requests.get(req_id):
                grown[state.row] = blocks
                self._table.blocks[state.row] += len(blocks)
        for req_id, further in granted.grown_more.items():
            if state := self._requests.get(req_id):
                more[state.row] = further
                # The shortest table got most, all that were asked for.
                self._table.blocks[state.row] += max(0, max(map(len, further)) - len(grown[state.row]))
        return grown, more

    def _without_losers(self, draft: Draft, granted: Granted, now: float) -> tuple[IntArray, IntArray]:
        """The draft without requests that were preempted or that got no blocks."""
        if not granted.stalled and not granted.preempted:
            return draft.rows, draft.num_tokens
        losers = granted.stalled.union(granted.preempted)
        keep = np.array([req_id not in losers for req_id in self._table.ids[draft.rows]], np.bool_)
        rows, num_tokens = draft.rows[keep], draft.num_tokens[keep]
        for req_id in granted.preempted:
            self._preempt(self._requests[req_id], now)
        return rows, num_tokens

    def _admit(self, admitted: Admitted, now: float) -> NewRequestData:
        state = self._requests[admitted.req_id]
        resumed = state.status is RequestStatus.PREEMPTED
        self._waiting.admit(state)
        token_ids, params = state.token_ids(), state.request.sampling_params
        num_prompt = len(state.request.prompt_token_ids)
        limit = token_limit(state.request, self.config, self._sizes, self._pool_blocks)
        row = state.row = self._table.admit(
            state.request_id,
            token_ids,
            num_prompt,
            limit,
            priority=state.request.priority,
            place=self._place(state),
            out_of_turn=admitted.out_of_turn,
        )
        state.status = RequestStatus.RUNNING
        self.reports.admitted(state, admitted)
        table = self._table
        table.ignores_eos[row] = params.ignore_eos
        table.watched[row] = state.repetition is not None or any(rule.applies_to(state.request) for rule in self._rules)
        table.stop_at(row, params.stop_token_ids or ())
        table.computed[row] = admitted.num_cached_tokens
        table.settled[row] = table.told[row] = admitted.num_cached_tokens
        table.blocks[row] = min(map(len, (admitted.block_ids, *admitted.more_block_ids)))
        covered = admitted.num_cached_tokens + admitted.num_scheduled_tokens
        table.published[row] = covered // self.config.block_size
        self._note("SCHEDULED", state.request_id, now)
        return NewRequestData(
            req_id=state.request_id,
            row=row,
            token_ids=token_ids,
            num_prompt_tokens=num_prompt,
            block_ids=admitted.block_ids,
            more_block_ids=admitted.more_block_ids,
            num_computed_tokens=admitted.num_cached_tokens,
            write_from=admitted.write_from,
            sampling_params=params,
            adapter=state.request.adapter,
            resumed=resumed,
        )

    def _place(self, state: RequestState) -> int | None:
        """The place of a request among those that run: the last, or the one that its priority gives."""
        if not self._waiting.displaces:
            return None
        priorities = [self._requests[req_id].request.priority for req_id in self._table.ids[self._table.order].tolist()]
        return bisect_right(priorities, state.request.priority)

    def _make_plan(
        self, rows: IntArray, num_tokens: IntArray, grown: Growth, fresh: list[NewRequestData], replaced: Replaced
    ) -> SchedulerOutput:
        table = self._table
        computed, target = table.computed[rows], table.known[rows] + table.promised[rows]
        samples = computed + num_tokens == target
        plan = SchedulerOutput(
            step=self._step,
            req_ids=tuple(table.ids[rows].tolist()),
            rows=rows,
            epochs=table.epoch[rows],
            num_tokens=num_tokens,
            num_computed=computed,
            num_outputs=target - table.prompt[rows],
            samples=samples,
            grown=grown[0],
            grown_more=grown[1],
            replaced={self._requests[req_id].row: changes for req_id, changes in replaced.items()},
            scheduled_new_reqs=fresh,
            finished_req_ids=self._finished_ids,
            preempted_req_ids=self._preempted_ids,
        )
        self._finished_ids, self._preempted_ids = set(), set()
        self._num_steps += bool(len(rows))
        table.computed[rows] += num_tokens
        table.promised[rows] += samples
        table.last_step[rows] = self._step
        return plan

    # --- results

    def _first_outputs(self, rows: IntArray) -> dict[str, PrefillStats]:
        """How prompts were come by, for requests that give their first output."""
        table = self._table
        first = rows[table.known[rows] == table.prompt[rows] + 1]
        states = [self._requests[req_id] for req_id in table.ids[first].tolist()]
        return {state.request_id: state.prefill for state in states if state.prefill}

    def _end_of_requests(self, rows: IntArray, token_ids: IntArray, now: float) -> None:
        table = self._table
        suspect = (table.known[rows] >= table.limit[rows]) | table.watched[rows] | table.stopped(rows, token_ids)
        for eos in self.config.eos_token_ids:
            suspect |= (token_ids == eos) & ~table.ignores_eos[rows]
        ends = [(state, end) for row in rows[suspect].tolist() for state, end in self._end_of(row)]
        self._finish(ends, now)

    def _end_of(self, row: int) -> list[tuple[RequestState, Finished]]:
        table, state = self._table, self._requests[self._table.ids[row]]
        try:
            end = stops.check_token(
                state,
                table.tokens[row, table.prompt[row] : table.known[row]],
                at_limit=bool(table.known[row] >= table.limit[row]),
                eos_token_ids=self.config.eos_token_ids,
                rules=self._rules,
            )
        except Exception as error:  # noqa: BLE001 - a rule that fails ends its request and nobody else's
            text = f"a stop rule failed: {error!r} (request {state.request_id})"
            end = Finished(reason=FinishReason.ERROR, error=text)
        return [(state, end)] if end else []

    def _outputs(self, **given: Any) -> EngineCoreOutputs:
        ended, self._ended = self._ended, {}
        events, self._events = self._events, []
        kv_events = self.reports.take_batches()
        return EngineCoreOutputs(step=self._completed, finished=ended, events=events, kv_events=kv_events, **given)

    # --- ends and preemptions: the only places where a row is given up

    def _finish(self, ends: list[tuple[RequestState, Finished]], now: float) -> None:
        rows = [state.row for state, _ in ends if state.row >= 0]
        for state, end in ends:
            self._give_up(state, self._waiting.sessions.end(state.request, end.reason))
            state.status = STATUS_OF_REASON[end.reason]
            del self._requests[state.request_id]
            self._ended[state.request_id] = end
            self._num_finished += 1
            self._finished_ids.add(state.request_id)
            self._note("FINISHED", state.request_id, now)
        if rows:
            self._table.drop(rows)

    def _give_up(self, state: RequestState, keep_as: str | None) -> None:
        """Take an ending request out of the queue, or give back what it holds as it runs.

        With ``keep_as`` its blocks are kept for its session, under that name.
        """
        if self.grammars.end(state):
            return
        if state.row < 0:
            if self._waiting.end(state):
                self._releases.append(Release(req_id=state.request_id, fence=self._fence, keep_as=keep_as))
                if keep_as:
                    self._waiting.sessions.park(state, state.num_held)
            return
        row, table = state.row, self._table
        size, computed, known = self.config.block_size, int(table.computed[row]), int(table.known[row])
        fence = int(table.last_step[row])
        self._releases.append(
            Release(
                req_id=state.request_id,
                fence=fence,
                digests=self._keys.extend(state, table.tokens[row], known // size),
                num_full_blocks=min(computed, known) // size,
                lacks_last_token=size > 1 and computed == known - 1 and known % size == 0,
                keep_as=keep_as,
            )
        )
        self._fence = max(self._fence, fence)
        state.output_token_ids = table.outputs(row)
        state.row = -1
        if keep_as:
            self._waiting.sessions.park(state, min(computed, known))
        if self.reports.follows_kv:
            self.reports.ending[state.request_id] = state

    def _preempt(self, state: RequestState, now: float) -> None:
        """Take a request's row. Its tokens are kept, and its blocks as long as nobody needs them."""
        self._fence = max(self._fence, int(self._table.last_step[state.row]))
        state.output_token_ids = self._table.outputs(state.row)
        # What is computed of tokens that steps under way promise may be of others than come again.
        state.num_held = int(min(self._table.computed[state.row], self._table.known[state.row]))
        if state.request.sampling_params.prompt_logprobs is not None and not state.output_token_ids:
            # Of what steps under way compute nothing will be told: that is computed again.
            state.num_held = min(state.num_held, state.num_prompt_logprobs)
        out_of_turn = bool(self._table.out_of_turn[state.row])
        self._table.drop([state.row])
        state.row = -1
        self._keys.hash_known(state)
        state.num_preemptions += 1
        self._num_preemptions += 1
        self._preempted_ids.add(state.request_id)
        self._waiting.requeue(state, out_of_turn=out_of_turn)
        self._note("PREEMPTED", state.request_id, now)

    # --- accounts

    def _describe(self, req_id: str) -> Described:
        """What followers of the KV cache are told of a request that has not ended."""
        state, table = self._requests[req_id], self._table
        if state.row < 0:
            return described(state)
        return Described(state.digests, table.tokens[state.row], state.request.adapter)

    def _note(self, kind: str, request_id: str, now: float) -> None:
        self._events.append(EngineCoreEvent(kind=kind, request_id=request_id, step=self._step, time=now))

    @property
    def policy(self) -> Policy:
        """The waiting requests, in their order."""
        return self._waiting.policy

    @property
    def pause_state(self) -> PauseState:
        """What is planned at present."""
        return self._waiting.pause_state

    @property
    def num_running(self) -> int:
        """Requests that hold a row."""
        return len(self._table.order)

    @property
    def num_waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    @property
    def num_requests(self) -> int:
        """Requests that have not ended."""
        return len(self._requests)

    @property
    def num_unfinished(self) -> int:
        """Requests with work to do: none while all is paused, those that have begun while new ones are to wait."""
        return self._waiting.num_to_do + (0 if self.pause_state is PauseState.PAUSED_ALL else self.num_running)

    @property
    def _keep_free(self) -> int:
        """Blocks that an admission beside others leaves free."""
        return int(self.config.watermark * (self._pool_blocks or 0))

    @property
    def _may_admit_more(self) -> bool:
        """Whether somebody waits for whom there is a row and, as far as is known, room."""
        return len(self._waiting) > 0 and self._table.num_free > 0 and not self._waiting.refused

    @property
    def owes_release(self) -> bool:
        """Whether blocks would come back if the KV cache heard of an end, or of a step's end."""
        return bool(self._releases) or self._told < self._fence <= self._completed

    def statistics(self) -> SchedulerStatistics:
        """Counts as they are now."""
        return SchedulerStatistics(
            num_running=self.num_running,
            num_waiting=self.num_waiting,
            num_preemptions=self._num_preemptions,
            num_steps=self._num_steps,
            num_prompt_tokens=self._num_prompt_tokens,
            num_generated_tokens=self._num_tokens,
            num_finished=self._num_finished,
            num_parked=len(self._waiting.sessions.parked),
            prefix_hit_rate=self.reports.hit_rate.rate,
            num_deferred=len(self.grammars),
        )

    def check(self) -> None:
        """Raise BooksError unless queue, table and requests agree."""
        self._table.check()
        waiting = self.num_waiting + len(self.grammars)
        if self.num_running + waiting != len(self._requests):
            raise BooksError(f"{self.num_running} run, {waiting} wait, {len(self._requests)} are known")
        self._waiting.check(self._requests)
        for row in self._table.order.tolist():
            state = self._requests.get(self._table.ids[row])
            if state is None or state.row != row:
                raise BooksError(f"row {row} is held by {self._table.ids[row]!r}, which does not know of it")


def plan_step(
    scheduler: Scheduler, kv: KVCacheManager, encoder_cache: None = None, now: float = 0.0
) -> SchedulerOutput:
    """One step's plan, synchronously: propose, reserve, commit. For tests, benchmarks, simulation."""
    if encoder_cache is not None:
        raise InvalidRequestError("no encoder cache is built yet, encoder_cache must be None")
    if kv.block_size != scheduler.config.block_size:
        raise ConfigError(f"block_size is {scheduler.config.block_size}, the KV cache's is {kv.block_size}")
    scheduler.bind_pool(kv.num_blocks)
    wants = scheduler.propose(now)
    granted = kv.reserve(wants) if wants else NOTHING_GRANTED
    return scheduler.commit(granted, now)
