"""The scheduler and the KV cache alone, no model and no event loop: what a step, an admission and an abort cost.

python tests/bench/bench_step.py [--running 64 256 1024] [--rounds 3] [--peer PYTHON]

- pure decode: plan_step and update_from_output while so many requests run;
- admission of a prompt of 1,024 tokens: making the request, hashing its blocks, queueing it, looking
  it up, giving it blocks, and its only token; cold, and with all of it in the cache; 256 at once;
- abort of one request among 10,000 that wait, under either policy.

PYTHON is an interpreter that has vLLM: then its scheduler does the same work, case by case in turn
with this one. Each figure is a median of rounds; the ratio is the median of the ratios within rounds.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench_scheduler import build, step

from callboard.scheduler import KVCacheManager, Request, SamplingParams, Scheduler, SchedulerConfig

PROMPT = 1024  # tokens
ADMISSIONS = 256
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


def admission(kind: str) -> float:
    """Microseconds a request, from a prompt's tokens to the end by its first token."""
    scheduler = Scheduler(SchedulerConfig(max_num_running_reqs=ADMISSIONS, max_num_scheduled_tokens=8192))
    kv = KVCacheManager(2 * ADMISSIONS * PROMPT // 16 + 64, 16)
    chosen = random.Random(3)
    prompts = [[chosen.randrange(49_000) for _ in range(PROMPT)] for _ in range(ADMISSIONS)]
    if kind == "hit":
        admit(scheduler, kv, "w", prompts)
    gc.collect()
    return admit(scheduler, kv, "r", prompts) / ADMISSIONS * 1e6


def admit(scheduler: Scheduler, kv: KVCacheManager, kind: str, prompts: list[list[int]]) -> float:
    """Seconds of all of them."""
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    began = time.perf_counter()
    for number, tokens in enumerate(prompts):
        scheduler.add_request(Request(request_id=f"{kind}{number}", prompt_token_ids=tokens, sampling_params=params))
    took = time.perf_counter() - began
    while scheduler.num_unfinished:
        took += step(scheduler, kv)[0]
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


def ours(case: str) -> float:
    kind, what = case.split()
    if kind == "decode":
        return decode(int(what))
    return admission(what) if kind == "admission" else abort(what)


class Peer:
    """vLLM's scheduler in a process of its own."""

    def __init__(self, python: str) -> None:
        script = str(Path(__file__).with_name("peer_scheduler.py"))
        self._process = subprocess.Popen(
            [python, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def ask(self, case: str) -> float:
        assert self._process.stdin
        assert self._process.stdout
        print(case, file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            if line.startswith("="):
                return float(line[1:])
        raise SystemExit(f"the peer has ended with {self._process.wait()}: can {self._process.args} import vllm?")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def peer_of(python: str | None) -> Iterator[Peer | None]:
    peer = Peer(python) if python else None
    try:
        yield peer
    finally:
        if peer:
            peer.close()


def report(case: str, rounds: list[tuple[float, float | None]]) -> str:
    own = statistics.median(mine for mine, _ in rounds)
    text = f"{case:<16} {own:8.1f} us (best {min(mine for mine, _ in rounds):.1f})"
    theirs = [other for _, other in rounds if other]
    if not theirs:
        return text
    ratio = statistics.median(other / mine for mine, other in rounds if other)
    return f"{text:<42} peer {statistics.median(theirs):8.1f} (best {min(theirs):.1f}), ratio {ratio:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--running", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", metavar="PYTHON", help="an interpreter that has vLLM")
    args = parser.parse_args()
    cases = [f"decode {running}" for running in args.running]
    cases += ["admission cold", "admission hit", "abort fcfs", "abort priority"]
    with peer_of(args.peer) as peer:
        for case in cases:
            rounds = [(ours(case), peer.ask(case) if peer else None) for _ in range(args.rounds)]
            print(report(case, rounds), flush=True)


if __name__ == "__main__":
    main()
