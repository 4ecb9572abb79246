"""Decode speed through the whole engine, beside transformers' generate, in one run.

python tests/bench/bench_engine.py [--context 256] [--new 64] [--rounds 3] [--threads 2]

Each round runs both, one after the other; the table has the median of the rounds and of the
ratios within a round. The first tokens are not counted: the rate is that of decoding.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import anyio

from callboard import Engine, SamplingParams

sys.path.insert(0, str(Path(__file__).parents[1] / "parity"))


def prompts(count: int, length: int, seed: int) -> list[list[int]]:
    chosen = random.Random(seed)
    return [[chosen.randrange(100, 49_000) for _ in range(length)] for _ in range(count)]


async def ours(count: int, context: int, new: int, threads: int) -> float:
    """Tokens per second from the moment when all requests have their first token."""
    params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True)
    firsts: list[float] = []
    arrivals: list[tuple[float, int]] = []  # when, and how many tokens

    async def one(engine: Engine, prompt: list[int]) -> None:
        async for output in engine.generate(prompt, params):
            arrivals.append((time.perf_counter(), len(output.outputs[0].token_ids)))
            if output.usage.completion_tokens == len(output.outputs[0].token_ids):
                firsts.append(arrivals[-1][0])

    engine = Engine.from_pretrained("smollm2", max_model_len=2048, max_num_running_reqs=32, num_threads=threads)
    async with engine:
        await engine.complete([1, 2, 3], SamplingParams(temperature=0, max_tokens=4))
        async with anyio.create_task_group() as tasks:
            for prompt in prompts(count, context, count):
                tasks.start_soon(one, engine, prompt)
    began = max(firsts)  # before that some steps still computed prompts
    last = max(when for when, _ in arrivals)
    return sum(tokens for when, tokens in arrivals if when > began) / (last - began)


_model: Any = None


def load_peer(threads: int) -> None:
    """Runs in the peer's own process: two torch thread pools in one process slow each other down."""
    global _model  # noqa: PLW0603 - the process serves one model
    import torch
    from conftest import make_reference_model

    from callboard.runner.model_source import resolve_model

    torch.set_num_threads(threads)
    _model = make_reference_model(resolve_model("smollm2"))


def theirs(count: int, context: int, new: int) -> float:
    """transformers' generate on one static batch; the time of the prompt's pass is taken off."""
    import torch

    ids = torch.tensor(prompts(count, context, count))
    settings = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None, "attention_mask": torch.ones_like(ids)}
    with torch.inference_mode():
        began = time.perf_counter()
        _model.generate(ids, max_new_tokens=1, **settings)
        first = time.perf_counter()
        _model.generate(ids, max_new_tokens=new, **settings)
        last = time.perf_counter()
    return count * (new - 1) / ((last - first) - (first - began))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    print(f"context {args.context}, {args.new} new tokens, {args.threads} threads, float32, median of {args.rounds}")
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, initializer=load_peer, initargs=(args.threads,)) as peer:
        for count in (1, 8, 32):
            pairs: list[tuple[float, float]] = []
            for _ in range(args.rounds):
                mine = anyio.run(ours, count, args.context, args.new, args.threads)
                pairs.append((mine, peer.submit(theirs, count, args.context, args.new).result()))
            mine, other = (statistics.median(pair[side] for pair in pairs) for side in (0, 1))
            ratio = statistics.median(pair[0] / pair[1] for pair in pairs)
            print(f"{count:3} requests: callboard {mine:6.1f} tokens/s, transformers {other:6.1f}, ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
