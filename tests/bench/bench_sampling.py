"""What sampling costs in each step of a real model, as a share of the model's own time.

python tests/bench/bench_sampling.py [--batch 32] [--context 256] [--steps 30] [--threads 2] [--model smollm2]

Sampling is all that stands between the logits and the tokens, log-probabilities included; it and
the model are timed in the same steps, so whatever else the machine does falls on both. Medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from bench_decode import Ours, make_ours, random_prompts

from callboard.runner import step_executor
from callboard.runner.model_source import resolve_model
from callboard.scheduler import SamplingParams

PENALTIES = {"repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.2}
CUTS = {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "min_p": 0.02, "seed": 1}
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "temperature": {"seed": 1},
    "top_k 50": {"top_k": 50, "seed": 1},
    "top_p 0.9": {"top_p": 0.9, "seed": 1},
    "min_p 0.02": {"min_p": 0.02, "seed": 1},
    "penalties": {"temperature": 0, **PENALTIES},
    "logprobs 5": {"temperature": 0, "logprobs": 5},
    "everything": {
        **CUTS,
        **PENALTIES,
        "logit_bias": dict.fromkeys(range(1000, 1020), 0.5),
        "bad_words_token_ids": [[token, token + 1] for token in range(2000, 2010)],
        "min_tokens": 100,
        "logprobs": 5,
    },
}


class Stopwatch:
    """Adds up the time spent in the functions that it wraps."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            began = time.perf_counter()
            result = function(*args)
            self.seconds += time.perf_counter() - began
            return result

        return timed

    def take(self) -> float:
        seconds, self.seconds = self.seconds, 0.0
        return seconds


class Timed:
    """The runner with a stopwatch on its model and one on its sampling."""

    def __init__(self, ours: Ours) -> None:
        self.ours, self.model, self.sampling = ours, Stopwatch(), Stopwatch()
        decoder: Any = ours.executor.model
        decoder.forward, decoder.logits = self.model(decoder.forward), self.model(decoder.logits)
        watch = self.sampling

        class Watched(step_executor.SampledLogprobs):
            __init__ = watch(step_executor.SampledLogprobs.__init__)
            of = watch(step_executor.SampledLogprobs.of)

        replaced: Any = step_executor
        replaced.sample, replaced.SampledLogprobs = watch(step_executor.sample), Watched

    def measure(self, prompts: list[list[int]], steps: int, params: SamplingParams) -> tuple[float, float]:
        """Median seconds of a decoding step in the model and in sampling."""
        self.ours.start(prompts, params)
        self.ours.step()
        self.model.take(), self.sampling.take()
        times = []
        for _ in range(steps):
            self.ours.step()
            times.append((self.model.take(), self.sampling.take()))
        model, sampling = zip(*times, strict=True)
        return statistics.median(model), statistics.median(sampling)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--model", default="smollm2")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    timed = Timed(make_ours(resolve_model(args.model)))
    print(f"{args.batch} requests of {args.context} tokens      model ms  sampling ms   share")
    for name, settings in SETTINGS.items():
        params = SamplingParams(max_tokens=None, ignore_eos=True, **settings)
        prompts = random_prompts(args.batch, args.context - args.steps // 2)
        model, sampling = timed.measure(prompts, args.steps, params)
        print(f"{name:<32}{model * 1e3:10.1f}{sampling * 1e3:13.2f}{sampling / model:8.1%}")


if __name__ == "__main__":
    main()
