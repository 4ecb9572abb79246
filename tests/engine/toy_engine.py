"""Engines on the simulated runner, for tests of what their users meet."""

from __future__ import annotations

from typing import Any

from anyio.lowlevel import checkpoint

from callboard import Engine, EngineConfig, RequestStream, SamplingParams
from callboard.runner import SimulatedRunner

PROMPT = [1, 2, 3, 4, 5]
VOCAB = 100


def make(runner: Any = None, *, faults: dict[int, Exception] | None = None, **config: Any) -> Engine:
    """An engine of 64 blocks of 4 tokens."""
    usual = SimulatedRunner(vocab_size=VOCAB, num_kv_blocks=64, block_size=4, max_model_len=100, faults=faults)
    return Engine(EngineConfig(block_size=4, **config), runner=runner or usual)


def greedy(**params: Any) -> SamplingParams:
    """Eight tokens, the likeliest ones, if nothing else is said."""
    return SamplingParams(temperature=0, **{"max_tokens": 8} | params)


async def idle(engine: Engine) -> None:
    """Wait until the engine holds nothing; fails if it keeps something."""
    for _ in range(200):
        stats = engine.stats()
        if stats.kv_blocks_free == stats.kv_blocks_total and not stats.num_running and not stats.num_waiting:
            engine.check()
            return
        await checkpoint()
    raise AssertionError(f"{engine.stats()}\n{engine.diagnose()}")


async def until_dead(engine: Engine) -> None:
    """Wait until none of its actors lives."""
    while any(state in engine.diagnose() for state in (": running", ": stopping")):
        await checkpoint()


async def read(stream: RequestStream) -> tuple[list[int], str | None]:
    """All tokens of a stream, and its end."""
    outputs = [output async for output in stream]
    return [t for output in outputs for t in output.outputs[0].token_ids], outputs[-1].outputs[0].finish_reason


async def until_running(engine: Engine, count: int = 1, tokens: int = 1) -> None:
    """Wait until so many requests run and so many tokens were generated."""
    while engine.stats().num_running < count or engine.stats().num_generated_tokens < tokens:
        await checkpoint()
