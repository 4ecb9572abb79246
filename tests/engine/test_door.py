"""What users pass is checked in one place, named in the error, and the caller's no longer once it is in."""

import numpy as np
import pytest
from toy_engine import PROMPT, greedy, idle, make

from callboard import ConfigError, EngineConfig, InvalidRequestError, SamplingParams
from callboard.runner.toy_model import toy_tokens

HALF = "\ud83d"  # half of a surrogate pair


async def test_parameters_in_a_dict_are_refused_by_what_is_needed():
    async with make() as engine:
        for call in (engine.generate, engine.complete):
            with pytest.raises(InvalidRequestError, match="params is dict, needed is SamplingParams"):
                await call(PROMPT, {"max_tokens": 3})
        await idle(engine)


@pytest.mark.parametrize("prompt", [[[1, 2], [3, 4]], np.array([[1], [2]]), np.array([[1, 2]])], ids=str)
async def test_a_prompt_of_two_dimensions_is_refused(prompt):
    async with make() as engine:
        with pytest.raises(InvalidRequestError, match=r"prompt\[0\] is .*, needed is a token id"):
            engine.generate(prompt, greedy())


async def test_a_prompt_may_be_an_array_of_numbers():
    async with make() as engine:
        final = await engine.complete(np.array(PROMPT), greedy())
        assert final.outputs[0].token_ids == toy_tokens(PROMPT, 8, 100)


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        (PROMPT, {"cache_salt": f"s{HALF}"}, r"cache_salt\[1\] is"),
        (PROMPT, {"request_id": HALF}, r"request id\[0\] is"),
        (f"text {HALF}", {}, r"prompt\[5\] is"),
    ],
    ids=["cache_salt", "request_id", "prompt"],
)
async def test_half_of_a_surrogate_pair_is_refused_at_the_door_with_its_place(prompt, options: dict, message: str):
    async with make() as engine:
        with pytest.raises(InvalidRequestError, match=message):
            engine.generate(prompt, greedy(), **options)
        assert not engine.stats().num_waiting


async def test_lists_that_their_owner_changes_later_change_no_request():
    stops = [toy_tokens(PROMPT, 3, 100)[2]]
    params = greedy(stop_token_ids=stops)
    async with make() as engine:
        stream = engine.generate(PROMPT, params)
        stops.clear()
        assert [t async for o in stream for t in o.outputs[0].token_ids] == toy_tokens(PROMPT, 3, 100)
    assert (params.stop_token_ids, SamplingParams(stop=["a"]).stop) == ((params.stop_token_ids[0],), ("a",))


async def test_an_engine_may_be_left_twice():
    engine = make()
    async with engine:
        await engine.complete(PROMPT, greedy())
        await engine.__aexit__(None, None, None)
    await engine.__aexit__(None, None, None)


@pytest.mark.parametrize(
    ("name", "value", "needed"),
    [
        ("model", 5, "text or None"),
        ("dtype", None, "text"),
        ("enable_prefix_caching", "yes", "True or False"),
        ("enable_chunked_prefill", 1, "True or False"),
        ("watermark", "0.1", "a number"),
        ("stop_timeout", "5", "a number of seconds above 0"),
        ("stop_timeout", -1, "a number of seconds above 0"),
        ("steps_in_flight", 2.0, "a whole number is needed"),
        ("max_model_len", "long", "a whole number is needed"),
        ("num_kv_blocks", True, "a whole number is needed"),
        ("kv_load_failure", "retry", "'recompute' or 'fail'"),
        ("isolation", 3, "'thread' or 'process'"),
        ("policy", 7, "a name or an object with the methods of Policy"),
    ],
    ids=str,
)
def test_a_setting_of_a_wrong_type_is_refused_with_what_was_got_and_needed(name: str, value, needed: str):
    with pytest.raises(ConfigError) as caught:
        EngineConfig(**{name: value})
    assert str(caught.value).startswith(f"{name} is {value!r}")
    assert needed in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"request_id": 7}, "request id is 7, needed is text"),
        ({"request_id": ""}, "request id is '', needed is text that is not empty"),
        ({"priority": 0.5}, "priority is 0.5, needed is a whole number"),
        ({"priority": True}, "priority is True, needed is a whole number"),
        ({"cache_salt": 1}, "cache_salt is 1, needed is text or None"),
        ({"adapter": "tuned"}, "adapter='tuned' is not supported yet"),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_an_option_that_cannot_be_honoured_is_refused_by_name(options: dict, message: str):
    async with make() as engine:
        with pytest.raises(InvalidRequestError, match=message):
            engine.generate([1, 2], **options)
        assert not engine.stats().num_waiting
