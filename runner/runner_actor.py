"""A runner as an actor: plans in, results out, several steps under way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine

import anyio

from ..actors import Actor, Channel, Observer
from ..actors.tasks import no_quiet_end
from ..scheduler.messages import StepDone
from ..scheduler.plan import ModelRunnerOutput, SchedulerOutput
from .result_check import check_result
from .runner import Runner

UnderWay = tuple[SchedulerOutput, Awaitable[ModelRunnerOutput], float | None]  # and when it was submitted, if observed


class RunnerActor(Actor):
    """Hands plans to the runner as they come, and results to the scheduler in the same order.

    A plan keeps its place in the lane until its result was delivered: the lane's capacity is
    the number of steps in flight.
    """

    def __init__(self, runner: Runner, *, steps_in_flight: int) -> None:
        super().__init__("runner")
        self.runner = runner
        self.plans: Channel[SchedulerOutput] = self.mailbox.lane("plans", steps_in_flight)
        self._under_way: Channel[UnderWay] = Channel(steps_in_flight, name="steps under way", receiver=self.name)
        self._step_ended = 0.0
        self._deliver: Callable[[StepDone], None] | None = None

    def deliver_to(self, deliver: Callable[[StepDone], None]) -> None:
        """Where results go: the scheduler's control lane, which never blocks."""
        self._deliver = deliver

    def observe(self, observer: Observer | None) -> None:
        """Tell somebody of every turn and of every step from now on; None: nobody any more."""
        super().observe(observer)
        self._under_way.observer = observer

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(no_quiet_end, "the wait for a step's result", self._collect)
            async for plan in self.plans.leases():
                submitted = None if self.observer is None else self.observer.time()
                self._under_way.send_nowait((plan, self.runner.submit(plan), submitted))
            self._under_way.close()

    async def on_stop(self) -> None:
        """Steps that were submitted and will not be awaited: a coroutine among them is closed."""
        while len(self._under_way):
            _, step, _ = self._under_way.receive_nowait()
            if isinstance(step, Coroutine):
                step.close()

    async def _collect(self) -> None:
        assert self._deliver is not None
        async for plan, step, submitted in self._under_way:
            if self.observer is None:
                output = await step
            else:
                output = await self._observed(plan, step, submitted, self.observer)
            check_result(plan, output, self.runner.info.vocab_size)
            self._deliver(StepDone(output))
            self.plans.settle()

    async def _observed(
        self, plan: SchedulerOutput, step: Awaitable[ModelRunnerOutput], submitted: float | None, observer: Observer
    ) -> ModelRunnerOutput:
        observer.sleeps(self.name, f"step {plan.step}")
        output = await step
        observer.wakes(self.name)
        now = observer.time()
        if submitted is not None:
            facts = {"requests": len(plan.req_ids), "tokens": plan.total_num_scheduled_tokens}
            observer.worked("device", f"step {plan.step}", max(submitted, self._step_ended), now, facts)
        self._step_ended = now
        return output
