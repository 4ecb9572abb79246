"""Constrained requests in an engine: whatever a step does to them, their texts stay the same and valid."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import jsonschema
import msgspec
import pytest
from anyio.lowlevel import checkpoint
from schemas import GRAMMARS, REGEXES, SCHEMAS
from small_engine import END, THOUGHT, complete_all, make, params

from callboard import (
    EngineConfig,
    EngineDeadError,
    GrammarCacheStatistics,
    GrammarStatistics,
    InvalidRequestError,
    NotBuiltError,
    RequestOutput,
    RunnerError,
    SamplingParams,
    StructuredOutput,
)
from callboard.pipeline.engine import Engine
from callboard.runner import GrammarConfig, SimulatedRunner


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One loop for all, since each engine starts a process that compiles, which takes seconds."""
    return "asyncio"


@pytest.fixture(scope="module")
async def shared(anyio_backend) -> AsyncIterator[Engine]:
    """An engine that several tests use."""
    async with make(steps_in_flight=3) as engine:
        yield engine
        engine.check()


FREE = 6
CONSTRAINTS = {
    "flat": {"json_schema": SCHEMAS["flat"]},
    "one of": {"json_schema": SCHEMAS["one of by a constant"]},
    "tuple": {"json_schema": SCHEMAS["tuple"]},
    "phone": {"regex": REGEXES[0]},
    "colour": {"regex": r"#[0-9a-f]{6}"},
    "move": {"grammar": GRAMMARS["move"][0]},
    "choice": {"choice": ["yes", "no", "perhaps"]},
}


def batch(structured: bool = True, free: bool = True) -> dict[str, tuple[str, SamplingParams]]:
    """Constrained and free requests that share a prefix."""
    wanted = {name: (f"shared prefix, {name}", params(**constraint)) for name, constraint in CONSTRAINTS.items()}
    others = {f"free {i}": (f"shared prefix, number {i}", params(30)) for i in range(FREE)}
    return (wanted if structured else {}) | (others if free else {})


Outcome = dict[str, tuple[list[int], str | None]]
_ALONE: Outcome = {}


def outcome(found: dict[str, RequestOutput]) -> Outcome:
    return {name: (out.outputs[0].token_ids, out.outputs[0].finish_reason) for name, out in found.items()}


async def alone() -> Outcome:
    """What each request gets with no other beside it, a step at a time; looked up once."""
    if not _ALONE:
        async with make(steps_in_flight=1, enable_prefix_caching=False) as engine:
            for name, asked in batch().items():
                _ALONE.update(outcome(await complete_all(engine, {name: asked})))
    return _ALONE


@pytest.mark.parametrize("depth", [1, 2, 3])
async def test_texts_do_not_depend_on_depth_chunks_preemption_or_cache(anyio_backend, depth):
    crowded = {"blocks": 40, "max_num_scheduled_tokens": 9, "long_prefill_token_threshold": 5}
    async with make(steps_in_flight=depth, **crowded) as engine:
        found = await complete_all(engine, batch())
        engine.check()
        assert engine.stats().num_preemptions > 0
    assert outcome(found) == await alone()
    jsonschema.validate(json.loads(found["flat"].text), SCHEMAS["flat"])
    assert re.fullmatch(REGEXES[0], found["phone"].text)
    assert found["choice"].text in CONSTRAINTS["choice"]["choice"]
    assert {found[name].outputs[0].finish_reason for name in CONSTRAINTS} == {"stop"}


async def test_free_requests_get_the_tokens_they_get_without_constrained_company(shared):
    free = await complete_all(shared, batch(structured=False))
    mixed = await complete_all(shared, batch())
    assert {name: outcome(mixed)[name] for name in free} == outcome(free)


async def test_completions_of_one_prompt_share_a_grammar_and_keep_apart(shared):
    asked = SamplingParams(temperature=0, n=3, max_tokens=60, structured_output=StructuredOutput(regex=r"\d{6}"))
    output = await shared.complete("count", asked)
    shared.check()
    assert [re.fullmatch(r"\d{6}", one.text) is not None for one in output.outputs] == [True] * 3


async def test_a_text_that_is_cut_by_its_length_is_the_beginning_of_the_whole(shared):
    whole = await shared.complete("p", params(json_schema=SCHEMAS["flat"]))
    cut = await shared.complete("p", params(5, json_schema=SCHEMAS["flat"]))
    assert cut.outputs[0].finish_reason == "length"
    assert whole.text.startswith(cut.text)


async def test_stop_strings_end_a_constrained_text_too(shared):
    asked = SamplingParams(
        temperature=0, max_tokens=50, stop=["-"], structured_output=StructuredOutput(regex=r"\d{3}-\d{4}")
    )
    output = await shared.complete("p", asked)
    assert re.fullmatch(r"\d{3}", output.text)
    again = await shared.complete("p", params(regex=r"\d{3}-\d{4}"), request_id="p")
    shared.check()
    assert re.fullmatch(r"\d{3}-\d{4}", again.text)


