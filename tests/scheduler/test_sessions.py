"""Texts that grow by several requests: what is kept between two inputs, and who may take it."""

from typing import Any

import pytest
from play import E, Play, ToyPlay

from callboard.scheduler.kv_groups import KVGroup

GROUPS = {"whole": (KVGroup(),), "windows": (KVGroup(), KVGroup(window=5)), "window": (KVGroup(window=3),)}


def keep(play: Play) -> int:
    """Blocks that parked sessions hold, once the KV cache has heard of all ends."""
    play.free_blocks()
    return play.kv.statistics().num_kept_blocks


def talk(play: ToyPlay, name: str, text: list[int], chunk: list[int], depth: int = 1, **options: Any) -> list[int]:
    """One input of session "s" to its end; returns the whole text then."""
    play.add(name, text + chunk, session="s", **options)
    play.until_done(depth)
    return text + chunk + play.tokens[name]


def test_the_next_input_computes_the_last_output_and_its_own_tokens():
    # The reference throws the last sampled token away: it continues [1, 2, 3, 10, 4, 5], with 2 tokens.
    play = Play(blocks=10)
    play.add("a", [1, 2, 3], session="s", max_tokens=2)
    play.step(10)
    play.step(11)
    assert (play.reason("a"), play.tokens["a"]) == ("length", [10, 11])
    assert (play.scheduler.num_unfinished, play.scheduler.statistics().num_parked) == (0, 1)
    play.add("b", [1, 2, 3, 10, 11, 4, 5], session="s")
    plan = play.plan()
    (new,) = plan.scheduled_new_reqs
    assert (new.num_computed_tokens, plan.num_scheduled_tokens) == (4, {"b": 3})
    assert (new.token_ids, new.num_prompt_tokens, new.resumed) == ([1, 2, 3, 10, 11, 4, 5], 7, False)
    assert play.scheduler.statistics().num_parked == 0


def test_a_parked_session_holds_its_blocks_and_no_row():
    play = Play(blocks=10, block_size=4, max_num_running_reqs=1)
    play.add("a", 6, session="s", max_tokens=1)
    play.step()
    assert (keep(play), play.scheduler.num_running) == (2, 0)
    play.add("other", 3, max_tokens=1)
    assert play.step() == {"other": 3}


def test_an_end_token_does_not_have_to_stay_in_the_text():
    play = Play(blocks=10)
    play.add("a", [1, 2, 3], session="s")
    play.step(10)
    play.step(E)
    play.add("b", [1, 2, 3, 10, 4], session="s")
    assert play.step() == {"b": 1}


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("groups", GROUPS)
def test_every_input_gets_the_tokens_that_its_text_gets_alone(groups: str, caching: bool, depth: int):
    play = ToyPlay(blocks=40, caching=caching, kv_groups=GROUPS[groups], steps_in_flight=depth)
    text: list[int] = []
    for number, size in enumerate([5, 1, 3, 4, 2, 7]):
        text = talk(play, f"r{number}", text, [number + 1] * size, depth, max_tokens=3 + number % 2)
        play.add(f"other{number}", 5, max_tokens=4)
    play.until_done(depth)
    play.assert_as_alone()
    play.scheduler.close_session("s")
    assert play.free_blocks() == 40


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("groups", GROUPS)
def test_a_text_that_goes_on_from_before_its_end_is_not_written_into_what_others_find(
    groups: str, caching: bool, depth: int
):
    play = ToyPlay(blocks=40, caching=caching, kv_groups=GROUPS[groups], steps_in_flight=depth)
    text = talk(play, "first", [], [1, 2, 3, 4, 5, 6, 7], depth, max_tokens=6)
    for number, cut in enumerate([12, 10, 9, 7, 3, 0]):
        play.add(f"witness{number}", text, max_tokens=3)
        talk(play, f"r{number}", text[:cut], [20 + number], depth, max_tokens=5)
        play.until_done(depth)
    play.assert_as_alone()
    play.scheduler.close_session("s")
    assert play.free_blocks() == 40


def test_a_running_request_takes_the_blocks_of_a_parked_session_before_it_preempts():
    play = ToyPlay(blocks=6)
    text = talk(play, "a", [], [1] * 11, max_tokens=1)
    assert keep(play) == 3
    play.add("b", 11, max_tokens=8)
    play.add("c", 1, max_tokens=1)
    play.until_done()
    assert play.scheduler.statistics().num_preemptions == 0
    assert keep(play) == 1, "from its tail, and no more than was needed"
    play.add("a2", [*text, 9], session="s", max_tokens=3)
    assert play.step() == {"a2": 13 - 4}
    play.until_done()
    play.assert_as_alone()


