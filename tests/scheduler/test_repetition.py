"""Texts that go round in circles are ended, by those who ask for it."""

import numpy as np
import pytest
from play import Play

from callboard import InvalidRequestError
from callboard.scheduler import Finished, FinishReason, RepetitionDetection
from callboard.scheduler.repetition import watch_repetition

REPEATED = Finished(reason=FinishReason.REPETITION, stop_reason="repetition_detected")


def repeats(tokens: list[int], most: int, least: int, count: int) -> bool:
    """Whether the whole list, taken in token by token, ends in a repetition."""
    wanted = RepetitionDetection(max_pattern_size=most, min_pattern_size=least, min_count=count)
    watch = watch_repetition(wanted, 1_000)
    if watch is None:
        return False
    data = np.array(tokens, np.int32)
    return [watch.repeats(data[: end + 1]) for end in range(len(data))][-1]


def by_definition(tokens: list[int], most: int, least: int, count: int) -> bool:
    return any(
        len(tokens) >= size * count and tokens[-size * count :] == tokens[-size:] * count
        for size in range(max(least, 1), most + 1)
    )


def given(tokens: list[int], **options: int) -> tuple[Finished | None, list[int]]:
    """The end and the tokens of a request that detects patterns of 2 to 5 tokens, three times."""
    play = Play()
    wanted = RepetitionDetection(max_pattern_size=5, min_pattern_size=2, min_count=3)
    play.add("a", 10, repetition_detection=wanted, **options)
    for token in tokens:
        if "a" not in play.ends:
            play.step(token)
    return play.ends.get("a"), play.tokens["a"]


def test_a_pattern_that_comes_three_times_ends_its_request():
    assert given([10, 20, 10, 20, 10, 20, 30]) == (REPEATED, [10, 20, 10, 20, 10, 20])


def test_nothing_is_a_repetition_before_min_tokens():
    assert given([10, 20, 10, 20, 10, 20], min_tokens=10) == (None, [10, 20, 10, 20, 10, 20])


def test_what_went_on_below_min_tokens_counts_from_then_on():
    end, tokens = given([10, 20] * 6, min_tokens=9)
    assert (end, len(tokens)) == (REPEATED, 9)


def test_length_and_stop_tokens_come_before_a_repetition():
    assert given([10, 20] * 3, max_tokens=6)[0] == Finished(reason=FinishReason.LENGTH)
    stop = Finished(reason=FinishReason.STOP, stop_reason=20)
    assert given([30, 20, 10, 20, 10, 20], stop_token_ids=[20])[0] == stop


@pytest.mark.parametrize(
    ("most", "least", "count"), [(5, 2, 1), (5, 2, 0), (0, 0, 3), (2, 3, 2)], ids=["once", "zero", "off", "crossed"]
)
def test_settings_that_can_find_nothing_find_nothing(most: int, least: int, count: int):
    assert not repeats([7] * 30, most, least, count)


def test_a_least_size_of_zero_is_one():
    assert repeats([1, 7, 7, 7], most=4, least=0, count=3)
    assert not repeats([1, 7, 7, 7], most=4, least=2, count=3)


def test_only_the_end_of_the_text_is_looked_at():
    assert not repeats([1, 2, 1, 2, 1, 2, 3], most=2, least=1, count=3)


@pytest.mark.parametrize("seed", range(20))
def test_looking_at_each_token_once_finds_what_looking_at_all_finds(seed: int):
    chosen = np.random.default_rng(seed)
    tokens = chosen.integers(0, 2, 60).tolist()
    most, least, count = (int(chosen.integers(*limits)) for limits in ((1, 8), (0, 4), (2, 4)))
    for end in range(1, len(tokens) + 1):
        assert repeats(tokens[:end], most, least, count) == by_definition(tokens[:end], most, least, count)


def test_tokens_of_one_step_are_taken_in_one_by_one_and_those_after_the_end_are_cut():
    play = Play()
    play.add("a", 10, repetition_detection=RepetitionDetection(max_pattern_size=2, min_count=3))
    play.step({"a": [4, 4, 4, 4]})
    assert (play.ends["a"], play.tokens["a"]) == (REPEATED, [4, 4, 4])


def test_a_preempted_request_is_ended_where_it_would_have_been():
    play = Play(blocks=6, block_size=4)
    play.add("first", 11, max_tokens=9)
    play.add("second", 7, repetition_detection=RepetitionDetection(max_pattern_size=1, min_count=8))
    plans = play.until_done()
    assert any("second" in plan.preempted_req_ids for plan in plans)
    assert (play.ends["second"], play.tokens["second"]) == (REPEATED, [7] * 8)


def test_a_huge_pattern_size_costs_no_more_than_the_longest_text():
    play = Play(max_model_len=100)
    play.add("a", 10, repetition_detection=RepetitionDetection(max_pattern_size=2**31 - 1))
    play.steps(2)
    assert play.ends["a"] == REPEATED


def test_a_size_that_is_no_whole_number_is_refused_by_name():
    with pytest.raises(InvalidRequestError, match=r"repetition_detection\.min_count is -1, the limits are 0"):
        RepetitionDetection(min_count=-1)


@pytest.mark.parametrize("count", [1, 4, 5, 9])
def test_any_number_of_stop_tokens_is_looked_for(count: int):
    play = Play()
    play.add("a", 10, stop_token_ids=list(range(20, 20 + count)))
    play.add("b", 10, stop_token_ids=[50])
    play.step({"a": 19, "b": 20})
    play.step({"a": 19 + count, "b": 20})
    assert play.ends == {"a": Finished(reason=FinishReason.STOP, stop_reason=19 + count)}


def test_a_row_that_is_given_on_forgets_the_stop_tokens_of_its_last_holder():
    play = Play(max_num_running_reqs=2)
    play.add("other", 10, stop_token_ids=[9])
    play.add("a", 10, stop_token_ids=[20, 21])
    play.step({"a": 20})
    play.add("b", 10)
    play.step(21)
    assert list(play.ends) == ["a"]