async def test_a_text_is_free_until_its_reasoning_ends(shared):
    # The toy model gives any token by chance, one of which ends the free part: some prompt comes to it.
    structured = StructuredOutput(regex=r"\d{4}", reasoning_end_token_id=THOUGHT)
    for number in range(200):
        asked = SamplingParams(temperature=0, max_tokens=390, structured_output=structured)
        output = (await shared.complete(f"think {number}", asked)).outputs[0]
        if THOUGHT in output.token_ids:
            break
    shared.check()
    place = output.token_ids.index(THOUGHT)
    assert END not in output.token_ids[: place + 1]
    assert output.finish_reason == "stop"
    answer = output.token_ids[place + 1 :]
    assert len(answer) == 5
    assert answer[-1] == END


BAD = {
    "no type": {"json_schema": {"type": "str"}},
    "no JSON": {"json_schema": "{"},
    "open bracket": {"regex": "["},
    "look-around": {"regex": "a(?=b)"},
    "no root": {"grammar": 'x ::= "a"'},
    "half a rule": {"grammar": ':== "x"'},
    "reference to nothing": {"json_schema": {"$ref": "#/nowhere"}},
    "reference to itself": {"json_schema": {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}},
    "not": {"json_schema": {"properties": {"a": {"not": {}}}}},
    "tag": {"structural_tag": {"type": "structural_tag", "format": {"type": "nope"}}},
}


async def test_a_bad_grammar_ends_its_own_request_with_its_reason_and_no_other(anyio_backend):
    async with make() as engine:
        good = batch()
        streams = {name: engine.generate("bad", params(**constraint)) for name, constraint in BAD.items()}
        found = await complete_all(engine, good)
        for stream in streams.values():
            with pytest.raises(InvalidRequestError, match=r"structured_output\.\w+ cannot be used: .*\(request req"):
                await anext(stream)
        assert len(found) == len(good)
        engine.check()
        stats = engine.stats()
        assert stats.grammar_cache.num_misses >= len(BAD)
        assert stats.grammar_cache.num_grammars == len(CONSTRAINTS)
        assert stats.num_deferred == 0


async def test_an_aborted_request_leaves_its_grammar_to_those_who_wait_for_the_same(shared):
    first = shared.generate("a", params(regex=r"\d{5}"))
    second = shared.generate("b", params(regex=r"\d{5}"))
    await first.aclose()
    text = "".join([output.text async for output in second])
    shared.check()
    assert re.fullmatch(r"\d{5}", text)


async def test_an_engine_may_stop_while_grammars_are_compiled(anyio_backend):
    async with make() as engine:
        stream = engine.generate("a", params(regex=r"\d{5}"))
        grammars = engine._parts.grammars._engine
        with anyio.fail_after(60):
            while grammars._pool is None or grammars._pool._process is None:
                await checkpoint()
        process = grammars._pool._process  # it imports what compiles, which takes a second
        assert engine.stats().num_deferred == 1
    assert process.poll() is not None
    assert grammars._pool._process is None
    assert [output.outputs[0].finish_reason async for output in stream] == ["abort"]


async def test_a_runner_that_ignores_masks_ends_the_request_and_the_audit_tells(anyio_backend):
    class Wild(SimulatedRunner):
        def compute(self, plan, masks=None):
            return super().compute(plan)

    runner = Wild(vocab_size=260, num_kv_blocks=64, block_size=4, max_model_len=100, eos_token_ids=(END,))
    tokenizer = make().tokenizer
    async with Engine(EngineConfig(block_size=4), runner=runner, tokenizer=tokenizer) as engine:
        with pytest.raises(RunnerError, match="the runner did not apply its mask"):
            await engine.complete("a", params(regex=r"\d{5}"))
        assert (await engine.complete("b", params(4))).outputs[0].finish_reason == "length"
        with pytest.raises(Exception, match="tokens were chosen that their grammars forbid"):
            engine.check()


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"ignore_eos": True}, "ignore_eos=True does not go together"),
        ({"min_tokens": 3}, "min_tokens=3 does not go together"),
        ({"bad_words_token_ids": [[5]]}, r"bad_words_token_ids=\(\(5,\),\) does not go together"),
        ({"structured_output": StructuredOutput(json_object=False)}, "json_object is False"),
        ({"structured_output": StructuredOutput(choice=[])}, "choice is"),
        ({"structured_output": StructuredOutput(regex="a" * 300_000)}, "has 300000 bytes, limit is 262144"),
        ({"structured_output": StructuredOutput(json_schema={"a": object()})}, "cannot be written as JSON"),
        ({"structured_output": StructuredOutput(regex="a", reasoning_end_token_id=END)}, "reasoning_end_token_id is 0"),
        ({"structured_output": StructuredOutput(regex="a", reasoning_end_token_id=999)}, "needed is a token below 260"),
    ],
)
async def test_what_can_never_be_honoured_is_refused_at_the_door(anyio_backend, asked, message):
    async with make() as engine:
        with pytest.raises(InvalidRequestError, match=message):
            engine.generate("a", SamplingParams(**{"structured_output": StructuredOutput(regex="a")} | asked))


