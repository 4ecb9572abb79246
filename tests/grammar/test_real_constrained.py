"""Constrained requests with the real model."""

from __future__ import annotations

import json
import re

import anyio
import jsonschema
import pytest
from schemas import GRAMMARS, REGEXES, SCHEMAS

from callboard import Engine, SamplingParams, StructuredOutput

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

PROMPT = "Here is an answer: "
KINDS = {
    **{f"schema {name}": StructuredOutput(json_schema=schema) for name, schema in SCHEMAS.items()},
    **{f"regex {pattern}": StructuredOutput(regex=pattern) for pattern in REGEXES},
    **{f"grammar {name}": StructuredOutput(grammar=grammar) for name, (grammar, _) in GRAMMARS.items()},
    "any object": StructuredOutput(json_object=True),
}


def make(**config) -> Engine:
    return Engine.from_pretrained("smollm2", **{"max_model_len": 512, "num_kv_blocks": 600} | config)


def judge(name: str, text: str) -> None:
    """Raise unless a finished text is what its constraint asks for."""
    kind, _, key = name.partition(" ")
    match kind:
        case "schema":
            jsonschema.Draft202012Validator(SCHEMAS[key]).validate(json.loads(text))
        case "regex":
            assert re.fullmatch(key, text, re.ASCII), repr(text)
        case "grammar":
            assert re.fullmatch(GRAMMARS[key][1], text), repr(text)
        case _:
            assert isinstance(json.loads(text), dict)


async def test_what_ends_by_itself_is_valid_under_its_constraint_at_a_high_temperature(anyio_backend):
    ends: dict[str, int] = {}

    async def one(engine: Engine, name: str, seed: int) -> None:
        params = SamplingParams(temperature=1.5, seed=seed, max_tokens=150, structured_output=KINDS[name])
        output = (await engine.complete(PROMPT, params)).outputs[0]
        assert output.finish_reason in ("stop", "length")
        if output.finish_reason == "stop":
            judge(name, output.text)
            ends[name] = ends.get(name, 0) + 1

    async with make(max_num_running_reqs=32) as engine, anyio.create_task_group() as tasks:
        for name in KINDS:
            for seed in range(2):
                tasks.start_soon(one, engine, name, seed)
    assert len(ends) >= 0.9 * len(KINDS), f"never ended: {sorted(set(KINDS) - set(ends))}"
