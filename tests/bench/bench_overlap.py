"""What overlap is worth on a device of real speed, and what an engine does to its host's loop; on the real clock.

python tests/bench/bench_overlap.py [--requests 64 256 1024] [--seconds 4] [--no-lateness]

- With the time model of an H200 and an 8B model: the share of the time in which the device has
  nothing to do between its first step and its last, at depth 1 and 2, and tokens a second against the
  ideal, the sum of the step times. Timers are up to a millisecond late on asyncio, which the
  figure of depth 1 contains: a step's end is seen by a timer here, and by a call from a thread
  with a real device.
- How late the host's loop is while 256 streams are read and the device takes 20 ms a step: as the
  engine measures it, and as a task of the host does that sleeps 2 ms at a time.
"""

from __future__ import annotations

import argparse
import time

import anyio

from callboard import Engine, EngineConfig, SamplingParams
from callboard.runner import H200_8B, Latency, SimulatedRunner

STEPS_OF_LATENESS = 300


def make_runner(requests: int, tokens: int, latency: Latency) -> SimulatedRunner:
    return SimulatedRunner(
        vocab_size=32_000,
        num_kv_blocks=requests * (-(-(16 + tokens) // 16) + 2),
        max_num_running_reqs=requests,
        max_model_len=16 + tokens + 16,
        latency=latency,
    )


async def idle_share(requests: int, depth: int, tokens: int) -> tuple[float, float, float]:
    """Share of idle time, tokens a second, and the ideal of these."""
    runner = make_runner(requests, tokens, H200_8B)
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    config = EngineConfig(steps_in_flight=depth, max_num_scheduled_tokens=max(2048, 16 * requests))

    async def read(number: int) -> None:
        async for _ in engine.generate([number % 31_000] * 16, params):
            pass

    async with Engine(config, runner=runner) as engine, anyio.create_task_group() as readers:
        for number in range(requests):
            readers.start_soon(read, number)
    whole, count = runner.busy_seconds + runner.idle_seconds, requests * tokens
    return runner.idle_seconds / whole, count / whole, count / runner.busy_seconds


async def lateness(streams: int) -> str:
    """Lateness of the loop at 50 steps a second, as engine and host see it, in milliseconds."""
    runner = make_runner(streams, STEPS_OF_LATENESS, Latency(fixed=0.02))
    params = SamplingParams(temperature=0, max_tokens=STEPS_OF_LATENESS, ignore_eos=True)
    seen: list[float] = []

    async def read(number: int) -> None:
        async for _ in engine.generate([number % 31_000] * 16, params):
            pass

    async def watch() -> None:
        await anyio.sleep(0.5)  # behind the admission of all requests
        while True:
            due = time.monotonic() + 0.002
            await anyio.sleep(0.002)
            seen.append(time.monotonic() - due)

    async with Engine(EngineConfig(), runner=runner) as engine, anyio.create_task_group() as host:
        host.start_soon(watch)
        async with anyio.create_task_group() as readers:
            for number in range(streams):
                readers.start_soon(read, number)
        stats = engine.stats()
        host.cancel_scope.cancel()
    ordered = sorted(seen)
    engine_sees = f"median {stats.loop_lag_median * 1e3:.2f}, p99 {stats.loop_lag_p99 * 1e3:.2f}"
    host_sees = f"median {ordered[len(ordered) // 2] * 1e3:.2f}, p99 {ordered[-1 - len(ordered) // 100] * 1e3:.2f}"
    return f"the engine sees {engine_sees} ms; a task of the host {host_sees} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--seconds", type=float, default=4.0, help="about how long the device works in each case")
    parser.add_argument("--no-lateness", action="store_true")
    args = parser.parse_args()
    for requests in args.requests:
        tokens = max(20, round(args.seconds / H200_8B.of_counts(requests, requests)))
        for depth in (1, 2):
            idle, rate, ideal = anyio.run(idle_share, requests, depth, tokens)
            print(
                f"{requests:5} requests, depth {depth}: device idle {idle:6.2%} of the time, "
                f"{rate:6.0f} tokens/s of {ideal:.0f}"
            )
    if not args.no_lateness:
        for name, uvloop in (("asyncio", False), ("uvloop", True)):
            told = anyio.run(lateness, 256, backend_options={"use_uvloop": uvloop})
            print(f"256 streams at 50 steps/s, {name}: {told}")


if __name__ == "__main__":
    main()
