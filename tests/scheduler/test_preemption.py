"""Requests that give way: who, how many, what they keep, and how they come back."""

import pytest
from play import Play, ToyPlay


def _full_pool() -> Play:
    """A and B of 80 tokens each fill ten blocks, C waits; A needs the next block."""
    play = Play(blocks=10, caching=True)
    play.add("A", 80)
    play.add("B", 80)
    assert play.step() == {"A": 80, "B": 80}
    play.add("C", 10)
    assert play.step() == {"A": 1}
    return play


def test_the_last_admitted_gives_way_and_nobody_is_admitted_in_that_step():
    play = _full_pool()
    assert play.last_plan.preempted_req_ids == {"B"}
    assert play.last_plan.grown == {0: [10]}
    assert play.waiting() == ["B", "C"]
    assert play.scheduler.statistics().num_preemptions == 1


def test_a_victim_waits_for_all_its_blocks_and_is_not_overtaken():
    play = _full_pool()
    assert play.step() == {"A": 1}
    assert play.waiting() == ["B", "C"]


def test_a_victim_is_named_by_the_next_plan_and_by_no_later_one():
    play = _full_pool()
    told = [play.last_plan.preempted_req_ids, *(play.plan().preempted_req_ids for _ in range(2))]
    assert told == [{"B"}, set(), set()]


def test_a_victim_goes_on_from_the_blocks_that_it_has_kept():
    play = _full_pool()
    play.step()
    play.scheduler.abort("A")
    assert play.step() == {"B": 17, "C": 10}


def test_a_victim_comes_back_with_a_complete_block_table():
    play = _full_pool()
    play.step()
    play.scheduler.abort("A")
    plan = play.plan()
    new = plan.scheduled_new_reqs[0]
    assert (new.req_id, len(new.block_ids), new.num_computed_tokens, new.resumed) == ("B", 6, 64, True)
    assert (new.num_prompt_tokens, len(new.token_ids)) == (80, 81)
    assert plan.num_outputs.tolist()[0] == 1


def test_a_victim_may_be_half_way_through_its_prompt():
    play = Play(blocks=10, max_num_scheduled_tokens=96)
    play.add("A", 80, max_tokens=2)
    play.add("B", 80, max_tokens=1)
    assert play.step() == {"A": 80, "B": 16}
    assert play.step() == {"A": 1}
    assert play.last_plan.preempted_req_ids == {"B"}
    assert play.step() == {"B": 64}
    assert play.last_plan.scheduled_new_reqs[0].num_computed_tokens == 16  # what it had computed was kept


def test_victims_of_one_step_return_in_their_old_order_ahead_of_those_who_waited():
    play = Play(blocks=4)
    for name, count in {"A": 16, "B": 16, "C": 3, "D": 3, "W": 3}.items():
        play.add(name, count)
    assert play.step() == {"A": 16, "B": 16, "C": 3, "D": 3}
    assert play.step() == {"A": 1, "B": 1}
    assert play.last_plan.preempted_req_ids == {"C", "D"}
    assert play.waiting() == ["C", "D", "W"]


def test_no_more_give_way_than_are_needed():
    play = Play(blocks=8)
    for name, count in {"A": 16, "B": 30, "C": 30, "D": 35}.items():
        play.add(name, count)
    play.step()
    assert play.step() == {"A": 1, "B": 1, "C": 1}
    assert play.last_plan.preempted_req_ids == {"D"}


def test_a_victim_keeps_its_tokens_and_goes_on_with_the_next():
    play = ToyPlay(blocks=4)
    play.add("A", 8, max_tokens=4)
    play.add("B", 8, max_tokens=4)
    play.until_done()
    assert play.scheduler.statistics().num_preemptions == 1
    assert len(play.tokens["A"]) == len(play.tokens["B"]) == 4
    play.assert_as_alone()


