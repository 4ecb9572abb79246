"""Engines on a simulated runner with a vocabulary of bytes, so that constraints meet steps in milliseconds."""

from __future__ import annotations

from typing import Any

import anyio
from tokenizers import Tokenizer as RawTokenizer
from tokenizers.models import BPE

from callboard import Engine, EngineConfig, RequestOutput, SamplingParams, StructuredOutput
from callboard.pipeline.token_bytes import byte_characters, byte_level
from callboard.pipeline.tokenizer import Tokenizer
from callboard.runner import SimulatedRunner

END = 0
THOUGHT = 1  # ends a reasoning
_SPECIAL = ("<end>", "<thought>")


def make_tokenizer() -> Tokenizer:
    """Two special tokens, then one for each byte."""
    names = [*_SPECIAL, *byte_characters()]
    return Tokenizer(
        RawTokenizer(BPE({name: i for i, name in enumerate(names)}, [])),
        to_bytes=byte_level,
        special_ids=range(len(_SPECIAL)),
        eos_token_ids=(END,),
    )


def make(*, blocks: int = 400, rows: int = 64, faults: dict[int, Exception] | None = None, **config: Any) -> Engine:
    """An engine whose toy model chooses among all bytes."""
    runner = SimulatedRunner(
        vocab_size=260,
        num_kv_blocks=blocks,
        block_size=4,
        max_model_len=400,
        max_num_running_reqs=rows,
        eos_token_ids=(END,),
        faults=faults,
    )
    return Engine(EngineConfig(block_size=4, **config), runner=runner, tokenizer=make_tokenizer())


def params(max_tokens: int = 120, **constraint: Any) -> SamplingParams:
    """Greedy, with a constraint given as a field of StructuredOutput; none: free."""
    structured = StructuredOutput(**constraint) if constraint else None
    return SamplingParams(temperature=0, max_tokens=max_tokens, structured_output=structured)


async def complete_all(engine: Engine, wanted: dict[str, tuple[str, SamplingParams]]) -> dict[str, RequestOutput]:
    """All prompts at once, to their ends."""
    found: dict[str, RequestOutput] = {}

    async def one(name: str, prompt: str, asked: SamplingParams) -> None:
        found[name] = await engine.complete(prompt, asked, request_id=name)

    async with anyio.create_task_group() as tasks:
        for name, (prompt, asked) in wanted.items():
            tasks.start_soon(one, name, prompt, asked)
    return found
