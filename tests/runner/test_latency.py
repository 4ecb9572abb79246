"""Simulated time: what a step takes, and that a virtual clock lets it pass at once."""

import math

import anyio
import pytest
import trio.testing
from anyio.lowlevel import checkpoint

from callboard import ConfigError, Engine, EngineConfig, SamplingParams
from callboard.runner import H200_8B, TWO_CORES_135M, Latency, SimulatedRunner

PROMPT = list(range(10))
VIRTUAL = [("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)})]
GREEDY = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)


def test_a_step_takes_a_fixed_part_and_parts_for_its_tokens_and_requests():
    latency = Latency(fixed=1.0, per_token=0.1, per_request=10.0, hidden_tokens=4)
    assert latency.of_counts(10, 2) == pytest.approx(1.0 + 0.1 * 6 + 20.0)
    assert latency.of_counts(3, 3) == pytest.approx(31.0)
    assert latency.of_counts(0, 0) == 0.0


@pytest.mark.parametrize("wrong", [{"fixed": -1.0}, {"per_token": math.inf}, {"per_request": math.nan}], ids=str)
def test_a_latency_that_cannot_be_is_refused_by_name(wrong: dict[str, float]):
    ((name, value),) = wrong.items()
    with pytest.raises(ConfigError, match=f"^{name} is {value}, needed is a finite number of seconds"):
        Latency(**wrong)


@pytest.mark.parametrize(
    ("latency", "requests", "low", "high"),
    [
        (H200_8B, 1, 200, 260),
        (H200_8B, 256, 14_000, 20_000),
        (TWO_CORES_135M, 1, 30, 40),
        (TWO_CORES_135M, 32, 290, 320),
    ],
)
def test_presets_decode_at_the_rates_that_their_comments_derive(latency: Latency, requests: int, low: int, high: int):
    assert low < requests / latency.of_counts(requests, requests) < high


def virtual_clock() -> tuple[str, dict[str, object]]:
    return ("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)})


async def elapsed(steps_in_flight: int, latency: Latency) -> tuple[float, SimulatedRunner]:
    """Seconds on the loop's clock that one request of 5 tokens takes."""
    runner = SimulatedRunner(latency=latency)
    async with Engine(EngineConfig(steps_in_flight=steps_in_flight), runner=runner) as engine:
        began = anyio.current_time()
        await engine.complete(PROMPT, GREEDY)
        return anyio.current_time() - began, runner


@pytest.mark.parametrize("steps_in_flight", [1, 2, 4])
def test_on_a_virtual_clock_hours_of_steps_pass_at_once_and_count_exactly(steps_in_flight: int):
    backend, options = virtual_clock()
    took, runner = anyio.run(
        elapsed, steps_in_flight, Latency(fixed=3600.0, per_token=60.0), backend=backend, backend_options=options
    )
    assert took == pytest.approx(5 * 3600.0 + 14 * 60.0)
    assert (runner.busy_seconds, runner.idle_seconds) == (pytest.approx(took), pytest.approx(0.0))


@pytest.mark.parametrize("anyio_backend", VIRTUAL, ids=["virtual"])
async def test_time_between_two_steps_is_counted_as_idle_time_of_the_device():
    runner = SimulatedRunner(latency=Latency(fixed=2.0))
    async with Engine(runner=runner) as engine:
        await engine.complete(PROMPT, SamplingParams(temperature=0, max_tokens=1))
        await anyio.sleep(7.0)
        await engine.complete(PROMPT, SamplingParams(temperature=0, max_tokens=1))
        await checkpoint()
    assert (runner.busy_seconds, runner.idle_seconds) == (pytest.approx(4.0), pytest.approx(7.0))


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("anyio_backend", VIRTUAL, ids=["virtual"])
async def test_at_no_depth_a_token_is_computed_past_a_known_end(depth: int):
    wanted = [1, 2, 3, 7, 12]
    config = EngineConfig(steps_in_flight=depth, enable_prefix_caching=False)
    async with Engine(config, runner=SimulatedRunner(latency=Latency(fixed=1.0))) as engine:
        steps = engine.step_stats()
        async with anyio.create_task_group() as requests:
            for count in wanted:
                params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
                requests.start_soon(engine.complete, PROMPT, params)
        await anyio.sleep(10.0)  # any step that was planned in vain has ended too
    told = [step.scheduler async for step in steps]
    assert sum(step.num_scheduled_tokens for step in told) == sum(len(PROMPT) + count - 1 for count in wanted)
    assert sum(step.num_new_tokens for step in told) == sum(wanted)
    assert max(wanted) == len([step for step in told if step.num_scheduled_tokens])
