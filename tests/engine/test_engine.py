"""The engine as its users meet it, on a simulated runner."""

import asyncio
import gc

import anyio
import anyio.to_thread
import numpy as np
import pytest
from anyio.lowlevel import checkpoint

from callboard import (
    ConfigError,
    Engine,
    EngineConfig,
    EngineDeadError,
    EngineOverloadedError,
    InvalidRequestError,
    NotBuiltError,
    SamplingParams,
)
from callboard.actors import WrongLoopError
from callboard.runner import RunnerInfo, SimulatedRunner
from callboard.runner.toy_model import toy_tokens
from callboard.scheduler import ModelRunnerOutput

PROMPT = [1, 2, 3, 4, 5]


def make(*, faults: dict[int, Exception] | None = None, **config) -> Engine:
    runner = SimulatedRunner(vocab_size=100, num_kv_blocks=64, block_size=4, max_model_len=100, faults=faults)
    return Engine(EngineConfig(block_size=4, **config), runner=runner)


def greedy(**params) -> SamplingParams:
    return SamplingParams(temperature=0, **{"max_tokens": 8} | params)


async def idle(engine: Engine) -> None:
    """Wait until the engine holds nothing; fails if it keeps something."""
    for _ in range(200):
        stats = engine.stats()
        if stats.kv_blocks_free == stats.kv_blocks_total and not stats.num_running and not stats.num_waiting:
            engine.check()
            return
        await checkpoint()
    raise AssertionError(f"{engine.stats()}\n{engine.diagnose()}")


async def test_a_stream_gives_the_tokens_of_the_model_one_step_at_a_time():
    async with make() as engine:
        outputs = [output async for output in engine.generate(PROMPT, greedy())]
    assert [t for output in outputs for t in output.outputs[0].token_ids] == toy_tokens(PROMPT, 8, 100)
    assert [output.finished for output in outputs][-1] is True
    assert outputs[-1].outputs[0].finish_reason == "length"
    assert (outputs[-1].usage.prompt_tokens, outputs[-1].usage.completion_tokens) == (5, 8)


@pytest.mark.parametrize("depth", [1, 2, 3])
async def test_any_number_of_steps_in_flight_gives_the_same_tokens(depth: int):
    async with make(steps_in_flight=depth) as engine:
        final = await engine.complete(PROMPT, greedy(max_tokens=50))
        assert final.outputs[0].token_ids == toy_tokens(PROMPT, 50, 100)
        assert engine.stats().num_steps <= 50 + 2  # known ends are not planned past


async def test_a_reader_that_comes_late_finds_everything_in_one_output():
    async with make() as engine:
        stream = engine.generate(PROMPT, greedy())
        while engine.stats().num_finished == 0:
            await checkpoint()
        outputs = [output async for output in stream]
    assert len(outputs) == 1
    assert outputs[0].outputs[0].token_ids == toy_tokens(PROMPT, 8, 100)


@pytest.mark.parametrize("kind", ["cumulative", "final"])
async def test_output_kinds_end_with_the_whole_completion(kind: str):
    async with make() as engine:
        outputs = [output async for output in engine.generate(PROMPT, greedy(output_kind=kind))]
    assert outputs[-1].outputs[0].token_ids == toy_tokens(PROMPT, 8, 100)
    assert kind != "final" or len(outputs) == 1


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_reads_that_time_out_the_asyncio_way_lose_no_token(anyio_backend: str):
    async with make() as engine:
        stream, tokens, ended = engine.generate(PROMPT, greedy(max_tokens=60)), [], False
        while not ended:
            try:
                async with asyncio.timeout(0):
                    output = await anext(stream)
            except TimeoutError:
                await checkpoint()
                continue
            tokens += output.outputs[0].token_ids
            ended = output.finished
    assert tokens == toy_tokens(PROMPT, 60, 100)


async def test_leaving_the_stream_aborts_its_request_and_gives_everything_back():
    async with make() as engine:
        async with engine.generate(PROMPT, greedy(max_tokens=90)) as stream:
            await anext(stream)
        await idle(engine)


async def test_dropping_the_stream_aborts_its_request():
    async with make() as engine:
        stream = engine.generate(PROMPT, greedy(max_tokens=90))
        await anext(stream)
        del stream
        gc.collect()
        await idle(engine)


