"""Blocks that are found again: how much of a prompt is computed, and by whom a block is shared."""

from typing import Any

import pytest
from play import E, Play, ToyPlay, some

from callboard import SamplingParams


def _second_run(tokens: list[int], again: list[int] | None = None) -> tuple[int, int]:
    """Cached and planned tokens of a prompt after one like it has ended."""
    play = Play(caching=True)
    play.add("first", tokens, max_tokens=1)
    play.step()
    play.add("second", again or tokens)
    plan = play.plan()
    return plan.scheduled_new_reqs[0].num_computed_tokens, plan.total_num_scheduled_tokens


@pytest.mark.parametrize(("length", "hit", "planned"), [(53, 48, 5), (49, 48, 1), (17, 16, 1)])
def test_all_full_blocks_of_a_prompt_are_found_again(length: int, hit: int, planned: int):
    assert _second_run(some(length)) == (hit, planned)


@pytest.mark.parametrize(("length", "hit", "planned"), [(48, 47, 1), (16, 15, 1)])
def test_of_a_prompt_of_full_blocks_the_last_token_is_computed_again(length: int, hit: int, planned: int):
    assert _second_run(some(length)) == (hit, planned)


@pytest.mark.parametrize("length", [4, 7, 8, 9])
def test_a_prompt_gets_the_same_tokens_from_the_cache_as_without(length: int):
    play = ToyPlay(blocks=8, caching=True)
    for name in ("cold", "warm"):
        play.add(name, some(length), max_tokens=1)
        play.step()
    assert play.last_outputs.cached == {"warm": min(length // 4 * 4, length - 1)}
    assert play.tokens["cold"] == play.tokens["warm"] == play.alone("cold")


def test_a_prompt_that_differs_early_shares_nothing_after_that():
    assert _second_run(some(64), [*some(20), 999, *some(43, start=21)]) == (16, 48)


def test_a_prompt_that_only_begins_later_in_another_shares_nothing():
    assert _second_run(some(64), some(40, start=16)) == (0, 40)


def test_who_runs_does_not_look_up_again_when_another_has_filled_its_next_block():
    play = Play(caching=True, max_num_scheduled_tokens=32, long_prefill_token_threshold=16)
    play.add("a", some(49))
    play.add("b", some(49))
    assert play.steps(3) == [{"a": 16, "b": 16}, {"a": 16, "b": 16}, {"a": 16, "b": 1}]  # b begins a block ahead
    assert play.kv.statistics().prefix_queries == 2 * 49


def test_generated_tokens_are_shared():
    play = Play(caching=True)
    play.add("first", some(30), max_tokens=4)
    play.steps(4)
    play.add("second", some(30) + [7] * 10)
    assert play.step() == {"second": 8}


def test_generated_tokens_that_differ_are_not_shared():
    play = Play(caching=True)
    play.add("first", some(30), max_tokens=4)
    for token in (7, 8, 7, 7):
        play.step(token)
    play.add("second", some(30) + [7] * 10)
    assert play.step() == {"second": 24}


def test_the_next_turns_of_five_conversations_compute_what_is_new():
    play = Play(caching=True)
    for index in range(5):
        play.add(f"turn 1 of {index}", some(100, start=1000 * index), max_tokens=200)
    play.steps(200)
    for index in range(5):
        play.add(f"turn 2 of {index}", some(100, start=1000 * index) + [7] * 200)
    assert list(play.step().values()) == [12] * 5


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_generated_tokens_are_shared_after_steps_that_overlapped(depth: int):
    play = Play(caching=True)
    play.add("first", some(30), max_tokens=4)
    play.until_done(depth)
    play.add("second", some(30) + [7] * 10)
    assert play.step() == {"second": 8}


def test_a_block_is_found_in_the_very_step_that_fills_it():
    play = ToyPlay(blocks=20, block_size=16, caching=True, max_num_scheduled_tokens=20, max_model_len=100)
    play.add("A", some(50), max_tokens=3)
    play.add("B", some(50), max_tokens=3)
    assert play.steps(3) == [{"A": 20}, {"A": 20}, {"A": 10, "B": 2}]
    play.until_done()
    play.assert_as_alone()


def test_two_equal_prompts_of_one_step_share_blocks():
    play = ToyPlay(blocks=8, caching=True)
    play.add("A", some(9), max_tokens=4)
    play.add("B", some(9), max_tokens=4)
    assert play.step() == {"A": 9, "B": 1}
    assert play.kv.block_ids("A")[:2] == play.kv.block_ids("B")[:2]
    play.until_done()
    play.assert_as_alone()


@pytest.mark.parametrize("length", [8, 9, 16, 23])
def test_chunks_and_company_do_not_change_a_text_that_is_shared(length: int):
    play = ToyPlay(blocks=12, caching=True, max_num_scheduled_tokens=5)
    for name in "abcd":
        play.add(name, some(length), max_tokens=5)
    play.until_done(depth=2)
    play.assert_as_alone()
    assert play.kv.statistics().prefix_hits > 0


def _planned_after(first: dict[str, Any], second: dict[str, Any]) -> int:
    play = Play(caching=True)
    play.add("first", some(40), max_tokens=1, **first)
    play.step()
    play.add("second", some(40), **second)
    return play.step()["second"]


@pytest.mark.parametrize(("salt", "planned"), [("x", 8), ("y", 40), (None, 40), ("", 40)])
def test_a_salt_finds_only_what_was_written_under_it(salt: str | None, planned: int):
    assert _planned_after({"cache_salt": "x"}, {"cache_salt": salt}) == planned


@pytest.mark.parametrize(("adapter", "planned"), [("x", 8), ("y", 40), (None, 40)])
def test_an_adapter_finds_only_what_was_computed_with_it(adapter: str | None, planned: int):
    assert _planned_after({"adapter": "x"}, {"adapter": adapter}) == planned


def test_a_salt_that_is_called_like_an_adapter_finds_nothing_of_it():
    assert _planned_after({"adapter": "x"}, {"cache_salt": "x"}) == 40


def test_without_caching_nothing_is_looked_up_found_or_kept():
    play = Play()
    for name in ("first", "second"):
        play.add(name, some(40), max_tokens=1)
        assert play.step() == {name: 40}
    counts = play.kv.statistics()
    assert (counts.prefix_queries, counts.prefix_hits, counts.num_cached_blocks) == (0, 0, 0)


def test_hits_are_counted_in_tokens():
    play = Play(caching=True)
    for name in ("first", "second"):
        play.add(name, some(40), max_tokens=1)
        play.step()
    counts = play.kv.statistics()
    assert (counts.prefix_queries, counts.prefix_hits) == (80, 32)


def test_a_refused_look_up_is_not_counted():
    play = Play(caching=True, blocks=4)
    play.add("A", 33)
    play.step()
    play.add("B", 40)
    play.steps(5)
    assert play.kv.statistics().prefix_queries == 33


def test_the_look_up_of_a_victim_is_counted_apart():
    play = Play(caching=True, blocks=4, max_num_scheduled_tokens=64)
    play.add("A", some(32), max_tokens=2)
    play.add("B", some(32, start=500), max_tokens=2)
    assert play.steps(2) == [{"A": 32, "B": 32}, {"A": 1}]
    assert play.step() == {"B": 17}
    counts = play.kv.statistics()
    assert (counts.prefix_queries, counts.preempted_queries, counts.preempted_hits) == (64, 33, 16)


def test_the_cache_is_reset_only_while_nobody_holds_a_block():
    play = Play(caching=True)
    play.add("a", some(40), max_tokens=2)
    play.step()
    assert not play.kv.reset_prefix_cache()
    assert play.kv.statistics().num_cached_blocks == 2
    play.step()
    play.scheduler.release(play.kv)
    assert play.kv.reset_prefix_cache()
    assert play.kv.statistics().num_cached_blocks == 0
    play.add("again", some(40))
    assert play.step() == {"again": 40}


def test_what_an_ended_request_computed_stays_until_its_room_is_needed():
    play = Play(caching=True, blocks=4)
    play.add("old", some(48), max_tokens=1)
    play.step()
    play.add("new", 49, max_tokens=1)
    play.step()
    assert play.kv.statistics().evictions == 3
    play.add("old again", some(48))
    assert play.step() == {"old again": 48}


def test_of_an_old_text_the_end_is_given_up_before_the_beginning():
    play = Play(caching=True, blocks=5)
    play.add("old", some(64), max_tokens=1)
    play.step()
    play.add("new", 32, max_tokens=1)
    play.step()
    play.add("old again", some(64))
    assert play.step() == {"old again": 16}


def test_keys_that_the_sender_made_are_used_as_they_are():
    play = Play(caching=True)
    play.add("a", some(40), block_digests=[b"one", b"two"], max_tokens=1)
    play.step()
    play.add("b", some(40, start=100), block_digests=[b"one", b"other"])
    assert play.step() == {"b": 24}


def test_a_text_that_ended_shares_its_end_token_if_a_step_under_way_computes_it():
    play = Play(caching=True, block_size=1)
    play.add("a", some(4))
    first, second, third = play.plan(), play.plan(), play.plan()
    play.apply(first, 50)
    play.apply(second, E)
    play.apply(third, 51)
    play.add("b", [*some(4), 50, E, 51, 52])
    assert play.step() == {"b": 2}  # what was sampled after the end is nobody's


def test_a_request_that_may_not_read_the_cache_computes_all_and_fills_it_for_others():
    play = Play(caching=True)
    play.add("first", some(40), skip_reading_prefix_cache=True)
    assert play.step() == {"first": 40}
    play.add("second", some(40), skip_reading_prefix_cache=True)
    assert play.step() == {"first": 1, "second": 40}
    assert play.kv.statistics().prefix_queries == 0
    play.add("third", some(40))
    assert play.step() == {"first": 1, "second": 1, "third": 8}


def test_a_prompt_whose_log_probabilities_are_wanted_is_computed_whole():
    assert SamplingParams().reads_prefix_cache
    assert not SamplingParams(prompt_logprobs=0).reads_prefix_cache
