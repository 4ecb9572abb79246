"""What is planned while a scheduler is paused, and what a forced reset of the prefix cache leaves."""

from collections import deque

import pytest
from play import Play, ToyPlay

from callboard.scheduler import PauseState, SchedulerOutput
from callboard.scheduler.errors import MisuseError


def _one_runs_and_one_waits() -> Play:
    play = Play()
    play.add("A", 5)
    play.step()
    play.add("B", 10)
    return play


def test_new_requests_wait_and_begun_ones_go_on_while_new_ones_are_paused():
    play = _one_runs_and_one_waits()
    play.scheduler.set_pause_state(PauseState.PAUSED_NEW)
    assert play.step() == {"A": 1}
    assert play.scheduler.num_unfinished == 1


def test_nothing_is_planned_while_all_is_paused_and_nobody_counts_as_unfinished():
    play = _one_runs_and_one_waits()
    play.scheduler.set_pause_state(PauseState.PAUSED_ALL)
    assert play.plan().is_empty
    assert play.scheduler.num_unfinished == 0
    assert (play.scheduler.num_running, play.scheduler.num_waiting, play.scheduler.num_requests) == (1, 1, 2)
    play.scheduler.set_pause_state(PauseState.UNPAUSED)
    assert play.step() == {"A": 1, "B": 10}
    assert play.scheduler.num_unfinished == 2


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_a_preempted_request_has_begun_and_comes_back_while_new_ones_wait(policy: str):
    play = Play(blocks=10, policy=policy)
    play.add("A", 80, max_tokens=4)
    play.add("B", 80, priority=5, arrival_time=1.0)
    play.step()
    play.add("urgent", 3, priority=1)
    assert play.step() == {"A": 1}
    assert play.last_plan.preempted_req_ids == {"B"}
    play.scheduler.set_pause_state(PauseState.PAUSED_NEW)
    assert play.scheduler.num_unfinished == 2
    while "A" not in play.ends:
        play.step()
    assert play.step() == {"B": 17}  # four of its blocks were not needed by others
    assert play.waiting() == ["urgent"]


def test_a_request_that_is_aborted_while_all_is_paused_gives_its_blocks_back():
    play = _one_runs_and_one_waits()
    play.scheduler.set_pause_state(PauseState.PAUSED_ALL)
    play.scheduler.abort(["A", "B"])
    assert play.free_blocks() == 1_000
    assert play.plan().finished_req_ids == {"A", "B"}
    assert play.plan().is_empty


def test_all_that_run_are_preempted_in_their_order_ahead_of_those_who_wait():
    play = Play(max_num_running_reqs=3)
    for name in "ABCD":
        play.add(name, 20)
    play.step()
    play.scheduler.preempt_all()
    play.check()
    assert play.waiting() == ["A", "B", "C", "D"]
    assert play.free_blocks() == 1_000
    assert play.kv.reset_prefix_cache()
    assert play.step() == {"A": 21, "B": 21, "C": 21}
    assert play.last_plan.preempted_req_ids == {"A", "B", "C"}


def test_one_slot_goes_to_the_more_urgent_after_a_forced_reset():
    play = Play(policy="priority", max_num_running_reqs=1)
    play.add("A", 10, priority=5)
    play.step()
    play.add("B", 10, priority=1)
    play.scheduler.preempt_all()
    plan = play.plan()
    assert (plan.preempted_req_ids, [new.req_id for new in plan.scheduled_new_reqs]) == ({"A"}, ["B"])


def test_a_request_that_is_alone_is_preempted_and_taken_again_in_one_plan():
    play = Play(max_num_running_reqs=1)
    play.add("A", 10)
    play.step()
    play.scheduler.preempt_all()
    plan = play.plan()
    assert (plan.preempted_req_ids, [new.req_id for new in plan.scheduled_new_reqs]) == ({"A"}, ["A"])
    assert plan.num_scheduled_tokens == {"A": 11}
    assert plan.scheduled_new_reqs[0].resumed


def test_a_paused_scheduler_whose_cache_was_taken_computes_everything_again_after_it_goes_on():
    play = _one_runs_and_one_waits()
    play.scheduler.set_pause_state(PauseState.PAUSED_ALL)
    play.scheduler.preempt_all()
    assert play.free_blocks() == 1_000
    assert play.waiting() == ["A", "B"]
    assert play.plan().num_scheduled_tokens == {}
    play.scheduler.set_pause_state(PauseState.UNPAUSED)
    assert play.step() == {"A": 6, "B": 10}
    assert play.last_plan.scheduled_new_reqs[0].num_computed_tokens == 0


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("caching", [False, True])
def test_a_forced_reset_at_any_step_changes_no_token(depth: int, caching: bool):
    for when in range(1, 14):
        play = ToyPlay(blocks=20, caching=caching, max_num_scheduled_tokens=8, max_num_running_reqs=3)
        for name, count in {"A": 9, "B": 5, "C": 11, "D": 3}.items():
            play.add(name, count, max_tokens=6)
        under_way: deque[SchedulerOutput] = deque()
        for turn in range(60):
            if turn == when:
                play.scheduler.preempt_all()
                play.check()
            while len(under_way) < depth and (plan := play.plan()).req_ids:
                under_way.append(plan)
            if under_way:
                play.apply(under_way.popleft())
        assert {name: play.reason(name) for name in "ABCD"} == dict.fromkeys("ABCD", "length")
        assert [len(tokens) for tokens in play.tokens.values()] == [6] * 4
        play.assert_as_alone()
        assert play.free_blocks() == 20
        assert play.kv.reset_prefix_cache()


def test_what_steps_under_way_give_to_requests_of_before_a_reset_is_dropped():
    play = ToyPlay(blocks=20)
    play.add("A", 5, max_tokens=6)
    plans = [play.plan(), play.plan()]
    play.scheduler.preempt_all()
    assert play.kv.statistics().num_free_blocks < 20
    for plan in plans:
        assert not play.apply(plan).req_ids
    assert play.free_blocks() == 20
    play.until_done()
    play.assert_as_alone()


def test_a_reset_between_propose_and_commit_is_a_fault():
    play = Play()
    play.scheduler.propose(0.0)
    with pytest.raises(MisuseError, match="between propose and commit"):
        play.scheduler.preempt_all()
