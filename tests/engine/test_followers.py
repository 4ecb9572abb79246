"""Following an engine: lives of requests, cached blocks, steps; one end for each request, whatever happens."""

import re
from collections import Counter

import anyio
import pytest
from anyio.lowlevel import checkpoint
from toy_engine import greedy, make

from callboard import Engine, EngineConfig, EngineDeadError, Timings
from callboard.actors import LoopPort
from callboard.pipeline.followers import Followers
from callboard.runner import SimulatedRunner
from callboard.scheduler.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVEventBatch,
    KVEventsLost,
)
from callboard.scheduler.statistics import PrefillStats, PrefixCacheStats

PROMPT = list(range(1, 11))  # two full blocks of four, and two tokens


@pytest.mark.parametrize("turns", range(0, 60, 2))
async def test_the_end_of_a_request_is_told_once_whenever_the_engine_stops(turns: int):
    async with make(max_num_running_reqs=2) as engine:
        events = engine.events()
        streams = [engine.generate(PROMPT, greedy(max_tokens=2 + 3 * i), request_id=f"r{i}") for i in range(4)]
        await streams[3].aclose()  # it leaves on its own
        for _ in range(turns):
            await checkpoint()
        await engine.abort("r2")
    told = Counter([event.request_id async for event in events if event.kind == "FINISHED"])
    # Who was aborted before the scheduler heard of it may be told of or not, and never twice.
    assert told["r3"] <= 1
    assert {name: told[name] for name in ("r0", "r1", "r2")} == {"r0": 1, "r1": 1, "r2": 1}


async def test_a_preempted_request_is_queued_scheduled_preempted_scheduled_and_finished():
    async with make(num_kv_blocks=6) as engine:
        events = engine.events()
        streams = [engine.generate([*PROMPT[:6], i], greedy(max_tokens=12), request_id=f"r{i}") for i in (1, 2)]
        last = [[output async for output in stream][-1] for stream in streams]
    second = [event async for event in events if event.request_id == "r2"]
    kinds = " ".join(event.kind for event in second)
    assert re.fullmatch("QUEUED SCHEDULED( PREEMPTED SCHEDULED)+ FINISHED", kinds)
    assert [event.time for event in second] == sorted(event.time for event in second)
    assert (last[1].timings.queued, last[1].timings.scheduled) == (second[0].time, second[1].time)


async def test_cached_blocks_are_told_in_numbered_batches():
    async with make() as engine:
        news = engine.kv_events()
        await engine.complete(PROMPT, greedy(max_tokens=1))
        batch = await anext(news)
        assert await engine.reset_prefix_cache()
        cleared = await anext(news)
    (stored,) = batch.events
    assert isinstance(stored, BlockStored)
    assert (batch.number, stored.parent_block_hash, stored.token_ids) == (0, None, PROMPT[:8])
    assert (cleared.number, cleared.events) == (1, [AllBlocksCleared()])
    assert [one async for one in news] == []


async def test_a_follower_that_comes_back_gets_what_it_has_missed():
    async with make() as engine:
        first = engine.kv_events()
        for start in range(4):
            await engine.complete([start, *PROMPT], greedy(max_tokens=1))
        numbers = [(await anext(first)).number for _ in range(4)]
        again = engine.kv_events(replay_from=2)
        await engine.complete([9, *PROMPT], greedy(max_tokens=1))
        replayed = [(await anext(again)).number for _ in range(3)]
        live = await anext(engine.kv_events(replay_from=4))
    assert (numbers, replayed, live.number) == ([0, 1, 2, 3], [2, 3, 4], 4)


async def test_a_picture_made_of_events_is_the_cache_of_a_busy_engine():
    picture: set[bytes] = set()
    async with make(num_kv_blocks=16) as engine:
        news = engine.kv_events()
        async with anyio.create_task_group() as tasks:
            for start in range(12):
                tasks.start_soon(engine.complete, [start % 5, *PROMPT], greedy(max_tokens=9))
        await engine.reset_prefix_cache()
        await engine.complete(PROMPT, greedy(max_tokens=6))
        while engine.stats().kv_blocks_free < 16:
            await checkpoint()
        cached = engine.stats().kv_blocks_cached
    async for batch in news:
        assert isinstance(batch, KVEventBatch)
        for event in batch.events:
            match event:
                case BlockStored(block_hashes=keys):
                    picture |= set(keys)
                case BlockRemoved(block_hashes=keys):
                    picture -= set(keys)
                case AllBlocksCleared():
                    picture.clear()
    assert len(picture) == cached > 0