async def test_cancelling_complete_aborts_its_request():
    async with make() as engine:
        engine.runner.gate.close()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engine.complete, PROMPT, greedy())
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        engine.runner.gate.open()
        await idle(engine)


async def test_abort_ends_the_stream_with_its_reason_and_later_aborts_change_nothing():
    async with make() as engine:
        stream = engine.generate(PROMPT, greedy(max_tokens=90), request_id="mine")
        await anext(stream)
        await engine.abort("mine")
        await engine.abort("mine")
        await engine.abort("nobody")
        outputs = [output async for output in stream]
        assert [output.outputs[0].finish_reason for output in outputs] == ["abort"]
        await idle(engine)


async def test_an_abort_right_after_the_submission_leaves_nothing_behind():
    async with make() as engine:
        stream = engine.generate(PROMPT, greedy(max_tokens=90), request_id="mine")
        await engine.abort("mine")
        assert [output.outputs[0].finish_reason async for output in stream] == ["abort"]
        await idle(engine)
        assert engine.stats().num_generated_tokens == 0


async def test_one_cause_reaches_all_waiters_when_the_runner_fails_and_later_requests_are_refused():
    fault = RuntimeError("the device is gone")
    async with make(faults={5: fault}, max_num_running_reqs=5) as engine:
        streams = [engine.generate([n, *PROMPT], greedy(max_tokens=50)) for n in range(10)]
        for stream in streams:
            with pytest.raises(EngineDeadError, match="the device is gone") as caught:
                async for _ in stream:
                    pass
            assert caught.value.__cause__ is fault
        with pytest.raises(EngineDeadError, match="the device is gone"):
            engine.generate(PROMPT)
        assert any("runner" in note for note in fault.__notes__)


async def test_streams_end_when_the_engine_stops_even_if_a_step_never_ends():
    async with make() as engine:
        engine.runner.gate.close()
        streams = [engine.generate([n, *PROMPT], greedy()) for n in range(3)]
        await anyio.wait_all_tasks_blocked()
    for stream in streams:
        assert [output.outputs[0].finish_reason async for output in stream] == ["abort"]
    with pytest.raises(EngineDeadError, match="stopped"):
        engine.generate(PROMPT)


async def test_an_error_in_the_host_leaves_the_engine_unwrapped():
    async def host() -> None:
        async with make() as engine:
            engine.generate(PROMPT, greedy())
            raise LookupError("of the host")

    with pytest.raises(LookupError, match="of the host"):
        await host()


async def test_an_engine_serves_one_context_and_is_dead_outside_of_it():
    engine = make()
    with pytest.raises(EngineDeadError, match="not started"):
        engine.generate(PROMPT)
    async with engine:
        with pytest.raises(ConfigError, match="entered already"):
            await engine.__aenter__()
    with pytest.raises(ConfigError, match="entered already"):
        await engine.__aenter__()


async def test_two_engines_in_one_loop_do_not_know_of_each_other():
    async with make() as one, make() as other:
        a, b = one.generate(PROMPT, greedy(), request_id="x"), other.generate([9, 9], greedy(), request_id="x")
        assert [t async for o in a for t in o.outputs[0].token_ids] == toy_tokens(PROMPT, 8, 100)
        assert [t async for o in b for t in o.outputs[0].token_ids] == toy_tokens([9, 9], 8, 100)


BAD_REQUESTS = [
    ([], {}, "prompt has no tokens"),
    (list(range(1, 101)), {}, "prompt has 100 tokens, limit is 99"),
    ([1, 100], {}, "prompt token id is 100, limits are 0 and 99"),
    ([-1, 5], {}, "prompt token id is -1, limits are 0 and 99"),
    ("text", {}, "no tokenizer"),
    (None, {}, "prompt is NoneType"),
    ([1, 1.5], {}, r"prompt\[1\] is 1.5, needed is a token id"),
    (b"hello", {}, "prompt is bytes"),
    ([True], {}, r"prompt\[0\] is True"),
    ([1], {"stop_token_ids": [100]}, "stop_token_ids is 100, limits are 0 and 99"),
    ([1], {"stop": ["x"]}, "stop strings need a tokenizer"),
]


