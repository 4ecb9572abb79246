"""The priority policy: order of admission, ties, and who gives way."""

import pytest
from play import Play


def _play(priorities: dict[str, int], blocks: int = 1_000, prompt: int = 10, **settings: int) -> Play:
    play = Play(policy="priority", blocks=blocks, **settings)
    for name, priority in priorities.items():
        play.add(name, prompt, priority=priority)
    return play


def test_the_smaller_number_is_admitted_first():
    play = _play({"0": 2, "1": 0, "2": 1})
    assert play.plan().req_ids == ("1", "2", "0")


def test_of_equal_priority_the_earlier_arrival_is_admitted_first():
    play = Play(policy="priority")
    play.add("a", 10, arrival_time=2.0)
    play.add("b", 10, arrival_time=1.0)
    assert play.plan().req_ids == ("b", "a")


def test_of_equal_priority_and_arrival_the_smaller_id_is_admitted_first():
    assert _play({"b": 0, "a": 0, "c": 0}).plan().req_ids == ("a", "b", "c")


def test_looking_at_the_queue_tells_the_order_and_changes_nothing():
    play = Play(policy="priority", max_num_running_reqs=2)
    for name, priority in {"0": 3, "1": 1}.items():
        play.add(name, 10, priority=priority)
    assert set(play.step()) == {"0", "1"}
    play.add("2", 10, priority=2)
    play.add("3", 10, priority=0)
    assert play.waiting() == play.waiting() == ["3", "2"]
    assert play.scheduler.num_waiting == 2


def test_an_urgent_request_that_finds_no_room_is_not_overtaken_by_a_less_urgent_one():
    play = _play({"A": 5}, blocks=6, prompt=64)
    play.step()
    play.add("B", 48, priority=0)
    play.add("C", 10, priority=1)
    assert play.step() == {"A": 1}
    assert play.waiting() == ["B", "C"]


def test_the_least_urgent_request_gives_way_to_a_later_one():
    play = _play({"lo": 5}, blocks=5, prompt=32)
    play.step()
    play.add("hi", 32, priority=0)
    assert play.step() == {"lo": 1, "hi": 32}
    assert play.free_blocks() == 0
    assert play.step() == {"hi": 1}
    assert play.last_plan.preempted_req_ids == {"lo"}
    assert play.waiting() == ["lo"]


def test_first_come_first_served_gives_up_the_last_admitted():
    play = Play(blocks=6)
    for name in "abc":
        play.add(name, 32)
    assert play.steps(2) == [{"a": 32, "b": 32, "c": 32}, {"a": 1, "b": 1}]
    assert play.last_plan.preempted_req_ids == {"c"}


def test_priority_gives_up_the_least_urgent_wherever_it_stands():
    play = _play({"a": 5, "b": 0, "c": 0}, blocks=6, prompt=32)
    assert list(play.step()) == ["b", "c", "a"]
    assert play.step() == {"b": 1, "c": 1}
    assert play.last_plan.preempted_req_ids == {"a"}


def test_a_victim_ahead_of_the_one_in_need_shifts_nobody_out_of_the_step():
    play = Play(policy="priority", blocks=4)
    for name, priority, count in (("X", 9, 20), ("Y", 0, 15), ("Z", 1, 3)):
        play.add(name, count, priority=priority)
        play.step()
    assert play.step() == {"Y": 1, "Z": 1}
    assert play.last_plan.preempted_req_ids == {"X"}


def test_of_equal_priority_the_later_arrival_gives_way():
    play = Play(policy="priority", blocks=4)
    play.add("early", 32, arrival_time=1.0)
    play.add("late", 32, arrival_time=2.0)
    assert play.steps(2) == [{"early": 32, "late": 32}, {"early": 1}]
    assert play.last_plan.preempted_req_ids == {"late"}


def test_the_least_urgent_request_gives_way_to_itself_when_it_is_the_one_in_need():
    play = Play(policy="priority", blocks=3)
    play.add("lo", 16, priority=5)
    play.add("hi", 20, priority=0)
    assert play.step() == {"hi": 20, "lo": 16}
    assert play.step() == {"hi": 1}
    assert play.last_plan.preempted_req_ids == {"lo"}


def test_who_gives_way_to_itself_stops_nobody_behind_it():
    play = Play(policy="priority", blocks=2)
    play.add("lo", 15, priority=5)
    play.step()
    play.add("hi", 1, priority=0)
    assert play.steps(2) == [{"lo": 1, "hi": 1}, {"hi": 1}]
    assert play.last_plan.preempted_req_ids == {"lo"}


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_a_queue_gives_back_a_request_from_its_middle(policy: str):
    play = Play(policy=policy, max_num_running_reqs=1)
    for name in "abcd":
        play.add(name, 10)
    assert play.scheduler.abort("c") == ["c"]
    assert play.waiting() == ["a", "b", "d"]
