"""Every field of the parameters refuses a value of a wrong type by name, before anything is held for it."""

from typing import Any

import msgspec
import pytest
from play import Play

from callboard.scheduler import Request, SamplingParams
from callboard.scheduler.errors import InvalidRequestError

STRANGE: list[Any] = [True, "x", 1.5, b"x", {"a": 1}, {"max_pattern_size": 3}, [{}], {1}, object(), SamplingParams]
NUMBERS = {"temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"}
FLAGS = {"ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "skip_reading_prefix_cache"}


def wrong(name: str) -> list[Any]:
    """What a field may not be."""
    taken = float if name in NUMBERS else bool if name in FLAGS else str if name == "stop" else None
    return [value for value in STRANGE if type(value) is not taken]


@pytest.mark.parametrize("name", SamplingParams.__struct_fields__)
def test_a_value_of_a_wrong_type_is_refused_by_the_name_of_its_field(name: str):
    for value in wrong(name):
        with pytest.raises(InvalidRequestError, match=rf"^{name}\b.* is ") as caught:
            SamplingParams(**{name: value})
        assert any(word in str(caught.value) for word in ("needed", "limits are", "known are"))


@pytest.mark.parametrize("name", ["top_k", "seed", "max_tokens", "temperature", "top_p", "n", "logprobs"])
def test_a_number_too_long_to_be_written_is_refused_like_any_other(name: str):
    with pytest.raises(InvalidRequestError, match=f"^{name} is a int that cannot be shown, the limits are"):
        SamplingParams(**{name: 10**5000})


@pytest.mark.parametrize(
    "broken",
    [
        {"prompt_token_ids": 5},
        {"prompt_token_ids": ["a"]},
        {"block_digests": 5},
        {"sampling_params": None},
        {"sampling_params": {"max_tokens": 5}},
        {"cache_salt": 5},
    ],
    ids=str,
)
def test_a_request_that_nobody_can_read_is_refused_and_nothing_is_kept_of_it(broken: dict[str, Any]):
    play = Play(caching=True)
    request = Request(request_id="a", prompt_token_ids=[1, 2, 3], sampling_params=SamplingParams())
    with pytest.raises(InvalidRequestError, match=r"\(request a\)$"):
        play.scheduler.add_request(msgspec.structs.replace(request, **broken))
    play.check()
    assert play.scheduler.num_requests == 0
    play.scheduler.add_request(request)
    assert play.plan().req_ids == ("a",)
