"""The scheduler as an actor: apply what arrived, plan while there is room, wait."""

from __future__ import annotations

from collections import deque
from typing import Any

import anyio

from ..actors import Actor, Ask, Channel, Reply
from .errors import CallboardError, InvalidRequestError, PolicyError
from .messages import (
    Abort,
    CloseSession,
    EngineCoreOutputs,
    Follow,
    GrammarNews,
    Pause,
    PrepareGrammars,
    ResetPrefixCache,
    Resume,
    StepDone,
    Submit,
    SwapPolicy,
)
from .pause import STATE_OF_MODE, PauseState
from .plan import SchedulerOutput
from .scheduler import NOTHING_GRANTED, Scheduler

SchedulerAsk = Ask[ResetPrefixCache, bool] | Ask[Pause, None] | Ask[SwapPolicy, None]
SchedulerControl = Abort | CloseSession | StepDone | Follow | GrammarNews | Resume | SchedulerAsk


class SchedulerActor(Actor):
    """Moves messages in and out of the scheduler core.

    The room in ``plans`` is the only knob of overlap: a plan keeps its place there until its
    result has come back, so with two places step N+1 is planned while step N is computed.

    Args:
        reserve: lane of the KV cache.
        plans: lane of the runner.
        outputs: lane of the delivery; has places for all steps in flight.
        max_waiting: places for requests on their way in.
        grammars: lane of the grammars; None: constrained requests are refused at the door.
    """

    def __init__(
        self,
        core: Scheduler,
        *,
        reserve: Channel[Any],
        plans: Channel[SchedulerOutput],
        outputs: Channel[EngineCoreOutputs],
        max_waiting: int,
        grammars: Channel[PrepareGrammars] | None = None,
    ) -> None:
        super().__init__("scheduler", sends_to=[reserve, plans, outputs, *([grammars] if grammars is not None else [])])
        self.core = core
        self.submits: Channel[Submit] = self.mailbox.lane("submit", max_waiting)
        self._reserve, self._plans, self._outputs = reserve, plans, outputs
        self._in_flight: deque[SchedulerOutput] = deque()
        self._resets: list[Ask[ResetPrefixCache, bool]] = []
        self._generated_at_reset = -1  # tokens that had been generated at the last forced reset
        self._pauses: list[Ask[Pause, None]] = []
        self.mailbox.watch_room(plans)
        self.mailbox.watch_room(outputs)
        self._grammars = grammars
        if grammars is not None:
            self.mailbox.watch_room(grammars)

    async def run(self) -> None:
        while True:
            self._apply_what_arrived(anyio.current_time())
            await self._plan_while_there_is_room()
            await self._when_idle()
            if self._is_done():
                return
            await self.wait()

    def _apply_what_arrived(self, now: float) -> None:
        # Submissions first: an abort was sent after the submission that it means. Both come
        # before any plan, so a step never serves a request that has been aborted.
        while len(self.submits):
            self._add(self.submits.receive_nowait(), now)
        for message in self.mailbox.take_control():
            self._apply(message, now)
        self._send_notices()

    def _send_notices(self) -> None:
        if self._outputs_have_room() and (notices := self.core.take_outputs()):
            self._outputs.send_nowait(notices)
        if self.core.grammars.has_news and self._grammars is not None and self._grammars.has_room:
            self._grammars.send_nowait(self.core.grammars.take_news())

    def _add(self, submit: Submit, now: float) -> None:
        try:
            self.core.add_request(submit.request, now)
        except (InvalidRequestError, PolicyError) as error:
            self.core.reject(submit.request.request_id, error)

    def _apply(self, message: SchedulerControl, now: float) -> None:
        match message:
            case Abort(request_ids=request_ids, unsent=True):
                self.core.tell_unsent(request_ids)
            case Abort(request_ids=request_ids):
                self.core.abort(request_ids, now)
            case StepDone(output=output):
                outputs = self.core.update_from_output(self._in_flight.popleft(), output, now)
                self._outputs.send_nowait(outputs)
            case CloseSession(session=session):
                self.core.close_session(session)
            case GrammarNews(ready=ready, failed=failed, broken=broken, numbers=numbers):
                self.core.grammar_news(ready, failed, now, broken=broken, numbers=numbers)
            case Resume():
                self.core.set_pause_state(PauseState.UNPAUSED)
                self._answer_pauses()
            case Ask(message=Pause(mode=mode)):
                self.core.set_pause_state(STATE_OF_MODE[mode])
                self._pauses.append(message)
            case Ask(message=SwapPolicy(policy=policy)):
                self._swap_policy(policy, message.reply)
            case Follow():
                self.core.follow(message)
            case Ask(message=ResetPrefixCache()):
                self._resets.append(message)

    def _swap_policy(self, policy: Any, reply: Reply[None]) -> None:
        try:
            reply.set_result(self.core.swap_policy(policy))
        except CallboardError as error:  # the old one stays
            reply.set_error(error)
        except Exception as error:  # noqa: BLE001 - what a user's object does is its caller's trouble alone
            reply.set_error(PolicyError(f"the policy cannot be taken: {type(error).__name__}"))

    async def _plan_while_there_is_room(self) -> None:
        while self._may_plan():
            wants = self.core.propose(anyio.current_time())
            granted = await self.ask(self._reserve, wants) if wants else NOTHING_GRANTED
            plan = self.core.commit(granted, anyio.current_time())
            if plan.is_empty:
                return
            self._in_flight.append(plan)
            self._plans.send_nowait(plan)
            self._apply_what_arrived(anyio.current_time())

    def _may_plan(self) -> bool:
        if self.core.pause_state is PauseState.PAUSED_ALL:
            return False
        if self._resets and self._must_reset() and self.core.num_generated != self._generated_at_reset:
            return False  # after a reset somebody gets a token first: whoever resets in a loop starves nobody
        return self._plans.has_room and self._outputs_have_room()

    def _must_reset(self) -> bool:
        """Whether the cache is to be emptied whoever uses it: then the steps under way are the last before."""
        return any(reset.message.force for reset in self._resets)

    def _outputs_have_room(self) -> bool:
        """Whether each step in flight would find a place for its outputs, and one more."""
        return len(self._outputs) + len(self._in_flight) < self._outputs.capacity

    async def _when_idle(self) -> None:
        """Between steps: give back what nobody else will, then answer who wants an empty cache or waits for quiet."""
        if self._resets and not self._must_reset() and self.core.num_running:  # requests that hold blocks
            while self._resets:
                self._resets.pop().reply.set_result(False)
        if self._in_flight:
            return
        if self._resets and self._must_reset():
            self.core.preempt_all(anyio.current_time())
            self._generated_at_reset = self.core.num_generated
            self.mailbox.wake()  # they are planned again in the next turn
        if self.core.owes_release:
            self.core.take_answer(await self.ask(self._reserve, self.core.take_releases()), anyio.current_time())
        while self._resets:
            self._resets.pop().reply.set_result(await self._reset())
        self._send_notices()
        if not self.core.num_unfinished:
            self._answer_pauses()

    def _answer_pauses(self) -> None:
        while self._pauses:
            self._pauses.pop().reply.set_result(None)

    async def _reset(self) -> bool:
        done: bool = await self.ask(self._reserve, ResetPrefixCache())
        if done:
            self.core.prefix_cache_was_reset(anyio.current_time())
        return done

    def _is_done(self) -> bool:
        return self.submits.closed and not self._in_flight and not self.core.num_requests
