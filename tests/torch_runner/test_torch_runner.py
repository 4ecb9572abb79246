"""The runner's thread: order, failures, closing, limits."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import msgspec
import numpy as np
import pytest
import torch
from dense_reference import LLAMA, Weights, greedy, random_weights
from plan_maker import BLOCK_SIZE, Device, PlanMaker, watch_logits

from callboard.actors import Reply
from callboard.actors.errors import WrongLoopError
from callboard.runner.mask_ticket import MaskTicket
from callboard.runner.torch_runner import TorchRunner
from callboard.scheduler.errors import BooksError, ConfigError, EngineDeadError, ModelLoadError
from callboard.scheduler.plan import GrammarOutput

WEIGHTS = random_weights(LLAMA)
PROMPT = [5, 9, 17, 3, 8]


def make(load: Callable[[], Weights] = lambda: dict(WEIGHTS), **limits: Any) -> TorchRunner:
    limits = {"max_model_len": 64, "block_size": BLOCK_SIZE, "num_kv_blocks": 50, "max_num_running_reqs": 4} | limits
    return TorchRunner(LLAMA, load, **limits)


@pytest.fixture
async def runner() -> AsyncIterator[TorchRunner]:
    runner = make()
    yield runner
    await runner.aclose()


@pytest.fixture
def plans() -> PlanMaker:
    plans = PlanMaker()
    plans.admit("a", 0, PROMPT, [1, 2, 3, 4])
    return plans


async def test_steps_give_tokens_in_the_order_of_submission(runner: TorchRunner, plans: PlanMaker) -> None:
    await runner.start()
    steps = [runner.submit(plans.step(a=5)), runner.submit(plans.step(a=1)), runner.submit(plans.step(a=1))]
    outputs = [await step for step in steps]
    assert [output.step for output in outputs] == [1, 2, 3]
    assert [int(output.token_ids[0]) for output in outputs] == greedy(LLAMA, WEIGHTS, PROMPT, 3)


async def test_the_first_step_loads_the_weights(runner: TorchRunner, plans: PlanMaker) -> None:
    assert (await runner.submit(plans.step(a=5))).token_ids is not None


async def test_weights_are_loaded_once_and_on_the_runners_thread(plans: PlanMaker) -> None:
    threads = []

    def load() -> Weights:
        threads.append(threading.current_thread().name)
        return dict(WEIGHTS)

    runner = make(load)
    await runner.start()
    await runner.start()
    await runner.submit(plans.step(a=5))
    await runner.aclose()
    assert threads == ["torch runner"]


async def test_weights_that_cannot_be_loaded_fail_the_start_and_every_step(plans: PlanMaker) -> None:
    error = ModelLoadError("no such file")

    def load() -> Weights:
        raise error

    runner = make(load)
    step = runner.submit(plans.step(a=5))
    for awaitable in (step, runner.start(), runner.submit(plans.step(a=1))):
        with pytest.raises(ModelLoadError) as caught:
            await awaitable
        assert caught.value is error
    await runner.aclose()


async def test_an_error_in_a_step_fails_it_and_all_later_ones_with_one_cause(
    runner: TorchRunner, plans: PlanMaker
) -> None:
    good = runner.submit(plans.step(a=5))
    bad = runner.submit(msgspec.structs.replace(plans.step(a=1), num_computed=plans.step(a=1).num_computed + 7))
    late = [runner.submit(plans.step(a=1)), runner.submit(plans.step(a=1))]
    assert (await good).step == 1
    with pytest.raises(BooksError) as cause:
        await bad
    for step in [*late, runner.submit(plans.step(a=1))]:
        with pytest.raises(BooksError) as caught:
            await step
        assert caught.value is cause.value


async def test_closing_twice_is_the_same_as_once(runner: TorchRunner, plans: PlanMaker) -> None:
    await runner.submit(plans.step(a=5))
    await runner.aclose()
    await runner.aclose()
    with pytest.raises(EngineDeadError, match="torch runner is closed"):
        runner.submit(plans.step(a=1))


async def test_a_runner_that_was_never_used_may_be_closed(plans: PlanMaker) -> None:
    runner = make()
    await runner.aclose()
    with pytest.raises(EngineDeadError):
        await runner.start()


async def test_closing_drops_the_steps_that_wait_and_lets_the_current_one_end(plans: PlanMaker) -> None:
    entered, release = threading.Event(), threading.Event()

    def load() -> Weights:
        entered.set()
        release.wait()
        return dict(WEIGHTS)

    runner = make(load)
    steps = [runner.submit(plans.step(a=5)), runner.submit(plans.step(a=1))]
    await anyio.to_thread.run_sync(entered.wait)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(runner.aclose)
        await anyio.wait_all_tasks_blocked()
        release.set()
    for step in steps:
        with pytest.raises(EngineDeadError, match="closed before"):
            await step
    assert "torch runner" not in {thread.name for thread in threading.enumerate()}


async def test_a_cancelled_close_still_waits_for_the_current_step(plans: PlanMaker) -> None:
    runner = make()
    runner.submit(plans.step(a=5))
    with anyio.CancelScope() as scope:
        scope.cancel()
        await runner.aclose()
    assert "torch runner" not in {thread.name for thread in threading.enumerate()}


async def test_nobody_needs_to_await_a_step(runner: TorchRunner, plans: PlanMaker) -> None:
    runner.submit(plans.step(a=5))
    assert (await runner.submit(plans.step(a=1))).step == 2


async def test_two_runners_in_one_program_do_not_meet(runner: TorchRunner) -> None:
    other, outputs = make(), {}
    for name, one, prompt in (("a", runner, PROMPT), ("b", other, PROMPT[::-1])):
        plans = PlanMaker()
        plans.admit(name, 0, prompt, [1, 2, 3])
        outputs[name] = one.submit(plans.step(**{name: 5}))
    assert (await outputs["a"]).token_ids.tolist() == greedy(LLAMA, WEIGHTS, PROMPT, 1)
    assert (await outputs["b"]).token_ids.tolist() == greedy(LLAMA, WEIGHTS, PROMPT[::-1], 1)
    await other.aclose()


async def test_another_event_loop_is_refused(runner: TorchRunner, plans: PlanMaker) -> None:
    await runner.submit(plans.step(a=5))

    async def elsewhere() -> None:
        runner.submit(plans.step(a=1))

    with pytest.raises(WrongLoopError):
        await anyio.to_thread.run_sync(lambda: anyio.run(elsewhere))


def masks_of(step: int, req_id: str, position: int, tokens: list[int]) -> GrammarOutput:
    """Masks for one request that allow these tokens of 64."""
    words = np.zeros(2, np.uint32)
    for token in tokens:
        words[token // 32] |= np.uint32(1 << token % 32)
    return GrammarOutput(step=step, req_ids=[req_id], positions=[position], width=2, bitmask=words.tobytes())


@pytest.mark.parametrize("few", [True, False])
async def test_sampling_waits_for_the_masks_and_takes_the_best_of_what_they_allow(
    runner: TorchRunner, plans: PlanMaker, few: bool
) -> None:
    (free,) = greedy(LLAMA, WEIGHTS, PROMPT, 1)
    allowed = [free, 3, 40] if few else [token for token in range(64) if token != free]
    masks: Reply[GrammarOutput] = Reply()
    plan = plans.step(a=5)
    step = runner.submit(plan, masks)
    await anyio.lowlevel.checkpoint()
    masks.set_result(masks_of(plan.step, "a", 0, allowed))
    token = int((await step).token_ids[0])
    assert (token == free) == few
    assert token in allowed


class NotedTicket(MaskTicket):
    """Masks that are there, and how many steps had their logits when they were asked for."""

    def __init__(self, masks: GrammarOutput, logits: list[torch.Tensor]) -> None:
        there: Reply[GrammarOutput] = Reply()
        there.set_result(masks)
        super().__init__(there)
        self.asked: list[int] = []
        self._logits = logits

    def wait(self) -> GrammarOutput:
        self.asked.append(len(self._logits))
        return super().wait()


def test_the_forward_pass_is_over_when_masks_are_waited_for() -> None:
    device = Device(LLAMA, WEIGHTS)
    device.admit("a", 0, PROMPT, [1, 2, 3, 4])
    plan = device.step(a=5)
    ticket = NotedTicket(masks_of(plan.step, "a", 0, [3, 40]), watch_logits(device))
    assert device.executor.execute(plan, ticket).token_ids.tolist()[0] in (3, 40)
    assert ticket.asked == [1]


async def test_a_promise_of_masks_of_any_kind_will_do(runner: TorchRunner, plans: PlanMaker) -> None:
    plan = plans.step(a=5)

    async def later() -> GrammarOutput:
        await anyio.lowlevel.checkpoint()
        return masks_of(plan.step, "a", 0, [9])

    assert int((await runner.submit(plan, later())).token_ids[0]) == 9


async def test_a_runner_that_is_closed_waits_for_no_masks(runner: TorchRunner, plans: PlanMaker) -> None:
    step = runner.submit(plans.step(a=5), Reply())
    await runner.aclose()
    with pytest.raises(EngineDeadError, match="closed"):
        await step


async def test_masks_of_another_step_or_place_end_the_runner(plans: PlanMaker) -> None:
    plan = plans.step(a=5)
    for masks, message in (
        (masks_of(plan.step + 1, "a", 0, [3]), "masks of step"),
        (masks_of(plan.step, "a", 7, [3]), "a mask is for output 7, the next is 0"),
    ):
        runner, promise = make(), Reply()
        promise.set_result(masks)
        with pytest.raises(BooksError, match=message):
            await runner.submit(plan, promise)
        await runner.aclose()


async def test_padding_of_the_vocabulary_is_never_sampled(plans: PlanMaker) -> None:
    weights = dict(WEIGHTS) | {"head": WEIGHTS["embed"].clone()}
    weights["head"][61] = -50 * weights["head"][60]
    weights["head"][62] = -weights["head"][61]  # one of these two is the best
    for limit, padded in ((None, True), (60, False)):
        runner, fresh = make(lambda: dict(weights), vocab_size=limit), PlanMaker()
        fresh.admit("a", 0, PROMPT, [1, 2])
        token = int((await runner.submit(fresh.step(a=5))).token_ids[0])
        assert (token >= 60) == padded
        assert runner.info.vocab_size == 64
        await runner.aclose()


def test_limits_are_known_at_once() -> None:
    info = make(num_kv_blocks=None, kv_cache_memory=1 << 20).info
    # a block: keys and values, 2 layers, 2 heads, 4 tokens, 8 elements of 4 bytes
    assert info.num_kv_blocks == (1 << 20) // (2 * 2 * 2 * 4 * 8 * 4)
    assert (info.vocab_size, info.max_model_len, info.block_size, info.max_num_running_reqs) == (64, 64, 4, 4)
    assert {"sampling", "penalties", "logprobs", "grammars"} < info.capabilities


def test_without_a_limit_the_kv_cache_holds_all_rows_at_full_length() -> None:
    assert make(num_kv_blocks=None).info.num_kv_blocks == 4 * 64 // BLOCK_SIZE


def test_without_a_length_it_is_the_models_own() -> None:
    assert make(max_model_len=None).info.max_model_len == LLAMA.max_position_embeddings


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_model_len": 2000}, "max_model_len is 2000, but the model was made for 1024"),
        ({"max_model_len": 0}, "max_model_len is 0, the least is 1"),
        ({"block_size": 0}, "block_size is 0"),
        ({"num_kv_blocks": 0}, "num_kv_blocks is 0"),
        ({"num_threads": 0}, "num_threads is 0"),
        ({"max_num_running_reqs": 0}, "max_num_running_reqs is 0"),
        ({"vocab_size": 65}, "vocab_size is 65, the limits are 1 and the logits' width, 64"),
        ({"kv_cache_memory": 1 << 20}, "both given"),
        ({"kv_cache_memory": 100, "num_kv_blocks": None}, "100 bytes, one block takes"),
    ],
)
def test_limits_that_contradict_the_model_or_each_other_are_refused(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**limits)


@pytest.mark.parametrize("setting", [{"dtype": "int3"}, {"device": "abacus"}])
def test_unknown_types_and_devices_are_refused(setting: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="supported"):
        TorchRunner.from_pretrained("smollm2", **setting)  # pyright: ignore[reportArgumentType]


def test_a_model_that_is_not_there_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError):
        TorchRunner.from_pretrained(tmp_path / "nothing")
