"""A runner as an actor: plans in, results out, several steps under way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import anyio

from ..actors import Actor, Ask, Channel
from ..actors.tasks import no_quiet_end
from ..scheduler.messages import StepDone
from ..scheduler.plan import GrammarOutput, ModelRunnerOutput, SchedulerOutput
from .grammar_rows import ConstrainedRows, StepTokens
from .result_check import check_result
from .runner import Runner


class UnderWay:
    """A step that was submitted."""

    __slots__ = ("constrained", "plan", "result")

    def __init__(self, plan: SchedulerOutput, result: Awaitable[ModelRunnerOutput], constrained: bool) -> None:
        self.plan, self.result, self.constrained = plan, result, constrained


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
        self._under_way: Channel[UnderWay] = Channel(steps_in_flight, name="steps under way")
        self._deliver: Callable[[StepDone], None] | None = None
        self._ask_grammars: Callable[[Any], None] | None = None
        self._rows = ConstrainedRows(runner.info.max_num_running_reqs)

    def deliver_to(self, deliver: Callable[[StepDone], None]) -> None:
        """Where results go: the scheduler's control lane, which never blocks."""
        self._deliver = deliver

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
        if self._ask_grammars is None or not self._rows.concern(plan):
            return UnderWay(plan, self.runner.submit(plan), constrained=False)
        masks: Ask[SchedulerOutput, GrammarOutput] = Ask(plan)
        self._ask_grammars(masks)
        if not self._rows.sampled(plan):  # a chunk of a prompt: nobody waits for the empty answer
            return UnderWay(plan, self.runner.submit(plan), constrained=True)
        return UnderWay(plan, self.runner.submit(plan, masks.reply), constrained=True)

    async def _collect(self) -> None:
        assert self._deliver is not None
        async for step in self._under_way:
            output = await step.result
            check_result(step.plan, output, self.runner.info.vocab_size)
            if step.constrained and self._ask_grammars is not None:  # first: the next step may wait for its masks
                self._ask_grammars(StepTokens(step.plan, output))
            self._deliver(StepDone(output))
            self.plans.settle()
