"""Whatever ends a runner's thread reaches those who wait for it, with its cause, and ends nothing else."""

import asyncio
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from callboard import Engine, EngineConfig, EngineDeadError, RunnerError, SamplingParams
from callboard.runner import SimulatedRunner
from callboard.runner.runner_thread import RunnerThread

ENDS = [SystemExit(3), KeyboardInterrupt(), GeneratorExit("no more"), asyncio.CancelledError()]


def raising(error: BaseException) -> Callable[[], None]:
    def deep_inside() -> None:
        raise error

    return deep_inside


class Threaded(SimulatedRunner):
    """Its second step ends its thread."""

    def __init__(self, end: BaseException) -> None:
        super().__init__(vocab_size=100, num_kv_blocks=64, block_size=4, max_model_len=100)
        self.end, self.thread = end, RunnerThread("threaded runner")

    def submit(self, plan: Any, grammar: Any = None) -> Any:
        return super().submit(plan, grammar) if plan.step != 2 else self.thread.submit(raising(self.end))

    async def aclose(self) -> None:
        await self.thread.aclose(10)
        await super().aclose()


async def test_an_error_reaches_its_own_awaiter_and_all_later_ones_as_it_is():
    thread, error = RunnerThread("worker"), LookupError("nothing there")
    replies = [thread.submit(raising(error)), thread.submit(raising(ValueError()))]
    for reply in replies:
        with pytest.raises(LookupError) as caught:
            await reply
        assert caught.value is error
    await thread.aclose(10)


@pytest.mark.parametrize("end", ENDS, ids=lambda end: type(end).__name__)
async def test_what_is_no_exception_is_the_cause_of_one_and_keeps_its_traceback(end: BaseException):
    thread = RunnerThread("worker")
    with pytest.raises(RunnerError) as caught:
        await thread.submit(raising(end))
    assert str(caught.value) == f"worker was ended by {end!r}"
    assert caught.value.__cause__ is end
    assert traceback.extract_tb(end.__traceback__)[-1].name == "deep_inside"
    await thread.aclose(10)


@pytest.mark.parametrize("end", ENDS, ids=lambda end: type(end).__name__)
async def test_a_user_of_the_engine_gets_the_whole_chain_and_the_host_goes_on(end: BaseException):
    async with Engine(EngineConfig(block_size=4), runner=Threaded(end)) as engine:
        with pytest.raises(EngineDeadError, match="threaded runner was ended by") as caught:
            await engine.complete([1, 2, 3], SamplingParams(temperature=0, max_tokens=8))
        assert isinstance(caught.value.__cause__, RunnerError)
        assert caught.value.__cause__.__cause__ is end
        assert "deep_inside" in "".join(traceback.format_exception(caught.value))
