"""How one step's token budget is divided."""

import pytest
from play import Play

from callboard.scheduler import SchedulerConfig
from callboard.scheduler.errors import ConfigError


def test_a_prompt_over_the_budget_is_split_and_the_rest_goes_to_the_next():
    play = Play(max_num_scheduled_tokens=100)
    play.add("A", 150)
    play.add("B", 60)
    outputs = []
    for wanted in ({"A": 100}, {"A": 50, "B": 50}, {"A": 1, "B": 10}, {"A": 1, "B": 1}):
        assert play.step() == wanted
        outputs.append(play.last_outputs.req_ids)
    assert outputs == [[], ["A"], ["A", "B"], ["A", "B"]]


def test_ten_prompts_within_the_budget_are_all_admitted_in_the_first_step():
    play = Play()
    for index in range(10):
        play.add(f"r{index}", 10)
    plan = play.plan()
    assert plan.num_scheduled_tokens == {f"r{index}": 10 for index in range(10)}
    assert [new.req_id for new in plan.scheduled_new_reqs] == list(plan.req_ids)
    assert plan.scheduled_cached_reqs.req_ids == []
    assert play.scheduler.num_waiting == 0


def test_a_slot_is_given_on_when_its_request_has_ended():
    play = Play(max_num_running_reqs=2)
    for name in "abc":
        play.add(name, 10, max_tokens=2)
    assert play.steps(2) == [{"a": 10, "b": 10}, {"a": 1, "b": 1}]
    assert (play.reason("a"), play.reason("b")) == ("length", "length")
    assert play.step() == {"c": 10}
    assert play.last_plan.finished_req_ids == {"a", "b"}
    assert play.step() == {"c": 1}
    assert play.last_plan.finished_req_ids == set()


def test_without_chunks_a_prompt_that_does_not_fit_waits_and_is_not_overtaken():
    play = Play(enable_chunked_prefill=False, max_num_scheduled_tokens=100, max_model_len=100)
    for name, count in {"A": 60, "B": 60, "C": 10}.items():
        play.add(name, count)
    assert play.steps(2) == [{"A": 60}, {"A": 1, "B": 60, "C": 10}]


def test_without_chunks_a_budget_below_the_longest_prompt_is_refused():
    with pytest.raises(ConfigError, match=r"max_num_scheduled_tokens \(99\) must be at least max_model_len \(100\)"):
        SchedulerConfig(enable_chunked_prefill=False, max_num_scheduled_tokens=99, max_model_len=100)


def test_a_cap_divides_the_budget_among_long_prompts():
    play = Play(max_num_scheduled_tokens=1024, long_prefill_token_threshold=400)
    for name in "abc":
        play.add(name, 800)
    capped = {"a": 400, "b": 400, "c": 224}
    assert play.steps(3) == [capped, capped, {"a": 1, "b": 1, "c": 352}]


def test_the_cap_does_not_hold_for_a_request_that_is_alone():
    play = Play(max_num_scheduled_tokens=1024, long_prefill_token_threshold=400)
    play.add("alone", 2000)
    assert play.step() == {"alone": 1024}
    play.add("other", 10)
    assert play.step() == {"alone": 400, "other": 10}


def test_the_cap_holds_from_the_first_step_for_a_request_with_company():
    play = Play(max_num_scheduled_tokens=1024, long_prefill_token_threshold=400)
    play.add("long", 2000)
    play.add("short", 10)
    assert play.step() == {"long": 400, "short": 10}


def test_nothing_is_planned_past_the_model_length():
    play = Play(max_model_len=20)
    play.add("A", 17, max_tokens=50)
    assert [plan.total_num_scheduled_tokens for plan in play.until_done()] == [17, 1, 1]
    assert play.tokens["A"] == [7, 7, 7]
    assert play.reason("A") == "length"
    assert play.plan().req_ids == ()


def test_running_requests_are_served_before_waiting_ones():
    play = Play(max_num_scheduled_tokens=10)
    play.add("first", 8)
    play.step()
    play.add("second", 40)
    assert play.steps(3) == [{"first": 1, "second": 9}] * 3


def test_a_budget_below_the_number_of_running_requests_serves_the_first_admitted():
    play = Play(max_num_scheduled_tokens=2)
    for name in "abc":
        play.add(name, 1, max_tokens=3)
    assert play.steps(4) == [{"a": 1, "b": 1}] * 3 + [{"c": 1}]
    assert play.last_plan.finished_req_ids == {"a", "b"}


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_counts_are_at_least_one_and_add_up_to_no_more_than_the_budget(depth: int):
    play = Play(max_num_scheduled_tokens=7, max_num_running_reqs=3, block_size=2)
    for index in range(9):
        play.add(f"r{index}", 1 + 5 * index % 23, max_tokens=1 + index % 4)
    for plan in play.until_done(depth):
        assert len(set(plan.req_ids)) == len(plan.req_ids) <= 3
        assert min(plan.num_scheduled_tokens.values()) >= 1
        assert sum(plan.num_scheduled_tokens.values()) == plan.total_num_scheduled_tokens <= 7


def test_a_running_request_with_room_in_its_block_asks_the_kv_cache_for_nothing():
    play = Play(caching=True)
    play.add("a", 17)
    asked = []
    for _ in range(16):
        play.step()
        asked.append(play.scheduler.propose(0.0) is not None)
    assert asked == [False] * 14 + [True, True]  # the 32nd token fills a block, the 33rd needs one