def test_the_head_of_the_queue_takes_blocks_of_the_longest_parked_session_first():
    play = Play(blocks=4, block_size=4)
    for name in ("old", "young"):
        play.add(name, 8, session=name, max_tokens=1)
        play.step()
    play.add("head", 5, max_tokens=1)
    assert play.step() == {"head": 5}
    play.free_blocks()
    assert play.kv.statistics().num_kept_blocks == 2
    play.add("young again", [*range(1008, 1016), 7, 1], session="young")
    assert play.step() == {"young again": 2}


@pytest.mark.parametrize("caching", [False, True])
def test_a_forced_reset_takes_what_parked_sessions_hold(caching: bool):
    play = ToyPlay(blocks=10, caching=caching)
    text = talk(play, "a", [], [1] * 9, max_tokens=2)
    assert keep(play) == 3
    play.scheduler.preempt_all()
    assert (keep(play), play.kv.reset_prefix_cache()) == (0, True)
    play.add("b", [*text, 5], session="s", max_tokens=2)
    assert play.step() == {"b": 12}
    play.until_done()
    play.assert_as_alone()


def test_a_session_that_is_preempted_as_it_stops_computes_again_and_parks_then():
    play = ToyPlay(blocks=20, steps_in_flight=2)
    play.add("a", [1] * 10, session="s", max_tokens=2)
    first = play.plan()
    play.apply(first)
    late = play.plan()
    play.scheduler.preempt_all()
    play.apply(late)
    assert "a" not in play.ends, "what the step under way gave is dropped"
    play.until_done()
    assert play.scheduler.statistics().num_parked == 1
    text = [1] * 10 + play.tokens["a"]
    talk(play, "b", text, [4], max_tokens=3)
    play.assert_as_alone()


def test_a_preempted_request_that_is_aborted_leaves_its_blocks_to_its_session():
    play = ToyPlay(blocks=4, max_num_running_reqs=2)
    play.add("other", 7, max_tokens=9)
    play.add("a", [1] * 7, session="s", max_tokens=9)
    while not play.scheduler.statistics().num_preemptions:
        play.step()
    assert play.waiting() == ["a"]
    text = [1] * 7 + play.tokens["a"]
    play.scheduler.abort("a")
    play.take_notices()
    assert play.scheduler.statistics().num_parked == 1
    play.until_done()
    talk(play, "b", text, [4], max_tokens=2)
    play.assert_as_alone()


def test_a_longer_cached_prefix_wins_over_what_the_session_has_kept():
    play = ToyPlay(blocks=20, caching=True)
    text = talk(play, "a", [], [1, 2, 3, 4, 5], max_tokens=2)
    longer = [*text, *range(10, 20)]
    play.add("other", longer, max_tokens=1)
    play.until_done()
    play.add("b", [*longer, 3], session="s", max_tokens=1)
    assert play.step() == {"b": 2}  # 16 of 18 tokens are cached, the session had 6
    play.assert_as_alone()
    assert keep(play) == 5


def test_a_request_that_is_never_admitted_leaves_the_session_as_it_was():
    play = ToyPlay(blocks=20)
    text = talk(play, "a", [], [1, 2, 3, 4, 5], max_tokens=2)
    play.add("b", [*text, 9], session="s")
    play.scheduler.abort("b")
    play.take_notices()
    play.add("c", [*text, 7], session="s", max_tokens=1)
    assert play.step() == {"c": 2}


@pytest.mark.parametrize("when", ["parked", "running", "waiting"])
def test_a_closed_session_keeps_nothing(when: str):
    play = ToyPlay(blocks=20)
    text = talk(play, "a", [], [1, 2, 3, 4, 5], max_tokens=2)
    if when != "parked":
        play.add("b", [*text, 9], session="s", max_tokens=3)
    if when == "running":
        play.step()
    play.scheduler.close_session("s")
    play.until_done()
    assert (play.free_blocks(), play.scheduler.statistics().num_parked) == (20, 0)
    play.assert_as_alone()


def test_two_requests_of_a_session_that_are_alive_at_once_keep_the_last_ones_text():
    play = ToyPlay(blocks=20)
    play.add("a", [1, 2, 3], session="s", max_tokens=2)
    play.add("b", [1, 2, 3, 4, 5, 6], session="s", max_tokens=4)
    play.until_done()
    play.assert_as_alone()
    assert (play.scheduler.statistics().num_parked, keep(play)) == (1, 3)


def test_a_preempted_request_goes_on_from_its_own_blocks_and_leaves_those_of_its_session():
    play = ToyPlay(blocks=20, policy="priority", max_num_running_reqs=1)
    play.add("a", [1, 2, 3], session="s", max_tokens=6, priority=5)
    play.step()
    play.scheduler.preempt_all()
    play.add("b", [4, 5], session="s", max_tokens=1)
    assert [play.step(), play.step()] == [{"b": 2}, {"a": 4}]
    assert play.scheduler.statistics().num_parked == 1
    play.scheduler.close_session("s")
    play.until_done()
    play.assert_as_alone()
    assert play.free_blocks() == 20