@pytest.mark.parametrize("length", [4, 5, 8, 9])
def test_a_victim_of_any_length_without_outputs_loses_nothing(length: int):
    play = ToyPlay(blocks=1 + -(-length // 4), max_num_scheduled_tokens=3)
    play.add("A", 3, max_tokens=4)
    play.step()
    play.add("V", length, max_tokens=2)
    assert play.steps(2) == [{"A": 1, "V": 2}, {"A": 1}]
    assert play.last_plan.preempted_req_ids == {"V"}
    play.until_done()
    play.assert_as_alone()


@pytest.mark.parametrize("length", [4, 5, 8, 9])
@pytest.mark.parametrize("budget", [20, 3])
@pytest.mark.parametrize("caching", [False, True])
def test_a_victim_of_any_length_with_three_outputs_loses_nothing(length: int, budget: int, caching: bool):
    play = ToyPlay(blocks=1 + -(-(length - 1) // 4), caching=caching, max_num_scheduled_tokens=budget)
    play.add("A", 2, max_tokens=5)
    play.add("V", length - 3, max_tokens=6)
    plans = play.until_done()
    back = [new for plan in plans for new in plan.scheduled_new_reqs if new.resumed]
    assert back
    assert {new.req_id for new in back} == {"V"}
    assert budget == 3 or len(back[0].token_ids) == length
    play.assert_as_alone()


@pytest.mark.parametrize("outputs", [0, 1, 2, 3, 4])
def test_a_victim_that_meets_its_own_cached_blocks_computes_what_is_left_of_it(outputs: int):
    play = ToyPlay(blocks=6, caching=True, max_num_scheduled_tokens=8)
    play.add("A", 12 - outputs, max_tokens=outputs + 2)
    play.add("B", 12, max_tokens=6)
    plans = play.until_done()
    for plan in plans:
        for new in plan.scheduled_new_reqs:
            left = len(new.token_ids) - new.num_computed_tokens
            assert 1 <= plan.num_scheduled_tokens[new.req_id] <= min(8, left)
    assert any(new.resumed and new.num_computed_tokens >= 4 for plan in plans for new in plan.scheduled_new_reqs)
    play.assert_as_alone()


def test_a_victim_whose_last_full_block_was_not_computed_yet_has_a_key_for_it_when_it_returns():
    play = Play(blocks=3, block_size=4, caching=True, max_num_scheduled_tokens=4)
    play.add("A", 1)
    play.add("V", 6)
    assert play.steps(2) == [{"A": 1, "V": 3}] * 2
    play.step({"A": [7, 7, 7, 7]})  # A takes the whole budget of the next step
    assert play.step() == {"A": 4}
    assert play.last_plan.preempted_req_ids == {"V"}
    play.scheduler.abort("A")
    assert play.step() == {"V": 4}
    assert play.kv.statistics().num_cached_blocks == 3  # two of V, one that A left


def test_a_long_prompt_beside_a_growing_request_is_not_started_again_and_again():
    play = ToyPlay(blocks=12, max_num_scheduled_tokens=8)
    play.add("A", 13, max_tokens=20)
    play.steps(2)
    play.add("B", 40, max_tokens=3)
    plans = play.until_done(most=200)
    assert sum(plan.total_num_scheduled_tokens for plan in plans) <= 2 * (20 + 43)
    assert not any("A" in plan.preempted_req_ids for plan in plans)
    assert play.scheduler.statistics().num_preemptions <= 2
    play.assert_as_alone()


def test_of_a_crowd_in_a_small_pool_each_makes_progress():
    play = ToyPlay(blocks=6, max_num_running_reqs=6)
    for index in range(12):
        play.add(f"r{index}", 3 + index % 5, max_tokens=9)
    play.until_done(most=400)
    assert all(len(tokens) == 9 for tokens in play.tokens.values())
    play.assert_as_alone()


def test_an_abort_of_a_victim_that_waits_gives_nothing_back_twice():
    play = _full_pool()
    assert play.scheduler.abort(["B", "A", "C"]) == ["B", "A", "C"]
    assert play.free_blocks() == 10


def test_cached_tokens_are_those_of_the_first_admission():
    play = _full_pool()
    play.step()
    play.scheduler.abort("A")
    play.step()
    assert "B" not in play.last_outputs.cached  # its first output was delivered before