async def test_a_thread_of_masks_that_was_ended_ends_the_engine_with_the_cause(anyio_backend):
    def leave() -> None:
        raise SystemExit(3)

    async with make() as engine:
        with pytest.raises(RunnerError, match="grammar masks was ended by SystemExit"):
            await engine._parts.grammars._thread.submit(leave)
        with pytest.raises(EngineDeadError, match="grammar masks was ended by SystemExit"):
            await engine.complete("a", params(choice=["a", "b"]))


async def test_the_engine_counts_masks_and_what_its_cache_was_good_for(anyio_backend):
    async with make() as engine:
        await engine.complete("a", params(4))
        stats = engine.stats()
        assert (stats.grammars, stats.grammar_cache) == (GrammarStatistics(), GrammarCacheStatistics())
        for _ in range(3):
            await engine.complete("a", params(regex=r"\d{5}"))
        stats = engine.stats()
        cache = stats.grammar_cache
        assert (cache.num_grammars, cache.num_hits, cache.num_misses) == (1, 2, 1)
        assert cache.num_bytes > 0
        # Five digits and the end; a request that has ended may be gone before its end is counted.
        assert stats.grammars.num_masks == 3 * 6
        assert 3 * 5 <= stats.grammars.num_tokens <= 3 * 6
        assert "grammar_cache: GrammarCacheStatistics(num_grammars=1" in str(stats)


async def test_without_a_vocabulary_a_constraint_is_refused(anyio_backend):
    async with Engine(EngineConfig(), runner=SimulatedRunner(eos_token_ids=(END,))) as engine:
        with pytest.raises(NotBuiltError, match="the engine has no tokenizer"):
            engine.generate([1], params(regex="a"))


async def test_what_takes_time_may_be_done_when_the_engine_starts(anyio_backend):
    async with make(grammars=GrammarConfig(preload=True)) as engine:
        assert engine._parts.grammars._engine._pool._process is not None
        assert (await engine.complete("p", params(choice=["yes"]))).text == "yes"


async def test_before_the_first_constraint_there_is_no_process_and_no_thread(anyio_backend):
    async with make() as engine:
        await engine.complete("b", params(3))
        assert engine._parts.grammars._engine._pool is None
        assert engine._parts.grammars._thread._thread is None


async def test_a_trace_shows_that_masks_are_made_while_their_step_is_under_way(tmp_path: Path):
    async with make() as engine:
        await engine.complete("warm", params(4, regex="[ab]{20}"))
        async with engine.trace(tmp_path / "trace.json"):
            output = await engine.complete("go", params(12, regex="[ab]{20}"))
    slices = msgspec.json.decode((tmp_path / "trace.json").read_bytes())["traceEvents"]
    tracks = {event["tid"]: event["args"]["name"] for event in slices if event["ph"] == "M" and event["tid"]}
    of = {
        track: {event["name"]: event for event in slices if event["ph"] == "X" and tracks[event["tid"]] == track}
        for track in ("device", "masks")
    }
    assert len(of["masks"]) == len(output.outputs[0].token_ids) == 12
    for name, mask in of["masks"].items():
        step = of["device"][name]
        assert step["ts"] <= mask["ts"]
        assert mask["ts"] + mask["dur"] <= step["ts"] + step["dur"]
        assert mask["args"]["requests"] == 1


class Text(str):
    """Text with something of its own, as numpy's is."""

    def __str__(self) -> str:
        return "not this"


async def test_text_of_a_class_of_its_own_is_a_constraint_like_any_and_takes_no_compilers_place(shared):
    for place in range(GrammarConfig().num_compilers + 1):
        for kind, text in (("regex", f"ab{place}"), ("grammar", f'root ::= "ab{place}"')):
            assert (await shared.complete("p", params(**{kind: Text(text)}))).text == f"ab{place}"
    assert (await shared.complete("p", params(regex="good"))).text == "good"


async def test_what_an_owner_does_to_a_constraint_afterwards_changes_no_request(shared):
    choice, schema = ["yes"], {"const": "yes"}
    asked = [params(choice=choice), params(json_schema=schema)]
    streams = [shared.generate("p", one) for one in asked]
    choice[:], schema["const"] = ["no"], "no"
    texts = ["".join([output.text async for output in stream]) for stream in streams]
    assert texts == ["yes", '"yes"']


async def test_the_error_of_one_of_several_completions_names_the_request_and_no_key(shared):
    asked = SamplingParams(n=2, structured_output=StructuredOutput(regex="("))
    with pytest.raises(InvalidRequestError, match=r"\(request mine\)$") as caught:
        await shared.complete("p", asked, request_id="mine")
    assert "\0" not in str(caught.value)
