"""What a runner does not honour and what a model does not have is refused at the door, by name."""

from typing import Any

import pytest
from toy_engine import PROMPT, greedy, idle, make

from callboard import EngineConfig, InvalidRequestError, NotBuiltError, SamplingParams
from callboard.pipeline.param_limits import ParamLimits
from callboard.runner import RunnerInfo

EVERYTHING = frozenset(
    {"sampling", "penalties", "logit_bias", "allowed_token_ids", "bad_words", "logprobs", "prompt_logprobs"}
)


def limits(vocab_size: int = 64, *, tokenizer: bool = True, max_logprobs: int = 20) -> ParamLimits:
    info = RunnerInfo(vocab_size=vocab_size, max_model_len=100, num_kv_blocks=10, capabilities=EVERYTHING)
    return ParamLimits(info, "SomeRunner", max_logprobs=max_logprobs, has_tokenizer=tokenizer)


@pytest.mark.parametrize(
    ("params", "capability"),
    [
        ({"top_p": 0.9}, "sampling"),
        ({"top_k": 5}, "sampling"),
        ({"min_p": 0.1}, "sampling"),
        ({"presence_penalty": 0.5}, "penalties"),
        ({"frequency_penalty": -0.5}, "penalties"),
        ({"repetition_penalty": 1.1}, "penalties"),
        ({"logit_bias": {1: 1.0}}, "logit_bias"),
        ({"allowed_token_ids": [1]}, "allowed_token_ids"),
        ({"bad_words": ["x"]}, "bad_words"),
        ({"bad_words_token_ids": [[1, 2]]}, "bad_words"),
        ({"logprobs": 0}, "logprobs"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
    ],
    ids=str,
)
async def test_what_the_runner_would_ignore_is_refused(params: dict[str, Any], capability: str):
    async with make() as engine:
        (name,) = params
        message = rf"^{name}=.* needs '{capability}', which SimulatedRunner cannot do \(request request-0\)"
        with pytest.raises(NotBuiltError, match=message):
            engine.generate(PROMPT, SamplingParams(**params))
        await idle(engine)


async def test_values_that_ask_for_nothing_are_taken_by_any_runner():
    nothing = {"top_p": 1, "top_k": -1, "min_p": 0, "presence_penalty": 0, "repetition_penalty": 1.0, "logit_bias": {}}
    async with make() as engine:
        final = await engine.complete(PROMPT, greedy(**nothing, bad_words=[], bad_words_token_ids=[]))
        assert final.finished


@pytest.mark.parametrize("token", [64, 69, 2**31 - 1])
@pytest.mark.parametrize(
    ("name", "make_params"),
    [
        ("stop_token_ids", lambda token: {"stop_token_ids": [1, token]}),
        ("logit_bias token", lambda token: {"logit_bias": {token: 1.0}}),
        ("allowed_token_ids", lambda token: {"allowed_token_ids": [token, 3]}),
        ("bad_words_token_ids", lambda token: {"bad_words_token_ids": [[1], [2, token]]}),
    ],
)
def test_a_token_beyond_the_logits_is_refused_with_both_limits(name: str, make_params: Any, token: int):
    with pytest.raises(InvalidRequestError, match=rf"^{name} is {token}, limits are 0 and 63 \(request r7\)"):
        limits().check(SamplingParams(**make_params(token)), "r7")
    limits().check(SamplingParams(**make_params(63)), "r7")


@pytest.mark.parametrize("name", ["stop_token_ids", "allowed_token_ids"])
@pytest.mark.parametrize("token", [-1, 2**31, 1.0, True, "1"])
def test_what_is_no_token_id_is_refused(name: str, token: Any):
    with pytest.raises(InvalidRequestError, match=rf"^{name} is "):
        SamplingParams(**{name: [token]})


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"logit_bias": {-1: 1.0}}, "logit_bias token is -1"),
        ({"logit_bias": {1: 100.5}}, r"logit_bias\[1\] is 100.5"),
        ({"logit_bias": {1: float("nan")}}, r"logit_bias\[1\] is nan"),
        ({"logit_bias": [1]}, r"logit_bias is \[1\], needed is a dict"),
        ({"allowed_token_ids": []}, "allowed_token_ids is empty"),
        ({"allowed_token_ids": 3}, "allowed_token_ids is 3, needed is a list"),
        ({"bad_words": [""]}, "bad_words is "),
        ({"bad_words": [" "]}, "bad_words is "),
        ({"bad_words": "word"}, "bad_words is 'word'"),
        ({"bad_words_token_ids": [[]]}, "bad_words_token_ids is empty"),
        ({"bad_words_token_ids": [[-1]]}, "bad_words_token_ids is -1"),
        ({"presence_penalty": 2.1}, "presence_penalty is 2.1"),
        ({"frequency_penalty": -2.1}, "frequency_penalty is -2.1"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0"),
        ({"repetition_penalty": "1"}, "repetition_penalty is '1'"),
        ({"min_p": 1.1}, "min_p is 1.1"),
        ({"logprobs": -2}, "logprobs is -2"),
        ({"prompt_logprobs": 1.0}, "prompt_logprobs is 1.0"),
    ],
)
def test_parameters_of_logits_out_of_range_are_refused_by_name(params: dict[str, Any], message: str):
    with pytest.raises(InvalidRequestError, match=f"^{message}"):
        SamplingParams(**params)


def test_bad_words_without_a_tokenizer_are_refused():
    with pytest.raises(InvalidRequestError, match=r"bad_words needs a tokenizer.*bad_words_token_ids \(request r7\)"):
        limits(tokenizer=False).check(SamplingParams(bad_words=["x"]), "r7")


def test_the_limit_of_log_probabilities_is_a_setting():
    assert EngineConfig().max_logprobs == 20
    limits(max_logprobs=3).check(SamplingParams(logprobs=3), "r7")
    with pytest.raises(InvalidRequestError, match=r"logprobs is 4, limit is 3"):
        limits(max_logprobs=3).check(SamplingParams(logprobs=4), "r7")
    limits(max_logprobs=-1).check(SamplingParams(logprobs=-1, prompt_logprobs=64), "r7")


def test_lists_and_dicts_are_copied():
    bias, allowed, words = {1: 1.0}, [1], [[1, 2]]
    params = SamplingParams(logit_bias=bias, allowed_token_ids=allowed, bad_words_token_ids=words)
    bias.clear(), allowed.clear(), words[0].clear()
    assert (params.logit_bias, params.allowed_token_ids, params.bad_words_token_ids) == ({1: 1.0}, (1,), ((1, 2),))