@pytest.mark.parametrize(("prompt", "params", "message"), BAD_REQUESTS, ids=lambda value: str(value)[:30])
async def test_a_request_that_can_never_be_served_is_refused_and_the_others_go_on(prompt, params: dict, message: str):
    async with make() as engine:
        good = engine.generate(PROMPT, greedy())
        with pytest.raises(InvalidRequestError, match=message) as caught:
            await anext(engine.generate(prompt, greedy(**params), request_id="bad"))
        assert "bad" in str(caught.value)
        assert [t async for o in good for t in o.outputs[0].token_ids] == toy_tokens(PROMPT, 8, 100)
        await idle(engine)


BAD_PARAMS = [
    {"temperature": -0.1},
    {"temperature": float("nan")},
    {"top_p": 0.0},
    {"top_p": 1.1},
    {"top_k": -2},
    {"max_tokens": 0},
    {"max_tokens": -1},
    {"max_tokens": 1.5},
    {"min_tokens": 9, "max_tokens": 8},
    {"stop": [""]},
    {"stop_token_ids": [-1]},
    {"output_kind": "words"},
    {"n": 0},
    {"ignore_eos": "yes"},
    {"stop_token_ids": 5},
]


@pytest.mark.parametrize("params", BAD_PARAMS, ids=str)
def test_parameters_out_of_their_range_are_refused_by_name(params: dict):
    with pytest.raises(InvalidRequestError, match=next(iter(params))):
        SamplingParams(**params)


async def test_what_is_not_built_is_refused_by_name_and_not_ignored():
    async with make() as engine:
        for params in ({"logprobs": 1}, {"presence_penalty": 0.5}, {"bad_words": ["x"]}):
            with pytest.raises(NotBuiltError, match=next(iter(params))):
                engine.generate(PROMPT, SamplingParams(**params))
    with pytest.raises(ConfigError, match="kv_connector"):
        EngineConfig(kv_connector="redis")


async def test_an_id_that_is_in_use_is_refused_and_free_again_after_the_end():
    async with make() as engine:
        first = engine.generate(PROMPT, greedy(), request_id="x")
        with pytest.raises(InvalidRequestError, match="'x' is in use"):
            engine.generate(PROMPT, greedy(), request_id="x")
        assert [o async for o in first]
        assert (await engine.complete(PROMPT, greedy(), request_id="x")).finished


async def test_requests_beyond_the_waiting_room_are_refused_with_both_numbers():
    async with make(max_num_running_reqs=2, max_waiting=3) as engine:
        streams = [engine.generate([n, *PROMPT], greedy()) for n in range(5)]
        with pytest.raises(EngineOverloadedError, match="5 requests are unfinished, limit is 5"):
            engine.generate(PROMPT, greedy())
        for stream in streams:
            assert [o async for o in stream][-1].finished
        assert (await engine.complete(PROMPT, greedy())).finished


def test_an_unknown_setting_is_refused_with_the_nearest_known_one():
    with pytest.raises(ConfigError, match="unknown setting 'max_model_length', did you mean 'max_model_len'"):
        EngineConfig(max_model_length=5)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"max_model_len": 200}, "max_model_len is 200, the runner's limit is 100"),
        ({"num_kv_blocks": 65}, "num_kv_blocks is 65, the runner's limit is 64"),
        ({"block_size": 8}, "block_size is 8, the runner's is 4"),
    ],
    ids=str,
)
async def test_settings_beyond_the_runners_limits_are_refused_at_the_start(config: dict, message: str):
    runner = SimulatedRunner(num_kv_blocks=64, block_size=4, max_model_len=100)
    with pytest.raises(ConfigError, match=message):
        async with Engine(EngineConfig(**{"block_size": 4} | config), runner=runner):
            raise AssertionError("the engine started")


async def test_events_tell_the_life_of_a_request_in_order():
    async with make() as engine:
        events = engine.events()
        await engine.complete(PROMPT, greedy(), request_id="x")
        await idle(engine)
    seen = [(event.kind, event.request_id) async for event in events]
    assert seen == [("QUEUED", "x"), ("SCHEDULED", "x"), ("FINISHED", "x")]


