"""A day of traffic on a virtual clock: requests through the whole engine with 256 slots.

python tests/bench/bench_day.py [--requests 20000] [--rate 11.57] [--minutes 8] [--short]

A million requests a day are 11.57 a second. Lengths are a ShareGPT-like mix, prompts share prefixes,
arrivals come in bursts, and the device gives 4,200 tokens a second when all slots are taken, which
keeps about nine of ten busy. With --short texts are a tenth as long and the device is slower by as
much: a million requests are then played in minutes. The books are audited on the way and at the
end; memory is what the process holds at each tenth.
"""

from __future__ import annotations

import argparse
import resource
import time
from itertools import islice
from pathlib import Path

import anyio
import msgspec
import trio.testing

from callboard import Engine, EngineConfig, SamplingParams
from callboard.runner import Latency, Lengths, Load, LoadRequest, SimulatedRunner

SLOTS = 256
DEVICE = Latency(fixed=10e-3, per_request=0.2e-3)
SLOW_DEVICE = Latency(fixed=100e-3, per_request=2e-3)
SHORT_PROMPTS, SHORT_OUTPUTS = Lengths(mean=16.1, std=30.0, most=205), Lengths(mean=33.8, std=32.0, most=102)
PAGE = resource.getpagesize()
WINDOW = 4 * SLOTS  # requests that may be unfinished at once; later ones arrive when there is room


def held_mib() -> float:
    """Memory of the process now, in MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 2**20


class Day:
    """Plays a load and keeps the books from outside."""

    def __init__(self, requests: int, load: Load, minutes: float, device: Latency) -> None:
        self.requests, self.load, self.device = requests, load, device
        self.until = time.monotonic() + 60 * minutes
        self.begun = self.done = self.asked = self.tokens = 0
        self.marks: list[tuple[int, float]] = []

    async def play(self) -> None:
        runner = SimulatedRunner(
            vocab_size=self.load.vocab_size,
            num_kv_blocks=30_000,
            max_num_running_reqs=SLOTS,
            max_model_len=4096,
            latency=self.device,
        )
        async with Engine(EngineConfig(max_num_scheduled_tokens=8192), runner=runner) as engine:
            room = anyio.CapacityLimiter(WINDOW)
            async with anyio.create_task_group() as users:
                for request in islice(self.load, self.requests):
                    await anyio.sleep_until(request.arrival)
                    if time.monotonic() > self.until:
                        break
                    await room.acquire_on_behalf_of(request.number)
                    self.begun += 1
                    self.asked += request.max_tokens
                    users.start_soon(self.one, engine, request, room)
            self.close_the_books(engine, runner)

    async def one(self, engine: Engine, request: LoadRequest, room: anyio.CapacityLimiter) -> None:
        params = SamplingParams(temperature=0, max_tokens=request.max_tokens, ignore_eos=True)
        try:
            output = await engine.complete(request.prompt_token_ids, params)
        finally:
            room.release_on_behalf_of(request.number)
        self.tokens += len(output.outputs[0].token_ids)
        self.done += 1
        if self.done % max(1, self.requests // 10) == 0:
            engine.check()
            self.marks.append((self.done, held_mib()))
            print(
                f"  {self.done} done, {held_mib():.0f} MiB, virtual hour {anyio.current_time() / 3600:.2f}", flush=True
            )

    def close_the_books(self, engine: Engine, runner: SimulatedRunner) -> None:
        engine.check()
        stats = engine.stats()
        assert self.done == self.begun == stats.num_finished
        assert self.tokens == self.asked == stats.num_generated_tokens
        assert stats.num_running == stats.num_waiting == 0
        print(
            f"{self.done} requests, {self.tokens} tokens, {stats.num_steps} steps, {stats.num_preemptions} preemptions"
        )
        print(
            f"prefix hits {stats.prefix_hit_rate:.0%}; device busy for {runner.busy_seconds / 3600:.2f} virtual hours"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--rate", type=float, default=1e6 / 86_400)
    parser.add_argument("--minutes", type=float, default=8.0, help="real time after which no request is begun any more")
    parser.add_argument("--short", action="store_true", help="texts of a tenth, on a device that is ten times slower")
    args = parser.parse_args()
    load = Load(rate=args.rate, burst=4.0, num_prefixes=20, prefix_len=64)
    if args.short:
        load = msgspec.structs.replace(load, prompts=SHORT_PROMPTS, outputs=SHORT_OUTPUTS)
    day = Day(args.requests, load, args.minutes, SLOW_DEVICE if args.short else DEVICE)
    began = time.monotonic()
    clock = trio.testing.MockClock(autojump_threshold=0)
    anyio.run(day.play, backend="trio", backend_options={"clock": clock})
    took = time.monotonic() - began
    print(f"{took / 60:.2f} minutes; at this pace a million requests take {took / day.done * 1e6 / 60:.0f} minutes")
    if len(day.marks) > 1:
        print(f"memory from {day.marks[0][1]:.0f} MiB to {day.marks[-1][1]:.0f} MiB")


if __name__ == "__main__":
    main()
