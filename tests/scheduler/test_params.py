"""Sampling parameters: names that are misspelt, and limits of what is looked for in every text."""

import msgspec
import pytest

from callboard import InvalidRequestError, RepetitionDetection, SamplingParams, StructuredOutput


@pytest.mark.parametrize(
    ("kind", "given", "meant"),
    [
        (SamplingParams, "max_token", "max_tokens"),
        (SamplingParams, "temprature", "temperature"),
        (StructuredOutput, "json_shema", "json_schema"),
        (RepetitionDetection, "min_counts", "min_count"),
    ],
)
def test_a_misspelt_parameter_is_refused_with_the_one_that_is_meant(kind: type, given: str, meant: str):
    with pytest.raises(InvalidRequestError, match=f"^unknown parameter '{given}', did you mean '{meant}'\\?$"):
        kind(**{given: 3})


def test_a_parameter_like_no_other_is_refused_with_all_that_are_known():
    with pytest.raises(InvalidRequestError, match=r"^unknown parameter 'wings', known are n, temperature, top_p, .*"):
        SamplingParams(wings=2)


def test_parameters_are_encoded_and_decoded_with_their_names_checked():
    params = SamplingParams(stop=["a"], seed=3)
    assert msgspec.json.decode(msgspec.json.encode(params), type=SamplingParams) == params
    assert msgspec.structs.replace(params, n=2).n == 2


@pytest.mark.parametrize(
    ("stop", "told"),
    [
        ("a" * 65_537, "stop has 65537 characters, limit is 65536 for all strings together"),
        (["ab" * 20_000, "c" * 30_000], "stop has 70000 characters, limit is 65536 for all strings together"),
        (["a"] * 1025, "stop has 1025 strings, limit is 1024"),
    ],
)
def test_stop_strings_have_a_limit_in_number_and_length(stop: str | list[str], told: str):
    with pytest.raises(InvalidRequestError, match=f"^{told}$"):
        SamplingParams(stop=stop)


def test_stop_strings_at_the_limit_are_taken():
    assert len(SamplingParams(stop=["a" * 64] * 1024).stop_strings) == 1024
