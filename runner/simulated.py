"""A runner without a neural network: real plans, real block tables, simulated time."""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from typing import Any

import anyio

from ..scheduler.errors import EngineDeadError
from ..scheduler.kv_groups import ONE_GROUP, KVGroup
from ..scheduler.plan import GrammarOutput, IntArray, ModelRunnerOutput, SchedulerOutput
from .latency import Latency
from .runner import MERGED_BLOCKS, RunnerInfo
from .toy_model import ToyModel


class Gate:
    """Holds steps back until a test lets them through."""

    def __init__(self) -> None:
        self._passes: float = float("inf")
        self._opened = anyio.Event()

    def close(self) -> None:
        """From now on a step waits."""
        self._passes = 0

    def open(self, steps: float = float("inf")) -> None:
        """Let this many steps through, by default all."""
        self._passes += steps
        self._opened.set()

    async def passed(self) -> None:
        """Wait until a step may execute."""
        while self._passes < 1:
            self._opened = anyio.Event()
            await self._opened.wait()
        self._passes -= 1


class SimulatedRunner:
    """A device that executes steps one after another, as a toy model.

    A step reads the KV slots when it executes, at the end of its latency, and not when it is
    submitted. Works on any event loop; on trio's autojump clock the latency costs no time.

    Args:
        eos_token_ids: tokens that end a text; the toy model gives them by chance.
        kv_groups: groups of layers with block tables of their own; see the toy model.
        latency: the time of a step; None: none.
        faults: step number -> the exception in which the step ends.
    """

    def __init__(
        self,
        *,
        vocab_size: int = 1000,
        num_kv_blocks: int = 1024,
        block_size: int = 16,
        max_num_running_reqs: int = 256,
        max_model_len: int = 4096,
        eos_token_ids: tuple[int, ...] = (),
        kv_groups: tuple[KVGroup, ...] = ONE_GROUP,
        latency: Latency | None = None,
        faults: dict[int, Exception] | None = None,
    ) -> None:
        self.info = RunnerInfo(
            vocab_size=vocab_size,
            max_model_len=max_model_len,
            block_size=block_size,
            num_kv_blocks=num_kv_blocks,
            max_num_running_reqs=max_num_running_reqs,
            eos_token_ids=eos_token_ids,
            capabilities=frozenset({"grammars", MERGED_BLOCKS}),
            weights_id="toy",
            kv_groups=kv_groups,
        )
        self.gate = Gate()
        self.num_steps = 0  # executed so far
        self.busy_seconds = 0.0  # of simulated device time
        self.idle_seconds = 0.0  # of simulated device time, between the end of a step and the next one's start
        self._model = ToyModel(
            vocab_size=vocab_size,
            num_kv_blocks=num_kv_blocks,
            block_size=block_size,
            max_num_running_reqs=max_num_running_reqs,
            max_model_len=max_model_len,
            groups=kv_groups,
            eos_token_ids=eos_token_ids,
        )
        self._latency = latency or Latency()
        self._faults = faults or {}
        self._free_at: float | None = None  # when the last step that it has ends; None before the first
        self._closed = False

    def submit(
        self, plan: SchedulerOutput, grammar: Awaitable[GrammarOutput] | None = None
    ) -> Awaitable[ModelRunnerOutput]:
        """Take a step; its awaitable executes it when the steps before it are done."""
        if self._closed:
            raise EngineDeadError(f"the runner is closed, step {plan.step} came late")
        return _Step(self, plan, grammar, anyio.current_time())

    async def aclose(self) -> None:
        """Refuse further steps."""
        self._closed = True

    async def execute(
        self, plan: SchedulerOutput, submitted: float, grammar: Awaitable[GrammarOutput] | None = None
    ) -> ModelRunnerOutput:
        """The device's turn: one step, after its latency; its masks are waited for at the end."""
        took = self._latency.of(plan)
        # The device starts a step as soon as it has it and is free, whenever the host looks.
        starts = submitted if self._free_at is None else max(self._free_at, submitted)
        self.idle_seconds += 0.0 if self._free_at is None else starts - self._free_at
        self._free_at = starts + took
        self.busy_seconds += took
        await anyio.sleep_until(self._free_at)
        await self.gate.passed()
        if fault := self._faults.get(plan.step):
            raise fault
        masks = () if grammar is None else (await grammar,)
        self.num_steps += 1
        return ModelRunnerOutput(step=plan.step, token_ids=self.compute(plan, *masks))

    def compute(self, plan: SchedulerOutput, masks: GrammarOutput | None = None) -> IntArray:
        """Execute a plan at once: a token for each entry that samples, allowed by its mask if it has one."""
        return self._model.execute(plan, masks)


class _Step:
    """A submitted step; awaiting it gives the result."""

    def __init__(
        self,
        runner: SimulatedRunner,
        plan: SchedulerOutput,
        grammar: Awaitable[GrammarOutput] | None,
        submitted: float,
    ) -> None:
        self._runner, self._plan, self._grammar, self._submitted = runner, plan, grammar, submitted

    def __await__(self) -> Generator[Any, Any, ModelRunnerOutput]:
        if self._grammar is None:
            return self._runner.execute(self._plan, self._submitted).__await__()
        return self._runner.execute(self._plan, self._submitted, self._grammar).__await__()
