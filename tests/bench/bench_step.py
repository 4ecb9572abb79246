"""The scheduler and the KV cache alone, no model and no event loop: what a step, an admission and an abort cost.

python tests/bench/bench_step.py [--running 64 256 1024] [--rounds 3]

- pure decode: plan_step and update_from_output while so many requests run;
- admission of a prompt of 1,024 tokens: making the request, hashing its blocks, queueing it, looking
  it up and giving it blocks; cold, and with all of it in the cache;
- abort of one request among 10,000 that wait, under either policy.

Each figure is a median; the rounds take turns, and the best and the median round are printed.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from collections.abc import Callable

from bench_scheduler import build, step

from callboard.scheduler import KVCacheManager, ModelRunnerOutput, Request, SamplingParams, Scheduler, SchedulerConfig
from callboard.scheduler import plan_step as plan_of

PROMPT = 1024  # tokens
ADMISSIONS = 100
WAITING = 10_000


def micros(values: list[float]) -> float:
    return statistics.median(values) * 1e6


def decode(running: int) -> float:
    """Microseconds of a step in which all of them decode."""
    scheduler, kv = build(running)
    while step(scheduler, kv)[1] < running:
        pass
    for _ in range(20):
        step(scheduler, kv)
    gc.collect()
    return micros([step(scheduler, kv)[0] for _ in range(200)])


def admission(*, hit: bool) -> float:
    """Microseconds from a prompt's tokens to its blocks, one request at a time."""
    scheduler = Scheduler(SchedulerConfig(max_num_running_reqs=8, max_num_scheduled_tokens=2 * PROMPT))
    kv = KVCacheManager(4 * ADMISSIONS * PROMPT // 16, 16)
    chosen = random.Random(3)
    same = [chosen.randrange(49_000) for _ in range(PROMPT)]
    if hit:
        admit(scheduler, kv, "first", same)
    times: list[float] = []
    for number in range(ADMISSIONS):
        tokens = same if hit else [chosen.randrange(49_000) for _ in range(PROMPT)]
        times.append(admit(scheduler, kv, str(number), tokens))
    return micros(times[10:])


def admit(scheduler: Scheduler, kv: KVCacheManager, name: str, tokens: list[int]) -> float:
    """Seconds of an admission; the request ends with its first token."""
    params = SamplingParams(temperature=0, max_tokens=1)
    began = time.perf_counter()
    scheduler.add_request(Request(request_id=name, prompt_token_ids=tokens, sampling_params=params))
    plan = plan_of(scheduler, kv, now=0.0)
    took = time.perf_counter() - began
    assert plan.req_ids == (name,)
    scheduler.update_from_output(plan, ModelRunnerOutput(step=plan.step, sampled_token_ids={name: [7]}), 0.0)
    scheduler.release(kv)
    return took


def abort(policy: str) -> float:
    """Microseconds of an abort in the middle of a long queue."""
    scheduler = Scheduler(SchedulerConfig(policy=policy))
    params = SamplingParams(temperature=0, max_tokens=8)
    for number in range(WAITING):
        scheduler.add_request(
            Request(request_id=str(number), prompt_token_ids=[1] * 8, sampling_params=params, priority=number % 7)
        )
    times: list[float] = []
    for number in random.Random(1).sample(range(WAITING), 500):
        began = time.perf_counter()
        scheduler.abort(str(number))
        times.append(time.perf_counter() - began)
    return micros(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--running", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    cases: dict[str, Callable[[], float]] = {
        f"decode, {running} running, a step": lambda running=running: decode(running) for running in args.running
    }
    cases[f"admission of {PROMPT} tokens, cold"] = lambda: admission(hit=False)
    cases[f"admission of {PROMPT} tokens, all in the cache"] = lambda: admission(hit=True)
    cases |= {
        f"abort among {WAITING} waiting, {policy}": lambda policy=policy: abort(policy)
        for policy in ("fcfs", "priority")
    }
    rounds = {name: [case() for case in [run] * args.rounds] for name, run in cases.items()}
    for name, values in rounds.items():
        print(f"{name:<42} best {min(values):8.1f} us, median {statistics.median(values):8.1f}")


if __name__ == "__main__":
    main()
