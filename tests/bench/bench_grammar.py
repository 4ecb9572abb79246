"""What constraints cost: throughput of a mixed batch beside a free one, and how often sampling waits for masks.

Both batches have as many requests and give as many tokens; half of the mixed one is constrained.
Batches alternate in one run, since machines change their pace; a last mixed one is traced.
Usage: bench_grammar.py [requests] [tokens] [rounds]
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import anyio

from callboard import Engine, SamplingParams, StructuredOutput
from callboard.runner.mask_ticket import MaskTicket

PROMPT = "Write down a list of things:"
LISTS = {  # both go on for long
    "json_schema": {"type": "array", "items": {"type": "string", "maxLength": 40}, "minItems": 400},
    "grammar": 'root ::= ("- " line "\\n")+\nline ::= [A-Za-z ,]+',
}


class Watch:
    """How long sampling has waited for each step's masks."""

    def __init__(self) -> None:
        self.waited: list[float] = []

    def install(self) -> None:
        wait = MaskTicket.wait

        def timed(ticket: MaskTicket):
            start = perf_counter()
            masks = wait(ticket)
            self.waited.append(perf_counter() - start)
            return masks

        MaskTicket.wait = timed

    def report(self) -> str:
        hidden = sum(1 for seconds in self.waited if seconds < 0.0002) / max(len(self.waited), 1)
        return (
            f"{len(self.waited)} steps with masks, ready before the logits in {hidden:.1%}; "
            f"waited {1000 * statistics.fmean(self.waited):.3f} ms on average, {1000 * max(self.waited):.2f} ms at most"
        )


class Lag:
    """The longest time that the event loop was not free."""

    def __init__(self) -> None:
        self.worst = 0.0

    async def follow(self) -> None:
        while True:
            start = perf_counter()
            await anyio.sleep(0.005)
            self.worst = max(self.worst, perf_counter() - start - 0.005)


async def batch(engine: Engine, count: int, tokens: int, constrained: bool) -> float:
    """Tokens a second."""

    async def one(number: int) -> None:
        name = list(LISTS)[number % 4 // 2]
        structured = StructuredOutput(**{name: LISTS[name]}) if constrained and number % 2 else None
        params = SamplingParams(
            temperature=1.0, seed=number, max_tokens=tokens, structured_output=structured, ignore_eos=structured is None
        )
        output = await engine.complete(f"{number}. {PROMPT}", params)
        assert structured or len(output.outputs[0].token_ids) == tokens, output
        given.append(len(output.outputs[0].token_ids))

    given: list[int] = []
    start = perf_counter()
    async with anyio.create_task_group() as tasks:
        for number in range(count):
            tasks.start_soon(one, number)
    return sum(given) / (perf_counter() - start)


async def traced(engine: Engine, count: int, tokens: int) -> str:
    """How many steps' masks were made while their forward pass ran, as the engine's own trace tells."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        async with engine.trace(path):
            await batch(engine, count, tokens, constrained=True)
        slices = [one for one in json.loads(path.read_text())["traceEvents"] if one.get("ph") == "X"]
    names = {one["name"] for one in slices}
    steps = {name: [one for one in slices if one["name"] == name] for name in names if name.startswith("step ")}
    spans = [both for both in steps.values() if len(both) == 2]  # the device's, and the masks'
    device = [max(both, key=lambda one: one["dur"]) for both in spans]
    masks = [min(both, key=lambda one: one["dur"]) for both in spans]
    inside = sum(
        long["ts"] <= short["ts"] and short["ts"] + short["dur"] <= long["ts"] + long["dur"]
        for long, short in zip(device, masks, strict=True)
    )
    share = statistics.median(short["dur"] / long["dur"] for long, short in zip(device, masks, strict=True))
    return f"trace: the masks of {inside} of {len(spans)} steps lie inside the step, and take {share:.1%} of it"


async def main(count: int = 32, tokens: int = 24, rounds: int = 3) -> None:
    watch, lag = Watch(), Lag()
    watch.install()
    async with (
        Engine.from_pretrained("smollm2", max_model_len=256, num_kv_blocks=1200) as engine,
        anyio.create_task_group() as tasks,
    ):
        await batch(engine, 4, 4, constrained=False)
        tasks.start_soon(lag.follow)
        start = perf_counter()
        await batch(engine, 4, 4, constrained=True)
        print(f"first constraint, with its imports: {perf_counter() - start:.1f} s, loop lag {1000 * lag.worst:.0f} ms")
        watch.waited.clear()
        lag.worst = 0.0
        free, mixed = [], []
        for _ in range(rounds):
            free.append(await batch(engine, count, tokens, constrained=False))
            mixed.append(await batch(engine, count, tokens, constrained=True))
        print(await traced(engine, count, tokens))
        ratios = [one / other for one, other in zip(mixed, free, strict=True)]
        print(f"free {statistics.median(free):.0f} tokens/s, mixed {statistics.median(mixed):.0f} tokens/s")
        print(f"mixed / free: {', '.join(f'{ratio:.2f}' for ratio in ratios)}, median {statistics.median(ratios):.2f}")
        print(watch.report())
        print(f"loop lag at most {1000 * lag.worst:.1f} ms")
        tasks.cancel_scope.cancel()


if __name__ == "__main__":
    anyio.run(main, *map(int, sys.argv[1:]))
