"""Twenty steps at depth 1 and at depth 2, side by side, drawn from the engine's own trace.

python examples/timeline.py [picture.svg] [requests]

At depth 1 the device waits while the host plans the next step; at depth 2 the plan is there
before the step ends. The device is simulated: 3 ms a step.
"""

import json
import sys
import tempfile
from pathlib import Path

import anyio

from callboard import Engine, EngineConfig, SamplingParams
from callboard.runner import Latency, SimulatedRunner

STEPS, PIXELS_PER_MS, ROW, LEFT = 20, 9, 26, 80
COLORS = {"device": "#26a", "scheduler": "#c52", "kv_cache": "#b72", "runner": "#285", "delivery": "#64c"}


async def run(depth: int, requests: int, path: Path) -> None:
    runner, config = SimulatedRunner(latency=Latency(fixed=3e-3)), EngineConfig(steps_in_flight=depth)
    params = SamplingParams(temperature=0, max_tokens=3 * STEPS, ignore_eos=True)
    async with Engine(config, runner=runner) as engine, anyio.create_task_group() as readers:
        async with engine.trace(path):
            for number in range(requests):
                readers.start_soon(engine.complete, [number % 1000] * 8, params)
            async for step in engine.step_stats():
                if step.scheduler.step >= 2 * STEPS:
                    break
        readers.cancel_scope.cancel()


def slices_of(path: Path) -> list[dict]:
    events = json.loads(path.read_text())["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    return [event | {"track": names[event["tid"]]} for event in events if event["ph"] == "X"]


def panel(depth: int, slices: list[dict]) -> tuple[str, float]:
    """The steps in the middle of a trace as a picture, and its width in pixels."""
    steps = [one for one in slices if one["track"] == "device"][STEPS // 2 : STEPS // 2 + STEPS]
    begin, end = steps[0]["ts"], steps[-1]["ts"] + steps[-1]["dur"]
    idle = 1 - sum(one["dur"] for one in steps) / (end - begin)
    title = f"depth {depth}: {STEPS} steps in {(end - begin) / 1000:.1f} ms, the device is idle for {idle:.1%}"
    print(title)
    parts = [f'<text y="18" font-weight="bold">{title}</text>']
    for place, (track, color) in enumerate(COLORS.items()):
        y = 30 + place * ROW
        parts.append(f'<text y="{y + 15}">{track}</text>')
        for one in slices:
            if one["track"] == track and begin <= one["ts"] < end:
                x, width = LEFT + (one["ts"] - begin) / 1000 * PIXELS_PER_MS, one["dur"] / 1000 * PIXELS_PER_MS
                parts.append(
                    f'<rect x="{x:.2f}" y="{y}" width="{max(width - 0.5, 0.5):.2f}" height="20" fill="{color}"/>'
                )
    return "\n".join(parts), LEFT + (end - begin) / 1000 * PIXELS_PER_MS + 30


def main(picture: Path, requests: int) -> None:
    body, right = "", 0.0
    for depth in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            anyio.run(run, depth, requests, path)
            drawing, width = panel(depth, slices_of(path))
        body += f'<g transform="translate({10 + right:.0f} 0)">{drawing}</g>'
        right += width
    frame = f'width="{right + 10:.0f}" height="{40 + ROW * len(COLORS)}" font-family="sans-serif" font-size="13"'
    picture.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" {frame}>{body}</svg>')
    print(f"drawn in {picture}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "timeline.svg"), int(sys.argv[2]) if len(sys.argv) > 2 else 64)
