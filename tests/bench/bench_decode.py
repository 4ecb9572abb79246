"""Step times of the model runner alone, without engine and event loop, beside transformers' module.

python tests/bench/bench_decode.py [--batch 1 8 32] [--context 256] [--steps 40] [--prefill 512]
                                   [--threads 2] [--model smollm2] [--no-peer]

Steps of the two take turns, so that whatever else the machine does falls on both; the table has
medians. The peer is the bare module with its key-value cache, without the costs of ``generate``.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

from callboard.runner.model_source import resolve_model
from callboard.runner.step_executor import StepExecutor
from callboard.runner.torch_runner import TorchRunner
from callboard.runner.weights import load_weights
from callboard.scheduler import KVCacheManager, Request, SamplingParams, Scheduler, SchedulerConfig, plan_step

sys.path.insert(0, str(Path(__file__).parents[1] / "parity"))

MAX_LEN = 2048
GREEDY = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
Prompts = list[list[int]]


def random_prompts(count: int, length: int) -> Prompts:
    chosen = random.Random(count)
    return [[chosen.randrange(100, 49_000) for _ in range(length)] for _ in range(count)]


class Ours:
    """Scheduler and executor in turn; a call is one step and gives the seconds that its execution took."""

    def __init__(self, executor: StepExecutor, num_kv_blocks: int) -> None:
        self.executor, self._num_kv_blocks = executor, num_kv_blocks

    def start(self, prompts: Prompts, params: SamplingParams = GREEDY) -> None:
        self._kv = KVCacheManager(num_blocks=self._num_kv_blocks, block_size=16)
        self._scheduler = Scheduler(
            SchedulerConfig(max_num_running_reqs=64, max_num_scheduled_tokens=65536, max_model_len=MAX_LEN)
        )
        for i, prompt in enumerate(prompts):
            self._scheduler.add_request(Request(request_id=str(i), prompt_token_ids=prompt, sampling_params=params))

    def step(self) -> float:
        plan = plan_step(self._scheduler, self._kv, now=0.0)
        began = time.perf_counter()
        output = self.executor.execute(plan)
        took = time.perf_counter() - began
        self._scheduler.update_from_output(plan, output, now=0.0)
        return took


class Theirs:
    """transformers' module on one static batch."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def start(self, prompts: Prompts) -> None:
        self._input, self._cache = torch.tensor(prompts), None

    def step(self) -> float:
        began = time.perf_counter()
        with torch.inference_mode():
            out = self._model(self._input, past_key_values=self._cache, use_cache=True, logits_to_keep=1)
            self._input = out.logits[:, -1].argmax(-1, keepdim=True)
        self._cache = out.past_key_values
        return time.perf_counter() - began


def take_turns(runners: list[Any], prompts: Prompts, steps: int) -> tuple[list[float], list[float]]:
    """Seconds of each runner's step with the prompts, and the median of its steps behind it."""
    for runner in runners:
        runner.start(prompts)
    first = [runner.step() for runner in runners]
    later = [[runner.step() for runner in runners] for _ in range(steps)]
    return first, [statistics.median(times) for times in zip(*later, strict=True)]


def report(name: str, rates: list[float]) -> None:
    ratio = f"  {rates[0] / rates[1]:5.2f}x" if len(rates) > 1 else ""
    print(f"{name:<24}" + "".join(f"{rate:10.1f}" for rate in rates) + ratio)


def make_ours(source: Any) -> Ours:
    weights = load_weights(source, source.config)
    info = TorchRunner(source.config, dict, max_model_len=MAX_LEN, max_num_running_reqs=64).info
    return Ours(StepExecutor(source.config, weights, info, source.config.vocab_size), info.num_kv_blocks)


def make_peer(source: Any) -> Theirs:
    from conftest import make_reference_model

    return Theirs(make_reference_model(source))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--prefill", type=int, nargs="+", default=[512])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--no-peer", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    source = resolve_model(args.model)
    runners: list[Any] = [make_ours(source)] + ([] if args.no_peer else [make_peer(source)])
    print(f"{'tokens/s':<24}{'runner':>10}" + ("" if args.no_peer else f"{'module':>10}"))
    for count in args.batch:
        prompts = random_prompts(count, args.context - args.steps // 2)
        _, medians = take_turns(runners, prompts, args.steps)
        report(f"decode, {count} requests", [count / median for median in medians])
    for length in args.prefill:
        rounds = [take_turns(runners, random_prompts(1, length), 0)[0] for _ in range(5)]
        medians = [statistics.median(times) for times in zip(*rounds, strict=True)]
        report(f"prefill, {length} tokens", [length / median for median in medians])


if __name__ == "__main__":
    main()
