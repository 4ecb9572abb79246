"""From what was granted to the plan of a step."""

from __future__ import annotations

import numpy as np

from .admission import Admission
from .books import Books
from .cadence import PrefillCadence
from .departures import Departures
from .draft import Draft
from .messages import Granted
from .plan import BlockIds, NewRequestData, SchedulerOutput

Growth = tuple[dict[int, BlockIds], dict[int, list[BlockIds]]]  # by row: the first group's blocks, further groups'
Replaced = dict[str, list[tuple[int, int, int]]]  # by request: group, place in its table, block


class PlanMaker:
    """Turns a draft and its grants into a plan, and enters in the table what the plan promises."""

    def __init__(self, books: Books, departures: Departures, admission: Admission, cadence: PrefillCadence) -> None:
        self._books, self._departures = books, departures
        self._admission, self._cadence = admission, cadence

    def make(self, draft: Draft, granted: Granted, now: float) -> SchedulerOutput:
        """The plan of the books' step."""
        books = self._books
        grown = self._apply_growth(granted)
        draft = self._without_losers(draft, granted, now)
        fresh = [self._admission.admit(admitted, now) for admitted in granted.admitted]
        if fresh:
            rows = np.concatenate((draft.rows, [new.row for new in fresh]))
            num_tokens = np.concatenate((draft.num_tokens, [a.num_scheduled_tokens for a in granted.admitted]))
            draft = Draft(books.table, rows, num_tokens, draft.holds_prompts)
        self._cadence.planned(draft.num_tokens, left_over=books.may_admit_more)
        if granted.replaced:
            self._departures.fence = books.step  # this step still touches the blocks that were replaced
        return self._plan(draft, grown, fresh, granted.replaced)

    def _apply_growth(self, granted: Granted) -> Growth:
        """What joins the tables of rows: in the first group of layers, and in each further one."""
        requests, size = self._books.requests, self._books.config.block_size
        grown = {requests[req_id].row: blocks for req_id, blocks in granted.grown.items()}
        more = {requests[req_id].row: further for req_id, further in granted.grown_more.items()}
        for row, blocks in grown.items():
            self._books.table.room[row] += len(blocks) * size
        for row, further in more.items():
            # The shortest table got most, all that were asked for.
            self._books.table.room[row] += max(0, max(map(len, further)) - len(grown[row])) * size
        return grown, more

    def _without_losers(self, draft: Draft, granted: Granted, now: float) -> Draft:
        """The draft without requests that were preempted or that got no blocks."""
        if not granted.stalled and not granted.preempted:
            return draft
        losers = granted.stalled.union(granted.preempted)
        keep = np.array([req_id not in losers for req_id in self._books.table.ids[draft.rows]], np.bool_)
        for req_id in granted.preempted:
            self._departures.preempt(self._books.requests[req_id], now)
        return Draft(self._books.table, draft.rows[keep], draft.num_tokens[keep], draft.holds_prompts)

    def _plan(self, draft: Draft, grown: Growth, fresh: list[NewRequestData], replaced: Replaced) -> SchedulerOutput:
        table, rows = self._books.table, draft.rows
        samples = draft.covered == draft.target
        finished_ids, preempted_ids = self._departures.take_ids()
        plan = SchedulerOutput(
            step=self._books.step,
            req_ids=table.ids_of(rows),
            rows=rows,
            epochs=table.epoch[rows],
            num_tokens=draft.num_tokens,
            num_computed=draft.computed,
            num_outputs=draft.target - table.prompt[rows],
            samples=samples,
            grown=grown[0],
            grown_more=grown[1],
            replaced={self._books.requests[req_id].row: changes for req_id, changes in replaced.items()},
            scheduled_new_reqs=fresh,
            finished_req_ids=finished_ids,
            preempted_req_ids=preempted_ids,
        )
        self._books.counts.steps += bool(len(rows))
        table.computed[rows] = draft.covered
        table.target[rows] = draft.target + samples
        table.last_step[rows] = self._books.step
        return plan
