"""The host's loop and its garbage collector: what the engine measures, and what it leaves alone."""

import gc
import time
from collections.abc import Iterator

import anyio
import pytest
import trio.testing
from anyio.lowlevel import checkpoint

from callboard import ConfigError, Engine, EngineConfig, SamplingParams
from callboard.pipeline.stream import StreamState
from callboard.runner import Latency, SimulatedRunner
from callboard.scheduler import Finished, FinishReason

PROMPT = [1, 2, 3, 4, 5]
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    """Each test begins and ends with nothing frozen."""
    gc.unfreeze()
    yield
    assert gc.isenabled()
    gc.unfreeze()


def make(latency: Latency | None = None, **config: object) -> Engine:
    return Engine(EngineConfig(**config), runner=SimulatedRunner(latency=latency))


async def test_stats_tell_how_late_the_loop_was_while_requests_were_served():
    async with make(Latency(fixed=0.02)) as engine:
        assert engine.stats().loop_lag_max == 0.0
        stream = engine.generate(PROMPT, GREEDY)
        await anext(stream)
        while not engine.stats().loop_lag_max:
            time.sleep(0.03)  # noqa: ASYNC251 - the host's fault that is to be seen
            await checkpoint()
        stats = engine.stats()
    assert 0.0 < stats.loop_lag_median <= stats.loop_lag_p99 <= stats.loop_lag_max


@pytest.mark.parametrize(
    "anyio_backend", [("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)})], ids=["virtual"]
)
async def test_an_idle_engine_sets_no_timer():
    async with make(Latency(fixed=1.0)) as engine:
        await engine.complete(PROMPT, GREEDY)
        await anyio.sleep(1.0)
        waits = {line.partition(":")[0]: line for line in engine.diagnose().splitlines()}
        assert "waits for mailbox" in waits["loop_watch"]


async def test_by_default_the_collector_is_left_alone():
    before = gc.get_threshold()
    async with make() as engine:
        await engine.complete(PROMPT, GREEDY)
        assert (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()) == (True, before, 0)


async def test_what_was_there_at_the_start_is_frozen_on_demand_until_the_engine_stops():
    async with make(freeze_gc=True) as engine:
        assert gc.get_freeze_count() > 0
        assert gc.isenabled()
        await engine.complete(PROMPT, GREEDY)
    assert gc.get_freeze_count() == 0


async def test_what_the_host_has_frozen_itself_stays_frozen():
    gc.freeze()
    async with make(freeze_gc=True):
        await checkpoint()
    assert gc.get_freeze_count() > 0


async def test_garbage_of_a_request_is_collected_beside_a_frozen_start():
    async with make(freeze_gc=True) as engine:
        await engine.complete(PROMPT, GREEDY)
        gc.collect()
        before = len(gc.get_objects())
        for _ in range(20):
            await engine.complete(PROMPT, GREEDY)
        gc.collect()
        assert len(gc.get_objects()) < before + 200  # ten a request would stay otherwise


async def test_a_token_leaves_nothing_behind_for_the_collector():
    """The collector's work does not grow with the length of the streams: a token is a number in a list."""
    params, counts = SamplingParams(temperature=0, max_tokens=600, ignore_eos=True), list[int]()
    async with make() as engine, engine.generate(PROMPT, params) as stream:
        async for output in stream:
            if output.usage.completion_tokens > (100, 500, 601)[len(counts)]:
                gc.collect()
                counts.append(len(gc.get_objects()))
    early, late = counts
    assert late - early < 50


@pytest.mark.parametrize(("kind", "woken"), [("delta", True), ("cumulative", True), ("final", False)])
def test_a_reader_of_the_whole_is_woken_at_the_end_alone(kind: str, woken: bool):
    state = StreamState("a", SamplingParams(output_kind=kind), None, 0.0)
    state.push(7, 1.0)
    assert state.news.is_set is woken
    state.finish(Finished(reason=FinishReason.LENGTH), 2.0)
    assert state.news.is_set
    output = state.take()
    assert output is not None
    assert (output.finished, output.outputs[0].token_ids, output.usage.completion_tokens) == (True, [7], 1)


def test_the_option_is_true_or_false():
    with pytest.raises(ConfigError, match="freeze_gc is 1, needed is True or False"):
        EngineConfig(freeze_gc=1)
