"""Constrained requests with the real model."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import anyio
import jsonschema
import pytest
from schemas import GRAMMARS, REGEXES, SCHEMAS
from small_grammars import may_begin

from callboard import Engine, InvalidRequestError, SamplingParams, StructuredOutput
from callboard.runner import GrammarConfig

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


@pytest.mark.soak
async def test_what_ends_by_itself_is_valid_under_its_constraint_at_a_high_temperature(anyio_backend):
    ends: dict[str, int] = {}
    cut: list[str] = []

    async def one(engine: Engine, name: str, seed: int) -> None:
        params = SamplingParams(temperature=1.5, seed=seed, max_tokens=150, structured_output=KINDS[name])
        output = (await engine.complete(PROMPT, params)).outputs[0]
        assert output.finish_reason in ("stop", "length")
        if output.finish_reason == "stop":
            judge(name, output.text)
            ends[name] = ends.get(name, 0) + 1
            return
        # Cut by its length: so far it is the beginning of a text that the constraint takes.
        assert engine.tokenizer
        data = engine.tokenizer.join_bytes(output.token_ids, True)
        assert may_begin(data, KINDS[name]), f"{name}: {data!r}"
        cut.append(name)

    async with make(max_num_running_reqs=32) as engine, anyio.create_task_group() as tasks:
        for name in KINDS:
            for seed in range(2):
                tasks.start_soon(one, engine, name, seed)
    assert cut
    assert len(ends) >= 0.85 * len(KINDS), f"never ended: {sorted(set(KINDS) - set(ends))}"


SHORT = {
    "flat": StructuredOutput(json_schema=SCHEMAS["flat"]),
    "kinds": StructuredOutput(json_schema=SCHEMAS["one of by a constant"]),
    "phone": StructuredOutput(regex=REGEXES[0]),
    "move": StructuredOutput(grammar=GRAMMARS["move"][0]),
}
QUESTIONS = ["The capital of France is", "My favourite animal", "A short poem:", "def add(a, b):"]


async def run_batch(engine: Engine, constrained: int, free: int) -> dict[str, list[int]]:
    """Token ids of a batch; constrained ones are hot, so that a mask a step too late would show."""
    found: dict[str, list[int]] = {}

    async def one(name: str, prompt: str, params: SamplingParams) -> None:
        found[name] = (await engine.complete(prompt, params)).outputs[0].token_ids

    async with anyio.create_task_group() as tasks:
        for number in range(max(constrained, free)):
            question = QUESTIONS[number % len(QUESTIONS)] + f" ({number})"
            if number < constrained:
                structured = list(SHORT.values())[number % len(SHORT)]
                params = SamplingParams(temperature=1.2, seed=number, max_tokens=40, structured_output=structured)
                tasks.start_soon(one, f"constrained {number}", question, params)
            if number < free:
                tasks.start_soon(one, f"free {number}", question, SamplingParams(temperature=0, max_tokens=16))
    return found


@pytest.mark.soak
async def test_free_requests_of_a_mixed_batch_are_token_exact_and_constrained_ones_at_every_depth(anyio_backend):
    async with make(steps_in_flight=1) as engine:
        free = await run_batch(engine, 0, 16)
        constrained = await run_batch(engine, 16, 0)
        assert await run_batch(engine, 16, 16) == free | constrained
    crowded = {"num_kv_blocks": 24, "max_num_scheduled_tokens": 24, "max_num_running_reqs": 20, "max_model_len": 128}
    for depth in (2, 3):
        async with make(steps_in_flight=depth, **crowded) as engine:
            assert await run_batch(engine, 16, 16) == free | constrained
            assert engine.stats().num_preemptions > 0
            engine.check()


async def test_others_stream_on_while_bad_and_busy_grammars_end_by_their_limits(anyio_backend):
    slow: dict = {"type": "integer"}
    for level in range(11):
        slow = {"anyOf": [{"type": "array", "items": slow}, {"type": "object", "properties": {f"p{level}": slow}}]}
    large = {"type": "object", "properties": {f"p{number}": {"type": "integer"} for number in range(2000)}}
    bad = [
        (StructuredOutput(json_schema=slow), r"more than 2\.0 s|memory"),
        (StructuredOutput(json_schema=large), r"more than 2\.0 s|memory"),
        (StructuredOutput(json_schema='{"items":' * 3000 + "{}" + "}" * 3000), "nested too deep|too deep|memory"),
        (StructuredOutput(regex="("), "structured_output.regex"),
    ]
    async with make(grammars=GrammarConfig(compile_seconds=2.0, compile_memory=512 << 20)) as engine:
        streams = [
            engine.generate(f"{number}. A story:", SamplingParams(temperature=0, max_tokens=24, ignore_eos=True))
            for number in range(16)
        ]
        failing = [engine.generate("x", SamplingParams(structured_output=structured)) for structured, _ in bad]
        many = [
            engine.generate(
                "x",
                SamplingParams(
                    max_tokens=8,
                    structured_output=StructuredOutput(json_schema={"type": "integer", "minimum": number}),
                ),
            )
            for number in range(200)
        ]
        with pytest.raises(InvalidRequestError, match=r"json_schema has \d+ bytes, limit is 262144"):
            engine.generate("x", SamplingParams(structured_output=StructuredOutput(json_schema={"a": "b" * 2**20})))
        for stream in streams:
            assert sum([len(output.outputs[0].token_ids) async for output in stream]) == 24
        for stream, (_, message) in zip(failing, bad, strict=True):
            with pytest.raises(InvalidRequestError, match=message):
                await anext(stream)
        for stream in many:
            async for _ in stream:
                pass
        engine.check()
        assert engine.stats().num_deferred == 0


async def test_the_example_gives_an_instance_of_its_class(anyio_backend):
    example = Path(__file__).parents[2] / "examples" / "structured_json.py"
    done = await anyio.run_process([sys.executable, str(example)])
    assert b"Person(name=" in done.stdout
