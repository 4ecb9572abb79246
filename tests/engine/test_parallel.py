"""Several completions of one prompt: one stream, one prompt's blocks, ends of their own."""

import gc
from typing import Any

import pytest
from anyio.lowlevel import checkpoint
from toy_engine import PROMPT, greedy, idle, make, until_dead

from callboard import (
    Engine,
    EngineConfig,
    EngineDeadError,
    EngineOverloadedError,
    InvalidRequestError,
    RequestOutput,
    SamplingParams,
)
from callboard.runner import SimulatedRunner
from callboard.runner.toy_model import toy_tokens
from callboard.scheduler import ModelRunnerOutput

LONG = list(range(1, 14))  # three full blocks of 4, and a token


class Counting(SimulatedRunner):
    """Gives the i-th completion that it meets the token 50 + i, and an end token after ``ends[i]`` of them."""

    ends = (2, 4, 90)

    def __init__(self, **sizes: Any) -> None:
        super().__init__(vocab_size=100, num_kv_blocks=64, block_size=4, eos_token_ids=(9,), **sizes)
        self.met: dict[str, int] = {}

    async def execute(self, plan, submitted) -> ModelRunnerOutput:
        await super().execute(plan, submitted)
        tokens: dict[str, list[int]] = {}
        for req_id, outputs, samples in zip(plan.req_ids, plan.num_outputs.tolist(), plan.samples, strict=True):
            index = self.met.setdefault(req_id, len(self.met))
            if samples:
                tokens[req_id] = [9 if outputs == self.ends[index] else 50 + index]
        return ModelRunnerOutput(step=plan.step, sampled_token_ids=tokens)


def by_index(outputs: list[RequestOutput]) -> list[list[int]]:
    """All tokens of each completion."""
    tokens: list[list[int]] = [[], [], []]
    for output in outputs:
        for completion in output.outputs:
            tokens[completion.index] += completion.token_ids
    return tokens


async def test_every_completion_gets_the_tokens_that_it_gets_alone():
    async with make() as engine:
        outputs = [output async for output in engine.generate(PROMPT, greedy(n=3))]
        assert by_index(outputs) == [toy_tokens(PROMPT, 8, 100)] * 3
        assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
        usage = outputs[-1].usage
        assert (usage.prompt_tokens, usage.completion_tokens) == (5, 24)
        await idle(engine)


async def test_completions_end_by_themselves_and_the_stream_with_the_last():
    async with Engine(EngineConfig(block_size=4), runner=Counting()) as engine:
        outputs = [output async for output in engine.generate(PROMPT, greedy(n=3))]
        assert by_index(outputs) == [[50, 50, 9], [51] * 4 + [9], [52] * 8]
        ends = [(c.index, c.finish_reason) for output in outputs for c in output.outputs if c.finish_reason]
        assert ends == [(0, "stop"), (1, "stop"), (2, "length")]
        assert outputs[-1].usage.completion_tokens == 3 + 5 + 8
        assert outputs[-1].timings.finished is not None
        assert outputs[0].timings.finished is None
        await idle(engine)


@pytest.mark.parametrize("kind", ["cumulative", "final"])
async def test_whole_outputs_hold_all_completions_in_order(kind: str):
    async with Engine(EngineConfig(block_size=4), runner=Counting()) as engine:
        outputs = [output async for output in engine.generate(PROMPT, greedy(n=3, output_kind=kind))]
        assert all([c.index for c in output.outputs] == [0, 1, 2] for output in outputs)
        assert [c.token_ids for c in outputs[-1].outputs] == [[50, 50, 9], [51] * 4 + [9], [52] * 8]
        assert [c.finish_reason for c in outputs[-1].outputs] == ["stop", "stop", "length"]
        assert kind == "cumulative" or len(outputs) == 1


async def test_complete_returns_all_completions():
    async with make() as engine:
        final = await engine.complete(PROMPT, greedy(n=2))
        assert [c.token_ids for c in final.outputs] == [toy_tokens(PROMPT, 8, 100)] * 2


