"""Which rows of a step are constrained, as the runner's actor sees it in the plans."""

from __future__ import annotations

import msgspec
import numpy as np

from ..scheduler.plan import ModelRunnerOutput, SchedulerOutput


class StepTokens(msgspec.Struct, frozen=True, tag=True):
    """A step with constrained requests has ended: its plan, and the tokens it gave."""

    plan: SchedulerOutput
    output: ModelRunnerOutput


class ConstrainedRows:
    """A flag for each row of the runner's tables, learnt from the plans that admit requests."""

    def __init__(self, rows: int) -> None:
        self._constrained = np.zeros(rows, np.bool_)
        self._any = False  # whether a constrained request has ever come

    def concern(self, plan: SchedulerOutput) -> bool:
        """Learn from a plan; whether it computes something for a constrained request. Once for each plan, in order."""
        for new in plan.scheduled_new_reqs:
            constrained = new.sampling_params.structured_output is not None
            self._constrained[new.row] = constrained
            self._any |= constrained
        return self._any and bool(self._constrained[plan.rows].any())

    def sampled(self, plan: SchedulerOutput) -> bool:
        """Whether a plan samples for one."""
        return bool(self._constrained[plan.rows[plan.samples]].any())
