"""What a stream gives, and what becomes of a request whose reader is late, leaves, aborts or drops it."""

import asyncio
import gc
from collections.abc import Sequence

import anyio
import anyio.to_thread
import pytest
from anyio.lowlevel import checkpoint
from toy_engine import PROMPT, greedy, idle, make

from callboard import (
    Engine,
    RequestOutput,
    SamplingParams,
)
from callboard.runner.toy_model import toy_tokens


async def read_at_each_step(engine: Engine, params: SamplingParams) -> list[RequestOutput]:
    """A request's outputs where its reader is never a step behind."""
    engine.runner.gate.close()
    outputs: list[RequestOutput] = []
    stream = engine.generate(PROMPT, params)
    while not (outputs and outputs[-1].finished):
        engine.runner.gate.open(1 if params.output_kind != "final" else 8)
        outputs.append(await anext(stream))
    return outputs


async def test_a_stream_gives_the_tokens_of_the_model_one_step_at_a_time():
    async with make() as engine:
        outputs = await read_at_each_step(engine, greedy())
    assert [output.outputs[0].token_ids for output in outputs] == [[token] for token in toy_tokens(PROMPT, 8, 100)]
    assert [output.finished for output in outputs] == [False] * 7 + [True]
    assert outputs[-1].outputs[0].finish_reason == "length"
    assert (outputs[-1].usage.prompt_tokens, outputs[-1].usage.completion_tokens) == (5, 8)


async def test_a_reader_that_comes_late_finds_everything_in_one_output():
    async with make() as engine:
        stream = engine.generate(PROMPT, greedy())
        while engine.stats().num_finished == 0:
            await checkpoint()
        outputs = [output async for output in stream]
    assert len(outputs) == 1
    assert outputs[0].outputs[0].token_ids == toy_tokens(PROMPT, 8, 100)


@pytest.mark.parametrize(("kind", "lengths"), [("cumulative", range(1, 9)), ("final", [8])])
async def test_an_output_carries_all_so_far_or_comes_at_the_end_alone(kind: str, lengths: Sequence[int]):
    async with make() as engine:
        outputs = await read_at_each_step(engine, greedy(output_kind=kind))
    tokens = toy_tokens(PROMPT, 8, 100)
    assert [output.outputs[0].token_ids for output in outputs] == [tokens[:length] for length in lengths]


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
