"""The scheduler alone: plan_step and update_from_output, pure decode, no model.

python tests/bench/bench_scheduler.py

Prints the median microseconds of a step and what that is for each request.
"""

from __future__ import annotations

import gc
import random
import statistics
import time

import numpy as np

from callboard.scheduler import (
    KVCacheManager,
    ModelRunnerOutput,
    Request,
    SamplingParams,
    Scheduler,
    SchedulerConfig,
    plan_step,
)


def build(running: int) -> tuple[Scheduler, KVCacheManager]:
    chosen = random.Random(7)
    scheduler = Scheduler(SchedulerConfig(max_num_running_reqs=1024, eos_token_ids=(2,)))
    params = SamplingParams(temperature=0, max_tokens=6000, ignore_eos=True)
    for number in range(running):
        prompt = [chosen.randrange(49_000) for _ in range(chosen.randint(256, 768))]
        scheduler.add_request(Request(request_id=f"r{number}", prompt_token_ids=prompt, sampling_params=params))
    return scheduler, KVCacheManager(120_000, 16)


def step(scheduler: Scheduler, kv: KVCacheManager) -> tuple[float, int]:
    """Seconds of one step, and how many requests sampled."""
    began = time.perf_counter()
    plan = plan_step(scheduler, kv)
    planned = time.perf_counter()
    count = int(plan.samples.sum())
    result = ModelRunnerOutput(step=plan.step, token_ids=np.full(count, 77))
    given = time.perf_counter()
    scheduler.update_from_output(plan, result, 0.0)
    return planned - began + time.perf_counter() - given, count


def main() -> None:
    for running in (1, 64, 256, 1024):
        scheduler, kv = build(running)
        while step(scheduler, kv)[1] < running:
            pass
        for _ in range(20):
            step(scheduler, kv)
        gc.collect()
        gc.freeze()
        micros = statistics.median(step(scheduler, kv)[0] for _ in range(200)) * 1e6
        print(f"{running:5} running: {micros:7.0f} us a step, {micros / running:6.2f} us a request")


if __name__ == "__main__":
    main()
