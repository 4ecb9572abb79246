"""The whole pipeline around a device that takes no time: from submission to the reader of each stream.

python tests/bench/bench_pipeline.py [--streams 1 64 256 1024] [--rounds 3] [--uvloop] [--text] [--stop]

With --text each token becomes text, with SmolLM2's tokenizer; with --stop stop strings are looked
for in it besides. Every stream has a task of its own that reads it; nothing is left out but the model. Prints the
median of the rounds and the best one: steps a second, and microseconds of the process's CPU time for
each token. The device's own share (the toy model's arithmetic) is measured apart and is part of the
figure. On asyncio 2 us of a token are the loop's own: a set future that wakes a task.
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial
from typing import NamedTuple

import anyio

from callboard import Engine, EngineConfig, SamplingParams
from callboard.pipeline.loading import load
from callboard.pipeline.tokenizer import Tokenizer
from callboard.runner import SimulatedRunner
from callboard.scheduler import SchedulerOutput
from callboard.scheduler.plan import IntArray

PROMPT = 16  # tokens
TOKENS = {1: 2_000, 64: 600, 256: 300, 1024: 100}  # of a stream, so that a round takes about a second


class TimedRunner(SimulatedRunner):
    """Counts the CPU seconds of its model."""

    model_seconds = 0.0

    def compute(self, plan: SchedulerOutput) -> IntArray:
        began = time.process_time()
        result = super().compute(plan)
        self.model_seconds += time.process_time() - began
        return result


class Round(NamedTuple):
    steps_per_second: float
    cpu_per_token: float  # microseconds
    model_per_token: float  # of these, the toy model's


async def one_round(streams: int, tokens: int, tokenizer: Tokenizer | None = None, *, stop: bool = False) -> Round:
    runner = TimedRunner(
        vocab_size=49_152 if tokenizer else 32_000,
        num_kv_blocks=streams * (-(-(PROMPT + tokens) // 16) + 2),
        max_num_running_reqs=streams,
        max_model_len=PROMPT + tokens + 16,
    )
    stops = ["no text of the toy model", "\n\n###"] if stop else None
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, stop=stops)
    async with Engine(EngineConfig(max_num_scheduled_tokens=8192), runner=runner, tokenizer=tokenizer) as engine:

        async def read(number: int) -> None:
            async for _ in engine.generate([number % 31_000] * PROMPT, params):
                pass

        began, cpu = time.perf_counter(), time.process_time()
        async with anyio.create_task_group() as readers:
            for number in range(streams):
                readers.start_soon(read, number)
        took, cpu = time.perf_counter() - began, time.process_time() - cpu
        count = streams * tokens
        return Round(engine.stats().num_steps / took, cpu * 1e6 / count, runner.model_seconds * 1e6 / count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 64, 256, 1024])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--uvloop", action="store_true")
    parser.add_argument("--text", action="store_true")
    parser.add_argument("--stop", action="store_true")
    args = parser.parse_args()
    tokenizer = load(EngineConfig(model="smollm2"))[1] if args.text or args.stop else None
    for streams in args.streams:
        tokens = TOKENS.get(streams, max(50, 60_000 // streams))
        rounds = [
            anyio.run(
                partial(one_round, stop=args.stop),
                streams,
                tokens,
                tokenizer,
                backend_options={"use_uvloop": args.uvloop},
            )
            for _ in range(args.rounds)
        ]
        steps, cpu, model = (statistics.median(values) for values in zip(*rounds, strict=True))
        best = min(one.cpu_per_token for one in rounds)
        print(
            f"{streams:5} streams: {steps:6.0f} steps/s, {cpu:7.2f} us of CPU a token (best {best:.2f}), "
            f"{model:6.2f} of them the simulated model's"
        )


if __name__ == "__main__":
    main()