async def test_a_second_request_with_the_same_prompt_reports_its_cached_tokens():
    async with make() as engine:
        prompt = list(range(1, 14))
        cold, warm = [await engine.complete(prompt, greedy()) for _ in range(2)]
        assert (cold.num_cached_tokens, warm.num_cached_tokens) == (0, 12)
        assert cold.outputs[0].token_ids == warm.outputs[0].token_ids
        salted = await engine.generate(prompt, greedy(output_kind="final"), cache_salt="mine").__anext__()
        assert salted.num_cached_tokens == 0
        assert await engine.reset_prefix_cache()
        assert engine.stats().kv_blocks_cached == 0


async def test_priority_decides_who_is_admitted_first():
    async with make(policy="priority", max_num_running_reqs=1) as engine:
        events = engine.events()
        streams = [engine.generate([p, *PROMPT], greedy(), request_id=f"p{p}", priority=p) for p in (2, 0, 1)]
        for stream in streams:
            assert [o async for o in stream]
    order = [event.request_id async for event in events if event.kind == "SCHEDULED"]
    assert order == ["p0", "p1", "p2"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_use_from_another_loop_or_thread_is_refused(anyio_backend: str):
    async with make() as engine:

        def elsewhere() -> None:
            async def use() -> None:
                engine.generate(PROMPT, greedy())

            asyncio.run(use())

        with pytest.raises(WrongLoopError):
            await anyio.to_thread.run_sync(elsewhere)


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


async def test_an_id_that_is_used_again_right_after_its_abort_never_gets_the_old_tokens():
    async with make(steps_in_flight=3, max_num_running_reqs=2) as engine:
        for turns in range(60):
            engine.generate([1, 2, 3], greedy(max_tokens=50), request_id="a")
            for _ in range(turns % 7):
                await checkpoint()
            await engine.abort("a")
            again = engine.generate([4, 5, 6], greedy(max_tokens=4), request_id="a")
            tokens = [token async for output in again for token in output.outputs[0].token_ids]
            assert tokens == toy_tokens([4, 5, 6], 4, 100)
        await idle(engine)


async def test_submitting_and_aborting_in_a_storm_overloads_but_never_ends_the_engine():
    async with make(max_num_running_reqs=2, max_waiting=0) as engine:
        refused = 0
        for number in range(500):
            try:
                stream = engine.generate([number % 100, *PROMPT], greedy())
            except EngineOverloadedError:
                refused += 1
                await checkpoint()
                continue
            if number % 3:
                await engine.abort(stream.request_id)
            else:
                assert [output async for output in stream][-1].finished
        assert refused
        await idle(engine)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_stream_that_is_dropped_in_a_callback_of_the_loop_aborts_its_request(anyio_backend: str):
    async with make() as engine:
        held = [engine.generate(PROMPT, greedy(max_tokens=90))]
        asyncio.get_running_loop().call_soon(held.clear)
        await idle(engine)


async def test_a_stream_that_is_dropped_in_a_thread_aborts_its_request():
    async with make() as engine:
        held = [engine.generate(PROMPT, greedy(max_tokens=90))]
        await anyio.to_thread.run_sync(held.clear)
        await idle(engine)


async def test_tokens_that_came_before_the_engines_end_are_read_before_its_error():
    async with make(faults={5: RuntimeError("gone")}) as engine:
        stream = engine.generate(PROMPT, greedy(max_tokens=50))
        while not engine._cause:
            await checkpoint()
        tokens = (await anext(stream)).outputs[0].token_ids
        assert len(tokens) >= 3
        assert tokens == toy_tokens(PROMPT, len(tokens), 100)
        with pytest.raises(EngineDeadError, match="gone"):
            await anext(stream)


async def test_followers_of_events_get_the_cause_of_the_engines_end():
    async with make(faults={3: RuntimeError("gone")}) as engine:
        events = engine.events()
        with pytest.raises(EngineDeadError):
            await engine.complete(PROMPT, greedy())
        kinds = [(await anext(events)).kind for _ in range(2)]
        assert kinds == ["QUEUED", "SCHEDULED"]
        with pytest.raises(EngineDeadError, match="gone"):
            await anext(events)


async def test_what_a_reader_writes_to_its_output_changes_nothing_in_the_engine():
    async with make(num_kv_blocks=12, max_num_running_reqs=3) as engine:
        prompts = [[n, *PROMPT] for n in range(3)]
        streams = [engine.generate(prompt, greedy(max_tokens=12)) for prompt in prompts]
        got: list[list[int]] = [[], [], []]
        for stream, tokens in zip(streams, got, strict=True):
            async for output in stream:
                tokens.extend(output.outputs[0].token_ids)
                output.prompt_token_ids[:] = [99] * 6
        assert got == [toy_tokens(prompt, 12, 100) for prompt in prompts]


async def test_resetting_the_prefix_cache_waits_for_steps_under_way_but_not_for_requests():
    async with make() as engine:
        await engine.complete(list(range(1, 30)), greedy())
        assert await engine.reset_prefix_cache()
        stream = engine.generate(PROMPT, greedy(max_tokens=90))
        assert not await engine.reset_prefix_cache()
        await stream.aclose()
        assert await engine.reset_prefix_cache()


async def test_a_start_that_fails_closes_the_runner():
    class Started(SimulatedRunner):
        closed = 0

        async def start(self) -> None:
            raise OSError("no such device")

        async def aclose(self) -> None:
            self.closed += 1

    runner = Started(num_kv_blocks=64)
    with pytest.raises(OSError, match="no such device"):
        async with Engine(runner=runner):
            raise AssertionError("the engine started")
    assert runner.closed == 1


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"token_ids": [100]}, r"tokens from 100 to 100 in step \d, limits are 0 and 99"),
        ({"token_ids": [1, 2]}, r"gave 2 tokens in step \d, 1 requests sample"),
        ({"token_ids": [1.5]}, "1-dimensional float64 array"),
        ({"sampled_token_ids": {"nobody": [7]}}, r"tokens for \['nobody'\]"),
        ({}, r"gave no token in step \d"),
        ({"sampled_token_ids": {"request-0": [-1]}}, "tokens from -1 to -1"),
        ({"step": 7, "token_ids": [1]}, r"the result of step 7 for step \d"),
    ],
    ids=str,
)
async def test_a_runner_that_gives_what_cannot_be_right_ends_the_engine_by_name(result: dict, message: str):
    class Wrong(SimulatedRunner):
        async def execute(self, plan, submitted):
            fields = {"step": plan.step} | result
            if "token_ids" in fields:
                fields["token_ids"] = np.array(fields["token_ids"])
            return ModelRunnerOutput(**fields)

    async with Engine(runner=Wrong(vocab_size=100)) as engine:
        with pytest.raises(EngineDeadError, match=message):
            await engine.complete(PROMPT, greedy())


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


