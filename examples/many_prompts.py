"""A hundred prompts at once, while a task of the host program measures how late the loop is.

python examples/many_prompts.py [number of prompts] [model folder, .gguf file or installed name]
"""

import sys
import time

import anyio
from rich.console import Console
from rich.progress import Progress

from callboard import Engine, SamplingParams

SUBJECTS = ["rain", "bread", "the moon", "a bicycle", "chess", "salt", "an old library", "the sea", "glass", "a violin"]


class Lateness:
    """The host's own work: sleep a millisecond, again and again, and note how late each wake-up is."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def measure(self) -> None:
        while True:
            began = time.perf_counter()
            await anyio.sleep(0.001)
            self.seconds.append(time.perf_counter() - began - 0.001)

    def percentile(self, share: float) -> float:
        """Milliseconds that this share of the wake-ups stayed below."""
        ordered = sorted(self.seconds)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def main(count: int, model: str) -> None:
    console, lateness = Console(stderr=True), Lateness()
    engine = Engine.from_pretrained(model, max_num_running_reqs=32)
    async with engine, anyio.create_task_group() as host:
        host.start_soon(lateness.measure)
        with Progress(console=console) as progress:
            bar = progress.add_task("answers", total=count)

            async def ask(number: int) -> None:
                subject = SUBJECTS[number % len(SUBJECTS)]
                params = SamplingParams(temperature=0.8, seed=number, max_tokens=48)
                question = f"Write one sentence about {subject}, number {number}."
                async for _ in engine.chat([{"role": "user", "content": question}], params):
                    pass
                progress.advance(bar)

            began = time.perf_counter()
            async with anyio.create_task_group() as prompts:
                for number in range(count):
                    prompts.start_soon(ask, number)
            took = time.perf_counter() - began
        host.cancel_scope.cancel()
        stats = engine.stats()
    print(f"{count} answers, {stats.num_generated_tokens} tokens in {took:.1f} s: ", end="")
    print(f"{stats.num_generated_tokens / took:.0f} tokens/s, {stats.num_steps} steps, ", end="")
    print(f"{stats.prefix_hits} of {stats.num_prompt_tokens} prompt tokens from the prefix cache")
    print(f"host task's lateness: median {lateness.percentile(0.5):.2f} ms, p99 {lateness.percentile(0.99):.2f} ms")


if __name__ == "__main__":
    anyio.run(main, int(sys.argv[1]) if len(sys.argv) > 1 else 100, sys.argv[2] if len(sys.argv) > 2 else "smollm2")
