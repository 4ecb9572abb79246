"""Ask a small model one question and print the answer as it comes.

python examples/hello.py "What is the capital of France?" [model folder, .gguf file or installed name]
"""

import sys
import time

import anyio

from callboard import Engine, SamplingParams


async def main(question: str, model: str) -> None:
    print(f"loading {model} ...", file=sys.stderr)
    began = time.perf_counter()
    async with Engine.from_pretrained(model) as engine:
        print(f"ready after {time.perf_counter() - began:.1f} s", file=sys.stderr)
        params = SamplingParams(temperature=0, max_tokens=128)
        async for output in engine.chat([{"role": "user", "content": question}], params):
            print(output.text, end="", flush=True)
            usage, timings = output.usage, output.timings
        print()
    waited = timings.first_token - timings.arrived
    rate = (usage.completion_tokens - 1) / (timings.finished - timings.first_token)
    count = usage.completion_tokens
    print(f"{count} tokens, the first after {waited:.2f} s, then {rate:.0f} tokens/s", file=sys.stderr)


if __name__ == "__main__":
    defaults = ["What is the capital of France?", "smollm2"]
    given = sys.argv[1:]
    anyio.run(main, *given, *defaults[len(given) :])