@pytest.mark.parametrize("turns", range(30))
async def test_stopping_at_any_moment_is_no_death_of_the_engine(turns: int):
    async with make() as engine:
        events = engine.events()
        engine.generate(PROMPT, greedy(), request_id="r")
        stream = engine.generate(PROMPT, greedy(), request_id="s")
        for _ in range(turns):
            await checkpoint()
    assert "FINISHED" in [event.kind async for event in events]
    assert [output async for output in stream][-1].finished
    with pytest.raises(EngineDeadError, match="has stopped"):
        engine.generate(PROMPT)


async def test_an_id_that_is_made_is_never_one_that_a_user_has_given():
    async with make() as engine:
        mine = engine.generate(PROMPT, greedy(), request_id="request-0")
        made = engine.generate(PROMPT, greedy())
        assert made.request_id not in ("", mine.request_id)
        assert [output async for output in made][-1].finished


async def test_resetting_the_prefix_cache_is_answered_under_traffic():
    async with make() as engine:
        engine.runner.gate.close()
        await engine.generate(PROMPT, greedy(), request_id="gone").aclose()
        answers: list[bool] = []

        async def reset() -> None:
            answers.append(await engine.reset_prefix_cache())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reset)
            stream = engine.generate(PROMPT, greedy())
            engine.runner.gate.open()
            assert [output async for output in stream][-1].finished
        assert answers in ([True], [False])
