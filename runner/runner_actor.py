"""A runner as an actor: plans in, results out, several steps under way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import anyio

from ..actors import Actor, Ask, Channel, Observer
from ..actors.tasks import no_quiet_end
from ..scheduler.messages import StepDone
from ..scheduler.plan import GrammarOutput, ModelRunnerOutput, SchedulerOutput
from .grammar_rows import ConstrainedRows, StepTokens
from .result_check import ResultCheck, check_one_token_each
from .runner import Runner


class UnderWay:
    """A step that was submitted; ``submitted`` says when, if somebody observes."""

    __slots__ = ("constrained", "plan", "result", "submitted")

    def __init__(
        self, plan: SchedulerOutput, result: Awaitable[ModelRunnerOutput], *, constrained: bool, submitted: float | None
    ) -> None:
        self.plan, self.result, self.constrained, self.submitted = plan, result, constrained, submitted


class RunnerActor(Actor):
    """Hands plans to the runner as they come, and results to the scheduler in the same order.

    A plan keeps its place in the lane until its result was delivered: the lane's capacity is
    the number of steps in flight. A step with constrained requests is submitted with a promise of
    its masks, so the runner may start it before they exist.
    """

    def __init__(self, runner: Runner, *, steps_in_flight: int) -> None:
        super().__init__("runner")
        self.runner = runner
        self.plans: Channel[SchedulerOutput] = self.mailbox.lane("plans", steps_in_flight)
        self._under_way: Channel[UnderWay] = Channel(steps_in_flight, name="steps under way", receiver=self.name)
        self._step_ended = 0.0
        self._deliver: Callable[[StepDone], None] | None = None
        self._ask_grammars: Callable[[Any], None] | None = None
        self._rows = ConstrainedRows(runner.info.max_num_running_reqs)
        self._check = ResultCheck(runner.info)

    def deliver_to(self, deliver: Callable[[StepDone], None]) -> None:
        """Where results go: the scheduler's control lane, which never blocks."""
        self._deliver = deliver

    def observe(self, observer: Observer | None) -> None:
        """Tell somebody of every turn and of every step from now on; None: nobody any more."""
        super().observe(observer)
        self._under_way.observer = observer

    def ask_for_masks(self, ask: Callable[[Any], None]) -> None:
        """Where masks come from: the grammars' control lane, which never blocks."""
        self._ask_grammars = ask

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(no_quiet_end, "the wait for a step's result", self._collect)
            async for plan in self.plans.leases():
                self._under_way.send_nowait(self._submit(plan))
            self._under_way.close()

    async def on_stop(self) -> None:
        """Steps that were submitted and will not be awaited: a coroutine among them is closed."""
        while len(self._under_way):
            result = self._under_way.receive_nowait().result
            if isinstance(result, Coroutine):
                result.close()

    def _submit(self, plan: SchedulerOutput) -> UnderWay:
        submitted = None if self.observer is None else self.observer.time()
        if self._ask_grammars is None or not self._rows.concern(plan):
            return UnderWay(plan, self.runner.submit(plan), constrained=False, submitted=submitted)
        masks: Ask[SchedulerOutput, GrammarOutput] = Ask(plan)
        self._ask_grammars(masks)
        # A chunk of a prompt samples nothing: nobody waits for the empty answer.
        result = self.runner.submit(plan, masks.reply) if self._rows.sampled(plan) else self.runner.submit(plan)
        return UnderWay(plan, result, constrained=True, submitted=submitted)

    async def _collect(self) -> None:
        assert self._deliver is not None
        async for step in self._under_way:
            output = await step.result if self.observer is None else await self._observed(step, self.observer)
            output = self._check.checked(step.plan, output)
            if self.plans.capacity > 1:
                check_one_token_each(step.plan, output)
            if step.constrained and self._ask_grammars is not None:  # first: the next step may wait for its masks
                self._ask_grammars(StepTokens(step.plan, output))
            self._deliver(StepDone(output))
            self.plans.settle()

    async def _observed(self, step: UnderWay, observer: Observer) -> ModelRunnerOutput:
        observer.sleeps(self.name, f"step {step.plan.step}")
        output = await step.result
        observer.wakes(self.name)
        now = observer.time()
        if step.submitted is not None:
            facts = {"requests": len(step.plan.req_ids), "tokens": step.plan.total_num_scheduled_tokens}
            observer.worked("device", f"step {step.plan.step}", max(step.submitted, self._step_ended), now, facts)
        self._step_ended = now
        return output
