"""Stop rules, minimum tokens and repetition, as users of the engine meet them."""

import re
from asyncio import CancelledError
from pathlib import Path
from typing import Any

import pytest

from callboard import ConfigError, Engine, EngineConfig, RequestFailedError, SamplingParams
from callboard.runner import SimulatedRunner
from callboard.runner.toy_model import toy_tokens
from callboard.scheduler import Finished, FinishReason, RepetitionDetection, Request

PROMPT = [1, 2, 3, 4, 5]
EOS = tuple(range(0, 20, 2))  # half of a small vocabulary: texts end early


def make(*, eos: tuple[int, ...] = (), **options) -> Engine:
    runner = SimulatedRunner(vocab_size=20, num_kv_blocks=64, block_size=4, max_model_len=100, eos_token_ids=eos)
    return Engine(EngineConfig(block_size=4), runner=runner, **options)


@pytest.mark.parametrize("minimum", [0, 1, 7, 20])
async def test_no_end_token_is_chosen_before_the_minimum(minimum: int):
    async with make(eos=EOS) as engine:
        output = await engine.complete(PROMPT, SamplingParams(max_tokens=40, min_tokens=minimum))
    tokens = output.outputs[0].token_ids
    assert tokens == toy_tokens(PROMPT, 40, 20, eos=EOS, min_tokens=minimum)
    assert not set(tokens[:minimum]).intersection(EOS)
    assert len(tokens) > minimum
    assert tokens[-1] in EOS


async def test_no_stop_token_is_chosen_before_the_minimum():
    async with make() as engine:
        params = SamplingParams(max_tokens=40, min_tokens=9, stop_token_ids=EOS)
        output = await engine.complete(PROMPT, params)
    assert output.outputs[0].token_ids == toy_tokens(PROMPT, 40, 20, eos=EOS, min_tokens=9)


async def test_an_end_token_that_is_ignored_may_come_at_any_time():
    async with make(eos=EOS) as engine:
        output = await engine.complete(PROMPT, SamplingParams(max_tokens=12, min_tokens=12, ignore_eos=True))
    assert output.outputs[0].token_ids == toy_tokens(PROMPT, 12, 20)


class Until:
    """Ends every request at the first token above a bound."""

    def applies_to(self, request: Request) -> bool:
        return True

    def check(self, request: Request, output_token_ids) -> Finished | None:
        high = int(output_token_ids[-1]) > 15
        return Finished(reason=FinishReason.STOP, stop_reason="high enough") if high else None


async def test_a_rule_of_the_user_ends_requests_and_says_why():
    async with make(stop_rules=[Until()]) as engine:
        completion = (await engine.complete(PROMPT, SamplingParams(max_tokens=40))).outputs[0]
    assert completion.token_ids == toy_tokens(PROMPT, 40, 20, eos=range(16, 20))
    assert (completion.finish_reason, completion.stop_reason) == ("stop", "high enough")


class FailsFor(Until):
    """Fails at one place for requests whose prompt begins with 9."""

    def __init__(self, place: str, answer: object = None) -> None:
        self._place, self._answer = place, answer

    def applies_to(self, request: Request) -> bool:
        if self._place == "applies_to" and request.prompt_token_ids[0] == 9:
            self._fail()
        return request.prompt_token_ids[0] == 9

    def check(self, request: Request, output_token_ids):
        if self._place == "check":
            self._fail()
        return self._answer

    def _fail(self) -> None:
        raise self._answer if isinstance(self._answer, BaseException) else ValueError("out of order")


class Abandoned(BaseException):
    """What a library throws through everybody's ``except Exception``."""


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (FailsFor("applies_to"), "out of order"),
        (FailsFor("check"), "out of order"),
        (FailsFor("applies_to", CancelledError("lost")), "a stop rule failed: CancelledError('lost')"),
        (FailsFor("check", CancelledError("lost")), "a stop rule failed: CancelledError('lost')"),
        (FailsFor("check", Abandoned("lost")), "a stop rule failed: Abandoned('lost')"),
        (FailsFor("answer", 0), "check gave 0, needed is None or Finished"),
        (FailsFor("answer", Finished(reason=FinishReason.STOP, stop_reason=[])), "needed are a stop_reason of int or"),
        (FailsFor("answer", True), "check gave True, needed is None or Finished"),
        (FailsFor("answer", Finished(reason="enough")), "needed is None or Finished with a reason of FinishReason"),
    ],
)
async def test_a_rule_that_fails_ends_the_request_it_failed_for_and_no_other(rule: FailsFor, said: str):
    async with make(stop_rules=[rule]) as engine:
        others = engine.generate(PROMPT, SamplingParams(max_tokens=30))
        with pytest.raises(RequestFailedError, match=re.escape(said)):
            await engine.complete([9, 1, 2], SamplingParams(max_tokens=30), request_id="mine")
        tokens = [token async for output in others for token in output.outputs[0].token_ids]
        assert tokens == toy_tokens(PROMPT, 30, 20)
        engine.check()


@pytest.mark.parametrize("reason", ["stop", "length", "abort", "repetition"])
async def test_a_reason_in_plain_text_will_do(reason: str):
    end = Finished(reason=reason, stop_reason="mine")  # pyright: ignore[reportArgumentType]
    async with make(stop_rules=[FailsFor("answer", end)]) as engine:
        completion = (await engine.complete([9, 1, 2], SamplingParams(max_tokens=30))).outputs[0]
        assert (completion.finish_reason, completion.stop_reason) == (reason, "mine")
        engine.check()


@pytest.mark.parametrize("fault", ["bogus", [1], "runner"])
async def test_an_error_that_a_rule_gives_is_its_own_fault_whatever_it_says(fault: Any):
    end = Finished(reason=FinishReason.ERROR, error="enough", fault=fault)
    async with make(stop_rules=[FailsFor("answer", end)]) as engine:
        with pytest.raises(RequestFailedError, match="enough"):
            await engine.complete([9, 1, 2], SamplingParams(max_tokens=30))
        assert (await engine.complete(PROMPT, SamplingParams(max_tokens=3))).finished
        engine.check()


def test_rules_that_are_no_list_are_refused_when_the_engine_is_made():
    with pytest.raises(ConfigError, match=r"stop_rules is .*, needed is a list"):
        make(stop_rules=Until())


def test_a_rule_that_is_none_is_refused_when_the_engine_is_made():
    with pytest.raises(ConfigError, match=re.escape("a stop rule is 7, needed is an object with the methods of")):
        make(stop_rules=[7])


async def test_a_text_that_goes_round_in_circles_is_ended_with_its_reason():
    runner = SimulatedRunner(vocab_size=1, num_kv_blocks=64, block_size=4, max_model_len=100)
    params = SamplingParams(max_tokens=40, repetition_detection=RepetitionDetection(max_pattern_size=3, min_count=5))
    async with Engine(EngineConfig(block_size=4), runner=runner) as engine:
        completion = (await engine.complete([0, 0, 0], params)).outputs[0]
    assert completion.token_ids == [0] * 5
    assert (completion.finish_reason, completion.stop_reason) == ("repetition", "repetition_detected")


def test_the_example_of_a_stop_rule_is_short():
    example = Path(__file__).parents[2] / "examples" / "stop_rule.py"
    assert len(example.read_text().splitlines()) < 60
