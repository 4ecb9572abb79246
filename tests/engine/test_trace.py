"""A trace shows every actor's turns, how full lanes are, and the runner's steps."""

import itertools
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import anyio
import msgspec
import pytest
import trio.testing
from anyio.lowlevel import checkpoint

from callboard import ConfigError, Engine, EngineConfig, SamplingParams
from callboard.pipeline.trace import TraceLog
from callboard.runner import Latency, SimulatedRunner

PROMPT = list(range(10))
ACTORS = {"delivery", "runner", "kv_cache", "scheduler", "intake"}
Event = dict[str, Any]


def make(steps_in_flight: int = 2) -> Engine:
    return Engine(EngineConfig(steps_in_flight=steps_in_flight), runner=SimulatedRunner(latency=Latency(fixed=0.001)))


async def five_tokens(engine: Engine) -> None:
    await engine.complete(PROMPT, SamplingParams(temperature=0, max_tokens=5, ignore_eos=True))


async def traced(path: Path, steps_in_flight: int = 2) -> list[Event]:
    async with make(steps_in_flight) as engine, engine.trace(path):
        await five_tokens(engine)
    return events_of(path)


def events_of(path: Path) -> list[Event]:
    return msgspec.json.decode(path.read_bytes())["traceEvents"]


def by_track(events: list[Event]) -> dict[str, list[Event]]:
    names = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M" and event["tid"]}
    tracks: dict[str, list[Event]] = {name: [] for name in names.values()}
    for event in events:
        if event["ph"] == "X":
            tracks[names[event["tid"]]].append(event)
    return tracks


def peaks(events: list[Event]) -> dict[str, int]:
    most: dict[str, int] = defaultdict(int)
    for event in events:
        if event["ph"] == "C":
            most[event["name"]] = max(most[event["name"]], event["args"]["places"])
    return most


async def test_every_actor_and_the_device_have_a_track_with_something_on_it(tmp_path: Path):
    tracks = by_track(await traced(tmp_path / "trace.json"))
    assert set(tracks) == ACTORS | {"device", "loop_watch"}
    assert all(tracks[name] for name in ACTORS | {"device"})


async def test_what_stands_on_one_track_never_overlaps(tmp_path: Path):
    for track, slices in by_track(await traced(tmp_path / "trace.json")).items():
        ordered = sorted(slices, key=lambda event: event["ts"])
        for before, after in itertools.pairwise(ordered):
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-3, track


async def test_each_step_stands_on_the_device_with_its_requests_and_tokens(tmp_path: Path):
    steps = [step for step in by_track(await traced(tmp_path / "trace.json"))["device"] if step["args"]["tokens"]]
    assert [step["args"] for step in steps] == [{"requests": 1, "tokens": tokens} for tokens in (10, 1, 1, 1, 1)]
    numbers = [int(step["name"].removeprefix("step ")) for step in steps]
    assert numbers == list(range(numbers[0], numbers[0] + 5))


@pytest.mark.parametrize(
    "anyio_backend", [("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)})], ids=["virtual"]
)
async def test_on_a_virtual_clock_steps_take_the_time_they_are_said_to_and_follow_each_other(tmp_path: Path):
    steps = [step for step in by_track(await traced(tmp_path / "trace.json"))["device"] if step["args"]["tokens"]]
    assert [step["dur"] for step in steps] == pytest.approx([1000.0] * 5)
    assert [after["ts"] - before["ts"] for before, after in itertools.pairwise(steps)] == pytest.approx([1000.0] * 4)


@pytest.mark.parametrize("depth", [1, 2, 3])
async def test_the_runners_lane_is_as_full_as_there_are_steps_in_flight(tmp_path: Path, depth: int):
    assert peaks(await traced(tmp_path / "trace.json", depth))["runner plans"] == depth


async def test_an_engine_is_traced_once_at_a_time_and_as_often_as_one_likes(tmp_path: Path):
    async with make() as engine:
        async with engine.trace(tmp_path / "first.json"):
            with pytest.raises(ConfigError, match="one trace at a time"):
                await engine.trace(tmp_path / "second.json").__aenter__()
        async with engine.trace(tmp_path / "second.json"):
            await five_tokens(engine)
    first, second = (by_track(events_of(tmp_path / name)) for name in ("first.json", "second.json"))
    assert not first["device"]
    assert second["device"]


async def test_nobody_is_told_of_anything_after_the_trace(tmp_path: Path):
    async with make() as engine:
        async with engine.trace(tmp_path / "trace.json") as trace:
            await five_tokens(engine)
        assert trace.log is not None
        before = len(trace.log.events())
        await five_tokens(engine)
        assert len(trace.log.events()) == before


async def test_a_path_that_cannot_be_written_is_told_before_anything_is_traced(tmp_path: Path):
    async with make() as engine:
        with pytest.raises(FileNotFoundError):
            await engine.trace(tmp_path / "missing" / "trace.json").__aenter__()
        async with engine.trace(tmp_path / "trace.json"):
            await checkpoint()


async def test_a_cancelled_block_still_writes_its_trace(tmp_path: Path):
    path = tmp_path / "trace.json"
    async with make() as engine:
        with anyio.CancelScope() as scope:
            async with engine.trace(path):
                await five_tokens(engine)
                scope.cancel()
                await checkpoint()
    assert by_track(events_of(path))["device"]


def test_entries_beyond_the_limit_are_counted_and_not_kept():
    ticks = itertools.count()
    log = TraceLog([], lambda: float(next(ticks)), limit=3)
    for number in range(5):
        log.worked("device", f"step {number}", 0.0, 1.0, {})
    assert log.num_dropped == 2
    kept = [event["name"] for event in log.events() if event["ph"] == "X"]
    assert kept == ["step 0", "step 1", "step 2"]
    assert msgspec.json.decode(log.encode())["otherData"] == {"dropped_entries": 2}


def test_the_example_draws_both_depths_side_by_side(tmp_path: Path):
    example = Path(__file__).parents[2] / "examples" / "timeline.py"
    picture = tmp_path / "timeline.svg"
    run = subprocess.run([sys.executable, example, picture, "4"], capture_output=True, text=True, check=True)
    assert [line.partition(":")[0] for line in run.stdout.splitlines()] == ["depth 1", "depth 2", f"drawn in {picture}"]
    drawn = ElementTree.fromstring(picture.read_text())
    panels = [group for group in drawn if group.tag.endswith("}g")]
    assert len(panels) == 2
    assert all(len([box for box in panel if box.get("fill") == "#26a"]) == 20 for panel in panels)
