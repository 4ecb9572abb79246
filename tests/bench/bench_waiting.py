"""What a long queue costs a step: 256 requests decode while none or 100,000 wait.

python tests/bench/bench_waiting.py [--waiting 100000] [--blocked 10000]

For both policies, with all rows taken and with rows to spare but no blocks for the head of the
queue; then with rows and blocks to spare and 10,000 that wait for their grammars. Prints the median
microseconds of a step and the ratio, and what an abort of a waiting request costs.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time

from bench_scheduler import step

from callboard.scheduler import (
    KVCacheManager,
    Request,
    SamplingParams,
    Scheduler,
    SchedulerConfig,
    StructuredOutput,
)

RUNNING = 256
PROMPT = 160  # tokens
STEPS, ROUNDS = 40, 8
BLOCK = 1024  # tokens: a running request never needs a second one here


def request(number: int, length: int, structured: StructuredOutput | None = None) -> Request:
    params = SamplingParams(temperature=0, max_tokens=4_000, ignore_eos=True, structured_output=structured)
    tokens = [number * 1_009 % 49_000] * length
    return Request(
        request_id=f"r{number}",
        prompt_token_ids=tokens,
        sampling_params=params,
        priority=number % 7,
        arrival_time=number,
    )


def build(policy: str, *, rows: int) -> tuple[Scheduler, KVCacheManager]:
    """256 running, and one free block."""
    config = SchedulerConfig(
        max_num_running_reqs=rows, policy=policy, max_num_scheduled_tokens=RUNNING * PROMPT, block_size=BLOCK
    )
    scheduler, kv = Scheduler(config), KVCacheManager(RUNNING + 1, BLOCK)
    for number in range(RUNNING):
        scheduler.add_request(request(number, PROMPT))
    while step(scheduler, kv)[1] < RUNNING:
        pass
    return scheduler, kv


def microseconds(scheduler: Scheduler, kv: KVCacheManager) -> float:
    return statistics.median(step(scheduler, kv)[0] for _ in range(STEPS)) * 1e6


def waiting_line(scheduler: Scheduler, count: int) -> list[str]:
    """Add requests that stay in the queue; returns their ids."""
    added = [request(1_000 + number, 2 * BLOCK) for number in range(count)]
    for one in added:
        scheduler.add_request(one)
    return [one.request_id for one in added]


def blocked_line(scheduler: Scheduler, count: int) -> None:
    """Add requests whose grammars are never ready."""
    for number in range(count):
        scheduler.add_request(request(1_000 + number, 16, StructuredOutput(regex="a+")))


def compare(policy: str, rows: int, waiting: int) -> tuple[float, float]:
    empty, empty_kv = build(policy, rows=rows)
    scheduler, kv = build(policy, rows=rows)
    ids = waiting_line(scheduler, waiting)
    step(scheduler, kv)  # the head of the queue finds no room
    ratio, text = in_turn(empty, empty_kv, scheduler, kv)
    assert scheduler.num_waiting == waiting
    print(f"{policy:9} {rows:4} rows: {text} with {waiting} waiting, {ratio:5.2f}")
    return aborts(scheduler, ids)


def compare_blocked(policy: str, blocked: int) -> None:
    empty, empty_kv = build(policy, rows=2 * RUNNING)
    scheduler, kv = build(policy, rows=2 * RUNNING)
    blocked_line(scheduler, blocked)
    ratio, text = in_turn(empty, empty_kv, scheduler, kv)
    assert len(scheduler.grammars) == blocked
    print(f"{policy:9} {2 * RUNNING:4} rows: {text} with {blocked} waiting for grammars, {ratio:5.2f}")


def in_turn(empty: Scheduler, empty_kv: KVCacheManager, scheduler: Scheduler, kv: KVCacheManager) -> tuple[float, str]:
    """The ratio of their steps, and both figures."""
    gc.collect()
    gc.freeze()
    # In turn, since machines change their pace; the ratio is the median round's.
    pairs = [(microseconds(empty, empty_kv), microseconds(scheduler, kv)) for _ in range(ROUNDS)]
    alone, beside = (statistics.median(figures) for figures in zip(*pairs, strict=True))
    ratio = statistics.median(other / one for one, other in pairs)
    return ratio, f"{alone:6.0f} us a step, {beside:6.0f}"


def aborts(scheduler: Scheduler, ids: list[str]) -> tuple[float, float]:
    chosen = random.Random(1).sample(ids, 1_000)
    seconds = []
    for name in chosen:
        began = time.perf_counter()
        scheduler.abort(name)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds) * 1e6, max(seconds) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--waiting", type=int, default=100_000)
    parser.add_argument("--blocked", type=int, default=10_000)
    args = parser.parse_args()
    for policy in ("fcfs", "priority"):
        for rows in (RUNNING, 2 * RUNNING):
            middle, most = compare(policy, rows, args.waiting)
            print(f"{policy:9} abort of a waiting request: median {middle:.1f} us, longest {most:.1f}")
        compare_blocked(policy, args.blocked)


if __name__ == "__main__":
    main()
