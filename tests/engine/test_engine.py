"""The engine as its users meet it, on a simulated runner."""

import anyio
import anyio.to_thread
import pytest
from toy_engine import PROMPT, greedy, idle, make

from callboard import (
    Engine,
)
from callboard.runner import RunnerInfo
from callboard.runner.toy_model import toy_tokens
from callboard.scheduler import ModelRunnerOutput


@pytest.mark.parametrize("depth", [1, 2, 3])
async def test_any_number_of_steps_in_flight_gives_the_same_tokens(depth: int):
    async with make(steps_in_flight=depth) as engine:
        final = await engine.complete(PROMPT, greedy(max_tokens=50))
        assert final.outputs[0].token_ids == toy_tokens(PROMPT, 50, 100)
        assert engine.stats().num_steps <= 50 + 2  # known ends are not planned past


async def test_by_default_two_steps_are_under_way():
    async with make() as engine:
        engine.runner.gate.close()
        stream = engine.generate(PROMPT, greedy())
        await anyio.wait_all_tasks_blocked()
        assert engine.stats().num_steps == 2
        await stream.aclose()


async def test_two_engines_in_one_loop_do_not_know_of_each_other():
    async with make() as one, make() as other:
        a, b = one.generate(PROMPT, greedy(), request_id="x"), other.generate([9, 9], greedy(), request_id="x")
        assert [t async for o in a for t in o.outputs[0].token_ids] == toy_tokens(PROMPT, 8, 100)
        assert [t async for o in b for t in o.outputs[0].token_ids] == toy_tokens([9, 9], 8, 100)


async def test_events_tell_the_life_of_a_request_in_order():
    async with make() as engine:
        events = engine.events()
        await engine.complete(PROMPT, greedy(), request_id="x")
        await idle(engine)
    seen = [(event.kind, event.request_id) async for event in events]
    assert seen == [("QUEUED", "x"), ("SCHEDULED", "x"), ("FINISHED", "x")]


async def test_priority_decides_who_is_admitted_first():
    async with make(policy="priority", max_num_running_reqs=1) as engine:
        events = engine.events()
        streams = [engine.generate([p, *PROMPT], greedy(), request_id=f"p{p}", priority=p) for p in (2, 0, 1)]
        for stream in streams:
            assert [o async for o in stream]
    order = [event.request_id async for event in events if event.kind == "SCHEDULED"]
    assert order == ["p0", "p1", "p2"]


async def test_an_idle_engine_takes_no_turns():
    async with make() as engine:
        await engine.complete(PROMPT, greedy())
        await idle(engine)
        await anyio.wait_all_tasks_blocked()
        steps = engine.stats().num_steps
        await anyio.wait_all_tasks_blocked()
        assert engine.stats().num_steps == steps
        assert "waits for" in engine.diagnose()


async def test_diagnose_names_what_each_actor_waits_for():
    async with make() as engine:
        engine.runner.gate.close()
        stream = engine.generate(PROMPT, greedy())
        await anyio.wait_all_tasks_blocked()
        lines = dict(line.split(":", 1) for line in engine.diagnose().splitlines())
        assert set(lines) == {"delivery", "runner", "kv_cache", "scheduler", "intake", "loop_watch"}
        assert "waits for outputs" in lines["delivery"]
        assert "plans 0/2" in lines["runner"]
        await stream.aclose()


async def test_a_runner_of_ones_own_needs_only_what_the_contract_names():
    class Echo:
        info = RunnerInfo(
            vocab_size=100, max_model_len=64, num_kv_blocks=32, eos_token_ids=(2,), capabilities=frozenset()
        )

        def submit(self, plan, grammar=None):
            async def step() -> ModelRunnerOutput:
                ids = [r for r, samples in zip(plan.req_ids, plan.samples, strict=True) if samples]
                return ModelRunnerOutput(step=plan.step, sampled_token_ids={r: [7] for r in ids})

            return step()

        async def aclose(self) -> None:
            pass

    async with Engine(runner=Echo()) as engine:
        assert (await engine.complete([1, 2], greedy(max_tokens=3))).outputs[0].token_ids == [7, 7, 7]


async def test_an_id_that_is_made_is_never_one_that_a_user_has_given():
    async with make() as engine:
        mine = engine.generate(PROMPT, greedy(), request_id="request-0")
        made = engine.generate(PROMPT, greedy())
        assert made.request_id not in ("", mine.request_id)
        assert [output async for output in made][-1].finished