async def test_a_slow_follower_finds_the_numbers_of_what_it_lost_in_its_place():
    news: Followers[KVEventBatch | KVEventsLost] = Followers(
        LoopPort(), 3, lambda first, last: KVEventsLost(first=first.number, last=last.number)
    )
    follower = news.follow()
    batches = [KVEventBatch(number=number, step=number, time=0.0, events=[]) for number in range(9)]
    news.add([*batches[:7]])
    assert [await anext(follower), await anext(follower)] == [KVEventsLost(first=0, last=3), batches[4]]
    news.add([*batches[7:]])
    news.close()
    assert [one async for one in follower] == [KVEventsLost(first=5, last=5), *batches[6:]]
    assert follower.num_dropped == 5


async def test_what_comes_after_the_close_is_not_told():
    news: Followers[int] = Followers(LoopPort(), 3)
    follower = news.follow()
    news.add([1])
    news.close()
    news.add([2])
    assert [one async for one in follower] == [1]


async def test_a_step_is_told_with_what_it_meant_to_its_requests():
    async with make(steps_in_flight=1) as engine:
        steps, others = engine.step_stats(), engine.step_stats()
        output = await engine.complete(PROMPT, greedy(max_tokens=3))
        first, second, third = told = [await anext(steps) for _ in range(3)]
        assert [await anext(others) for _ in range(3)] == told
    assert first.scheduler.prefix == PrefixCacheStats(requests=1, queries=10)
    assert [one.scheduler.num_scheduled_tokens for one in (first, second, third)] == [10, 1, 1]
    assert [one.iteration.num_prompt_tokens for one in (first, second, third)] == [10, 0, 0]
    assert [len(one.iteration.times_to_first_token) for one in (first, second, third)] == [1, 0, 0]
    assert [len(one.iteration.inter_token_latencies) for one in (first, second, third)] == [0, 1, 1]
    (ended,) = third.iteration.finished
    assert (ended.finish_reason, ended.num_prompt_tokens, ended.num_tokens) == ("length", 10, 3)
    assert ended.timings == output.timings
    assert first.iteration.times_to_first_token == [output.timings.time_to_first_token]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_times_of_a_request_follow_each_other(anyio_backend: str):
    async with make() as engine:
        times = (await engine.complete(PROMPT, greedy(max_tokens=4))).timings
    order = [times.arrived, times.queued, times.scheduled, times.first_token, times.last_token, times.finished]
    assert None not in order
    assert order == sorted(order)


def test_spans_are_differences_and_missing_while_an_end_is():
    times = Timings(arrived=1.0, queued=2.0, scheduled=4.0, first_token=7.0, last_token=11.0, finished=12.0)
    assert (times.time_to_first_token, times.queue_time, times.prefill_time) == (6.0, 2.0, 3.0)
    assert (times.decode_time, times.inference_time, times.total_time) == (4.0, 7.0, 11.0)
    waiting = Timings(arrived=1.0, queued=2.0)
    spans = (waiting.queue_time, waiting.prefill_time, waiting.decode_time, waiting.inference_time, waiting.total_time)
    assert spans == (None,) * 5


async def test_an_output_tells_how_its_prompt_was_come_by():
    async with make() as engine:
        cold = await engine.complete(PROMPT, greedy(max_tokens=1))
        warm = await engine.complete(PROMPT, greedy(max_tokens=1))
        assert engine.stats().prefix_hit_rate == 8 / 20
    assert cold.prefill == PrefillStats(num_prompt_tokens=10, num_cached_tokens=0, num_cacheable_tokens=8)
    assert warm.prefill == PrefillStats(num_prompt_tokens=10, num_cached_tokens=8)


async def test_all_followers_get_the_cause_of_the_engines_end_after_what_came():
    faults = dict.fromkeys(range(8, 40), RuntimeError("burnt"))  # plans without tokens are numbered too
    runner = SimulatedRunner(vocab_size=100, num_kv_blocks=64, block_size=4, max_model_len=100, faults=faults)
    async with Engine(EngineConfig(block_size=4, steps_in_flight=1), runner=runner) as engine:
        steps, blocks = engine.step_stats(), engine.kv_events()
        with pytest.raises(EngineDeadError):
            await engine.complete(PROMPT, greedy(max_tokens=30))
        for follower in (steps, blocks):
            assert await anext(follower)
            with pytest.raises(EngineDeadError, match="burnt"):
                assert [one async for one in follower] == "never"
            assert [one async for one in follower] == []
