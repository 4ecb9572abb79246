"""The matchers of all constrained requests: a step's tokens in, the next step's masks out.

Steps are planned before the results of those before them are known. So the mask of a step waits
here until every earlier step that samples for one of its requests has given its tokens; then
all its rows are filled in one call. What a result says of a request's earlier admission is
dropped, and a request that comes back from a preemption goes back to the outputs that it kept.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from time import thread_time
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..scheduler.errors import BooksError
from ..scheduler.plan import GrammarOutput, ModelRunnerOutput, SchedulerOutput
from .request_matcher import RequestMatcher

Bitmask = NDArray[np.int32]
Fill = Callable[[Sequence[Any], Bitmask, Sequence[int]], None]
SEARCH_AGAIN = 1000  # masks
NO_DRAFT = -1  # holds the place of a draft that is not known


class GrammarStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of the grammars, since the start where not said otherwise."""

    num_requests: int = 0  # constrained requests that have a matcher now
    num_masks: int = 0  # rows of masks made
    num_tokens: int = 0  # tokens accepted
    num_rolled_back: int = 0  # tokens taken back, by preemptions
    num_refused: int = 0  # tokens that a runner sampled against the mask


class _Entry(msgspec.Struct, frozen=True):
    """A request in a step: its place in the plan, where its next output goes, and the drafts behind that."""

    req_id: str
    epoch: int
    place: int
    position: int
    drafts: list[int] = []


class _Wanted(msgspec.Struct, frozen=True):
    """A step whose masks are not made."""

    step: int
    entries: list[_Entry]
    after: int  # the step whose tokens must be known


