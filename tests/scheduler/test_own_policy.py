"""A policy of one's own: the example that shows how."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from callboard.scheduler import (
    KVCacheManager,
    ModelRunnerOutput,
    Request,
    SamplingParams,
    Scheduler,
    SchedulerConfig,
    plan_step,
)

EXAMPLE = Path(__file__).parents[2] / "examples" / "shortest_first.py"
LONG, SHORT, TICK = 400, 5, 0.1  # tokens, tokens, seconds


@pytest.fixture
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("shortest_first", EXAMPLE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def request(name: str, length: int, arrived: float) -> Request:
    params = SamplingParams(temperature=0, max_tokens=1)
    return Request(request_id=name, prompt_token_ids=[7] * length, sampling_params=params, arrival_time=arrived)


def admissions_under_steady_short_arrivals(policy: Any, ticks: int) -> list[str]:
    """One row; a short prompt arrives in each tick and takes one; a long one has waited from the start."""
    config = SchedulerConfig(max_num_running_reqs=1, policy=policy, enable_prefix_caching=False)
    scheduler, kv, admitted = Scheduler(config), KVCacheManager(100, 16, False), []
    scheduler.add_request(request("long", LONG, 0.0), 0.0)
    for tick in range(ticks):
        now = TICK * tick
        scheduler.add_request(request(f"short {tick}", SHORT, now), now)
        plan = plan_step(scheduler, kv, now=now)
        admitted += [new.req_id for new in plan.scheduled_new_reqs]
        scheduler.update_from_output(
            plan, ModelRunnerOutput(step=plan.step, sampled_token_ids={admitted[-1]: [9]}), now
        )
        scheduler.check()
        kv.check()
    return admitted


def test_the_shortest_prompt_goes_first(example: ModuleType):
    scheduler = Scheduler(SchedulerConfig(policy=example.ShortestFirst()))
    for name, length in (("d", 400), ("b", 30), ("c", 200), ("a", 5)):
        scheduler.add_request(request(name, length, 0.0))
    assert [state.request_id for state in scheduler.policy] == ["a", "b", "c", "d"]


def test_with_ageing_a_long_prompt_is_served_though_short_ones_keep_coming(example: ModuleType):
    served = admissions_under_steady_short_arrivals(example.ShortestFirst(), ticks=20)
    # It outranks whatever arrives once its wait outweighs the difference in length.
    assert served.index("long") == int((LONG - SHORT) / example.PATIENCE / TICK) + 1


def test_without_ageing_it_would_starve(example: ModuleType, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(example, "PATIENCE", 0.0)
    assert "long" not in admissions_under_steady_short_arrivals(example.ShortestFirst(), ticks=200)