async def test_full_blocks_of_the_prompt_are_computed_once_and_shared():
    async with make() as engine:
        engine.runner.gate.close()
        stream = engine.generate(LONG, greedy(n=3, max_tokens=1))
        while not engine.stats().num_running:
            await checkpoint()
        used = engine.stats()
        assert used.kv_blocks_total - used.kv_blocks_free == 3 + 3  # three shared, one of its own each
        engine.runner.gate.open()
        outputs = [output async for output in stream]
        assert (engine.stats().prefix_hits, engine.stats().prefix_queries) == (24, 39)
        assert outputs[-1].num_cached_tokens == 0
        await idle(engine)


async def test_without_a_prefix_cache_each_completion_computes_its_own():
    async with make(enable_prefix_caching=False) as engine:
        engine.runner.gate.close()
        stream = engine.generate(LONG, greedy(n=3))
        while not engine.stats().num_running:
            await checkpoint()
        used = engine.stats()
        assert used.kv_blocks_total - used.kv_blocks_free == 3 * 4
        engine.runner.gate.open()
        assert by_index([output async for output in stream]) == [toy_tokens(LONG, 8, 100)] * 3
        await idle(engine)


async def test_completions_beyond_the_rows_and_blocks_of_the_engine_take_turns():
    async with make(max_num_running_reqs=2, num_kv_blocks=9) as engine:
        outputs = [output async for output in engine.generate(LONG, greedy(n=3, max_tokens=12))]
        assert by_index(outputs) == [toy_tokens(LONG, 12, 100)] * 3
        await idle(engine)


@pytest.mark.parametrize("how", ["abort", "leave", "drop"])
async def test_all_completions_are_cancelled_together(how: str):
    async with make() as engine:
        stream = engine.generate(PROMPT, greedy(n=3, max_tokens=90), request_id="mine")
        await anext(stream)
        if how == "abort":
            await engine.abort("mine")
            last = [output async for output in stream][-1]
            assert last.finished
            assert [c.finish_reason for c in last.outputs] == ["abort"] * 3
        elif how == "leave":
            await stream.aclose()
        del stream
        gc.collect()
        await idle(engine)
        assert engine.stats().num_finished == 3


async def test_an_id_is_free_again_after_the_last_completion():
    async with make() as engine:
        stream = engine.generate(PROMPT, greedy(n=2), request_id="x")
        with pytest.raises(InvalidRequestError, match="'x' is in use"):
            engine.generate(PROMPT, greedy(), request_id="x")
        await stream.aclose()
        again = [output async for output in engine.generate(PROMPT, greedy(n=3), request_id="x")]
        assert by_index(again) == [toy_tokens(PROMPT, 8, 100)] * 3
        await idle(engine)


async def test_a_request_is_taken_with_all_its_completions_or_not_at_all():
    async with make(max_num_running_reqs=2, max_waiting=1) as engine:
        one = engine.generate(PROMPT, greedy())
        with pytest.raises(EngineOverloadedError, match="1 requests are unfinished and 3 more are asked for"):
            engine.generate(PROMPT, greedy(n=3))
        assert [output async for output in one][-1].finished
        await idle(engine)
        three = engine.generate(PROMPT, greedy(n=3))
        with pytest.raises(EngineOverloadedError, match="3 requests are unfinished, limit is 3"):
            engine.generate(PROMPT, greedy())
        with pytest.raises(InvalidRequestError, match="n is 4, limit is 3"):
            engine.generate(PROMPT, greedy(n=4))
        assert [output async for output in three][-1].finished
        await idle(engine)


async def test_the_engines_end_reaches_the_reader_once_and_after_what_came():
    async with make(faults={5: RuntimeError("gone")}) as engine:
        stream = engine.generate(PROMPT, greedy(n=3, max_tokens=50))
        await until_dead(engine)
        tokens = by_index([await anext(stream)])
        assert all(got == toy_tokens(PROMPT, len(got), 100) and len(got) >= 2 for got in tokens)
        with pytest.raises(EngineDeadError, match="gone"):
            await anext(stream)
        assert [output async for output in stream] == []


async def test_what_is_wrong_with_the_prompt_fails_all_completions_at_once():
    runner = SimulatedRunner(vocab_size=100, num_kv_blocks=4096, block_size=4, max_model_len=10_000)
    async with Engine(EngineConfig(block_size=4), runner=runner) as engine:
        stream = engine.generate([1] * 5_000 + [100], SamplingParams(n=3), request_id="bad")
        with pytest.raises(InvalidRequestError, match=r"prompt token id is 100, limits are 0 and 99 \(request bad\)"):
            await anext(stream)
        await idle(engine)