class GrammarManager:
    """Synchronous; all calls come from one thread at a time.

    Args:
        width: number of logits; masks have a bit for each.
        stop_token_ids: tokens that end a text; not allowed while a request reasons.
        fill: writes rows of masks for matchers, all in one call.
        mask_seconds: a request whose mask takes longer than this to make ends; others wait for it.
        clock: seconds of computing: a machine that is busy with other things makes no grammar slow.
    """

    def __init__(
        self,
        width: int,
        stop_token_ids: Sequence[int],
        fill: Fill,
        *,
        mask_seconds: float = math.inf,
        clock: Callable[[], float] = thread_time,
    ) -> None:
        self._mask_seconds, self._clock = mask_seconds, clock
        self._search_from = 0  # masks that are to be made before a slow request is looked for again
        self._words = -(-width // 32)
        self._fill = fill
        self._no_stop = _mask_without(stop_token_ids, width)
        self._all = _mask_without((), width)
        self._matchers: dict[str, RequestMatcher] = {}
        self._wanted: deque[_Wanted] = deque()
        self._under_way: dict[int, list[_Entry]] = {}  # by step: those of whom its tokens are awaited
        self._constrained = np.zeros(0, np.bool_)  # by row: whether its holder may have a matcher
        self._done = 0  # the last step whose tokens are known
        self._refused: dict[str, str] = {}
        self._broken: dict[str, str] = {}
        self._numbers: dict[str, int] = {}
        self._num_masks = self._num_tokens = self._num_rolled_back = self._num_refused = 0

    # --- requests come and go

    def add(self, req_id: str, matcher: RequestMatcher) -> None:
        """A request's grammar is ready."""
        if req_id in self._matchers:
            raise BooksError(f"request {req_id} has a grammar already")
        self._matchers[req_id] = matcher

    def drop(self, req_ids: Sequence[str]) -> None:
        """Requests have ended; ids without a matcher are passed over."""
        for req_id in req_ids:
            self._matchers.pop(req_id, None)

    # --- steps

    def plan(self, plan: SchedulerOutput) -> None:
        """A step was planned: its masks are wanted, as soon as they can be made."""
        admitted = self._learn(plan)
        entries: list[_Entry] = []
        after = 0
        for place in np.flatnonzero(self._constrained[plan.rows]).tolist():
            req_id, epoch = plan.req_ids[place], int(plan.epochs[place])
            matcher = self._matchers.get(req_id)
            if matcher is None:
                self._constrained[plan.rows[place]] = False
                continue
            if req_id in admitted:
                self._admit(matcher, epoch, admitted[req_id])
            if plan.samples[place] and matcher.epoch == epoch:
                after, matcher.last_step = max(after, matcher.last_step), plan.step
                drafts = plan.scheduled_spec_decode_tokens.get(req_id, [])
                entries.append(_Entry(req_id, epoch, place, int(plan.num_outputs[place]), drafts))
        self._wanted.append(_Wanted(plan.step, entries, after))
        self._under_way[plan.step] = entries

    def result(self, plan: SchedulerOutput, output: ModelRunnerOutput) -> None:
        """A step has given its tokens."""
        entries = self._under_way.pop(plan.step)
        for entry, tokens in zip(entries, _tokens_of(entries, plan, output), strict=True):
            matcher = self._matchers.get(entry.req_id)
            if matcher is None or matcher.epoch != entry.epoch:
                continue
            if entry.req_id in output.failed:
                matcher.refused = True  # it ends: what holds its token's place is no token
            else:
                self._accept(entry.req_id, matcher, plan.step, tokens)
        self._done = plan.step

    def take_masks(self) -> list[GrammarOutput]:
        """The masks that can be made now, one record for each step, in order."""
        made: list[GrammarOutput] = []
        while self._wanted and self._wanted[0].after <= self._done:
            made.append(self._masks(self._wanted.popleft()))
        return made

    def take_refused(self) -> dict[str, str]:
        """Requests that must end, and why: their masks take too long."""
        refused, self._refused = self._refused, {}
        return refused

    def take_broken(self) -> dict[str, str]:
        """Requests that must end because a token breaks their grammar: the runner did not apply its mask."""
        broken, self._broken = self._broken, {}
        return broken

    def take_numbers(self) -> dict[str, int]:
        """The arrivals of those who must end: by now another request may have one's id."""
        numbers, self._numbers = self._numbers, {}
        return numbers

    def valid_drafts(self, req_id: str, drafts: Sequence[int]) -> list[int]:
        """The longest beginning of these drafts that the request's grammar takes; the request stays where it is."""
        matcher = self._matchers[req_id]
        before = matcher.num_accepted
        taken: list[int] = []
        for draft in drafts:
            if draft == NO_DRAFT or matcher.is_free or not matcher.accept(draft):
                break
            taken.append(draft)
        matcher.back_to(before)
        return taken

    # --- inside

    def _learn(self, plan: SchedulerOutput) -> dict[str, int]:
        """Note who holds which row now; constrained requests that are admitted, with the outputs that they kept."""
        if (rows := int(plan.rows.max(initial=-1)) + 1) > len(self._constrained):
            self._constrained = np.append(self._constrained, np.zeros(rows - len(self._constrained), np.bool_))
        for new in plan.scheduled_new_reqs:
            self._constrained[new.row] = new.req_id in self._matchers
        return {new.req_id: len(new.token_ids) - new.num_prompt_tokens for new in plan.scheduled_new_reqs}

    def _admit(self, matcher: RequestMatcher, epoch: int, num_outputs: int) -> None:
        matcher.epoch, matcher.last_step = epoch, 0
        self._num_rolled_back += matcher.num_accepted - num_outputs
        matcher.back_to(num_outputs)

    def _accept(self, req_id: str, matcher: RequestMatcher, step: int, tokens: Sequence[int]) -> None:
        for token in tokens:
            if matcher.is_free:  # the request has ended; what a step under way has given is dropped
                return
            if not matcher.accept(token):
                self._note_end(req_id)
                self._num_refused += 1
                self._broken[req_id] = (
                    f"step {step} chose token {token} as output {matcher.num_accepted}, which the grammar forbids: "
                    f"the runner did not apply its mask (request {req_id})"
                )
                return
            self._num_tokens += 1

    def _note_end(self, req_id: str) -> None:
        matcher = self._matchers[req_id]
        matcher.refused = True
        self._numbers[req_id] = matcher.number

    def _masks(self, wanted: _Wanted) -> GrammarOutput:
        live = [entry for entry in wanted.entries if self._is_live(entry)]
        places = [(entry, entry.position + i) for entry in live for i in range(1 + len(entry.drafts))]
        bitmask = np.zeros((len(places), self._words), np.int32)
        self._fill_rows(live, bitmask)
        self._end_empty(live, bitmask)
        self._num_masks += len(places)
        return GrammarOutput(
            step=wanted.step,
            req_ids=[entry.req_id for entry, _ in places],
            places=[entry.place for entry, _ in places],
            positions=[position for _, position in places],
            width=self._words,
            bitmask=bitmask.tobytes(),
        )

    def _is_live(self, entry: _Entry) -> bool:
        """Whether anybody will look at what is chosen for this entry."""
        matcher = self._matchers.get(entry.req_id)
        if matcher is None or matcher.epoch != entry.epoch or matcher.is_free:
            return False
        if matcher.num_accepted != entry.position:
            raise BooksError(
                f"a mask is wanted for output {entry.position}, "
                f"{matcher.num_accepted} were seen (request {entry.req_id})"
            )
        return True

    def _fill_rows(self, live: list[_Entry], bitmask: Bitmask) -> None:
        """First rows of all requests in one call, then those behind drafts."""
        rows: list[int] = []
        matchers: list[Any] = []
        row = 0
        for entry in live:
            matcher = self._matchers[entry.req_id]
            if matcher.reasons:
                bitmask[row] = self._no_stop
            else:
                rows.append(row)
                matchers.append(matcher.native)
            row += 1 + len(entry.drafts)
        if matchers:
            began = self._clock()
            self._fill(matchers, bitmask, rows)
            if self._clock() - began > self._mask_seconds:
                self._end_slow(live)
        row = 0
        for entry in live:
            if entry.drafts:
                self._fill_drafts(self._matchers[entry.req_id], entry.drafts, bitmask[row:])
            row += 1 + len(entry.drafts)

    def _end_empty(self, live: list[_Entry], bitmask: Bitmask) -> None:
        """End the requests whose grammars leave no token: what is chosen for them meanwhile is dropped."""
        row = 0
        for entry in live:
            if not bitmask[row].any():
                bitmask[row] = self._all
                self._note_end(entry.req_id)
                self._refused[entry.req_id] = (
                    f"its grammar leaves no token of this vocabulary for output {entry.position} "
                    f"(request {entry.req_id})"
                )
            row += 1 + len(entry.drafts)

    def _end_slow(self, live: list[_Entry]) -> None:
        """End the requests for which a step's masks took too long. Costs them once more; so not again at once."""
        if self._num_masks < self._search_from:
            return
        scratch = np.zeros((1, self._words), np.int32)
        for entry in live:
            matcher = self._matchers[entry.req_id]
            if matcher.reasons:
                continue
            began = self._clock()
            self._fill([matcher.native], scratch, [0])
            if (took := self._clock() - began) > self._mask_seconds:
                self._note_end(entry.req_id)
                self._refused[entry.req_id] = (
                    f"a mask of its grammar takes {took:.3f} s, "
                    f"limit is {self._mask_seconds} s (request {entry.req_id})"
                )
        self._search_from = self._num_masks + SEARCH_AGAIN

    def _fill_drafts(self, matcher: RequestMatcher, drafts: list[int], rows: Bitmask) -> None:
        """Row i + 1 is what may follow draft i.

        Behind an end all is allowed, and behind a place whose draft is not known: nothing of that is
        kept. Behind a draft that the grammar refuses the last mask stays, for the same reason.
        """
        before = matcher.num_accepted
        for i, draft in enumerate(drafts):
            if draft == NO_DRAFT:
                rows[i + 1 : len(drafts) + 1] = self._all
                break
            if not matcher.is_free and not matcher.accept(draft):
                rows[i + 1 : len(drafts) + 1] = rows[i]
                break
            self._fill_one(matcher, rows, i + 1)
        matcher.back_to(before)

    def _fill_one(self, matcher: RequestMatcher, rows: Bitmask, row: int) -> None:
        if matcher.is_free:
            rows[row] = self._all
        elif matcher.reasons:
            rows[row] = self._no_stop
        else:
            self._fill([matcher.native], rows, [row])

    # --- accounts

    def statistics(self) -> GrammarStatistics:
        """Counts as they are now."""
        return GrammarStatistics(
            num_requests=len(self._matchers),
            num_masks=self._num_masks,
            num_tokens=self._num_tokens,
            num_rolled_back=self._num_rolled_back,
            num_refused=self._num_refused,
        )

    def check(self) -> None:
        """Raise BooksError if a runner has ever chosen against a mask."""
        if self._num_refused:
            raise BooksError(f"{self._num_refused} tokens were chosen that their grammars forbid")


def _mask_without(forbidden: Sequence[int], width: int) -> NDArray[np.int32]:
    """A row that allows every token but these, and none beyond the width."""
    bits = np.zeros(-(-width // 32) * 32, np.uint8)
    bits[:width] = 1
    bits[[token for token in forbidden if token < width]] = 0
    return np.packbits(bits, bitorder="little").view(np.int32)


def _tokens_of(entries: list[_Entry], plan: SchedulerOutput, output: ModelRunnerOutput) -> list[list[int]]:
    """What a result says of some of its entries."""
    if output.token_ids is not None:
        samples = plan.sample_of(np.array([entry.place for entry in entries], np.int64))
        return output.token_ids[samples][:, None].tolist()
    given = output.sampled_token_ids or {}
    return [given.get(entry.req_id, []) for entry in entries]
