"""What can never be served is refused at the door, with both numbers, and costs nobody else anything."""

from typing import Any

import pytest
from play import Play, some

from callboard.scheduler import SamplingParams, SchedulerConfig, plan_step
from callboard.scheduler.errors import ConfigError, InvalidRequestError, MisuseError


def _assert_unharmed(play: Play) -> None:
    play.check()
    assert play.scheduler.num_unfinished == 0
    play.add("good", 5, max_tokens=1)
    assert play.step() == {"good": 5}
    assert play.last_plan.finished_req_ids == set()


def test_an_empty_prompt_is_refused():
    play = Play()
    with pytest.raises(InvalidRequestError, match=r"^prompt has no tokens, at least 1 is needed \(request a\)$"):
        play.add("a", [])
    _assert_unharmed(play)


def test_a_prompt_that_leaves_no_room_for_a_token_is_refused_with_both_numbers():
    play = Play(max_model_len=20)
    with pytest.raises(InvalidRequestError, match=r"^prompt has 20 tokens, limit is 19 \(request a\)$"):
        play.add("a", 20)
    _assert_unharmed(play)


def test_the_longest_permitted_prompt_gets_one_token():
    play = Play(max_model_len=20)
    play.add("a", 19)
    play.step()
    assert (play.tokens["a"], play.reason("a")) == ([7], "length")


def test_a_prompt_larger_than_the_pool_is_refused_and_the_next_is_served():
    play = Play(blocks=10)
    with pytest.raises(
        InvalidRequestError, match=r"^prompt has 200 tokens and needs 13 KV blocks, limit is 10 \(request large\)$"
    ):
        play.add("large", 200)
    play.add("small", 5)
    assert play.step() == {"small": 5}


@pytest.mark.parametrize("blocks", [1, 10])
def test_a_prompt_that_fills_the_pool_is_served(blocks: int):
    play = Play(blocks=blocks)
    play.add("a", 16 * blocks)
    assert play.step() == {"a": 16 * blocks}
    assert (play.tokens["a"], play.reason("a")) == ([7], "length")


def test_a_prompt_that_is_too_large_for_a_pool_of_unknown_size_fails_at_the_first_plan():
    play = Play(blocks=10, num_kv_blocks=None)
    play.add("large", 200)
    play.add("small", 5)
    assert play.step() == {"small": 5}
    assert play.reason("large") == "error"
    assert play.ends["large"].error == "prompt has 200 tokens and needs 13 KV blocks, limit is 10 (request large)"


def test_after_the_first_plan_the_size_of_the_pool_is_known_at_the_door():
    play = Play(blocks=10, num_kv_blocks=None)
    play.plan()
    with pytest.raises(InvalidRequestError, match="needs 13 KV blocks, limit is 10"):
        play.add("large", 200)


@pytest.mark.parametrize("token", [-1, 2**31, 2**63, 2**70])
def test_a_token_that_no_vocabulary_has_is_refused(token: int):
    play = Play(caching=True)
    with pytest.raises(
        InvalidRequestError, match=rf"prompt token is {token}, the limits are 0 and 2147483647 \(request a\)"
    ):
        play.add("a", [1, token, 2])
    _assert_unharmed(play)


@pytest.mark.parametrize("priority", ["high", None, 1.5, 2**63])
def test_a_priority_that_cannot_be_compared_is_refused_and_nobody_else_is_harmed(priority: Any):
    play = Play(policy="priority")
    play.add("good", 5)
    with pytest.raises(InvalidRequestError, match=r"^priority is "):
        play.add("a", 5, priority=priority)
    play.check()
    assert play.step() == {"good": 5}


def test_an_answer_to_a_refused_request_leaves_with_the_next_outputs():
    play = Play()
    play.scheduler.reject("a", InvalidRequestError("no room"))
    play.take_notices()
    assert (play.reason("a"), play.ends["a"].error) == ("error", "no room")
    assert play.scheduler.take_outputs() is None


@pytest.mark.parametrize("value", [0, -1, 2**63, 1.5, True, "3"])
def test_max_tokens_is_a_whole_number_from_one_on(value: Any):
    with pytest.raises(InvalidRequestError, match=r"^max_tokens is "):
        SamplingParams(max_tokens=value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("top_k", -2),
        ("n", 0),
        ("min_tokens", -1),
        ("seed", 2**63),
        ("stop", ""),
        ("stop", [""]),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", 5),
        ("ignore_eos", "yes"),
        ("output_kind", "all"),
    ],
)
def test_a_sampling_parameter_out_of_range_is_refused_by_name(name: str, value: Any):
    with pytest.raises(InvalidRequestError, match=f"^{name} is "):
        SamplingParams(**{name: value})


def test_a_request_that_says_nothing_is_sampled_freely_for_sixteen_tokens():
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p, params.top_k, params.min_p) == (1, 1.0, 1.0, 0, 0.0)
    assert (params.max_tokens, params.min_tokens, params.ignore_eos, params.output_kind) == (16, 0, False, "delta")
    assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (0.0, 0.0, 1.0)
    given = [name for name in params.__struct_fields__ if getattr(params, name) is None]
    assert given == [
        "seed",
        "stop",
        "stop_token_ids",
        "logit_bias",
        "allowed_token_ids",
        "bad_words",
        "bad_words_token_ids",
        "logprobs",
        "prompt_logprobs",
        "repetition_detection",
        "structured_output",
    ]


def test_min_tokens_above_max_tokens_is_refused():
    with pytest.raises(InvalidRequestError, match="min_tokens is 6, above max_tokens 5"):
        SamplingParams(min_tokens=6, max_tokens=5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_num_running_reqs", 0),
        ("max_num_scheduled_tokens", 0),
        ("max_model_len", 0),
        ("block_size", 0),
        ("steps_in_flight", 0),
        ("num_kv_blocks", 0),
        ("long_prefill_token_threshold", -1),
        ("prefill_schedule_interval", 0),
        ("max_backfill", -1),
        ("watermark", 1.0),
        ("policy", "lifo"),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(name: str, value: Any):
    with pytest.raises(ConfigError, match=f"^{name} is "):
        Play(**{name: value})


@pytest.mark.parametrize("value", [True, 1.0, "16"])
def test_a_setting_of_another_type_is_refused(value: Any):
    with pytest.raises(ConfigError, match=r"^block_size is .*, a whole number is needed"):
        SchedulerConfig(block_size=value)


def test_an_encoder_cache_that_is_not_built_is_refused():
    play = Play()
    with pytest.raises(InvalidRequestError, match="encoder_cache must be None"):
        plan_step(play.scheduler, play.kv, encoder_cache=object())  # pyright: ignore[reportArgumentType]


def test_a_commit_without_a_proposal_is_an_error():
    play = Play()
    play.add("a", some(3))
    with pytest.raises(MisuseError, match="commit without propose"):
        play.scheduler.commit(play.kv.reserve(play.scheduler.take_releases()), 0.0)
