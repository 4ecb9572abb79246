"""The way out: each step's outputs go to the streams of their requests."""

from __future__ import annotations

import anyio

from ..actors import Actor, Channel
from ..scheduler.messages import EngineCoreOutputs
from .board import Board
from .event_log import EventLog
from .step_stats import StepStats, iteration_stats


class DeliveryActor(Actor):
    """Takes one message a step, for all requests."""

    def __init__(self, board: Board, events: EventLog, *, steps_in_flight: int) -> None:
        super().__init__("delivery")
        self._board, self._events = board, events
        # Every step in flight has its place, so the scheduler never waits with a result in hand.
        self.outputs: Channel[EngineCoreOutputs] = self.mailbox.lane("outputs", 2 * steps_in_flight + 2)

    async def run(self) -> None:
        async for outputs in self.outputs:
            now = anyio.current_time()
            self._events.take(outputs)
            if outputs.scheduler_stats and self._events.steps:
                iteration = iteration_stats(outputs, self._board.get, now)
                self._events.steps.add([StepStats(scheduler=outputs.scheduler_stats, iteration=iteration)])
            self._board.deliver(outputs, now)
