"""Policies of users that fail, and policies that take over from others."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from play import Play, ToyPlay

from callboard.scheduler import FCFSPolicy, Policy, PriorityPolicy
from callboard.scheduler.errors import ConfigError, MisuseError, PolicyError
from callboard.scheduler.policy_guard import make_policy
from callboard.scheduler.request import RequestState


class Own(FCFSPolicy):
    """A policy of a user that does what it is told."""

    def __init__(self, **answers: Any) -> None:
        super().__init__()
        self._answers = answers

    def candidates(self, limit: int, now: float) -> Sequence[RequestState]:
        return self._answer("candidates", super().candidates(limit, now))

    def victims(self, running: Sequence[RequestState]) -> Iterable[RequestState]:
        return self._answer("victims", list(super().victims(running)))

    def add(self, state: RequestState) -> None:
        self._answer("add", [])
        super().add(state)

    def _answer(self, method: str, usual: Sequence[RequestState]) -> Sequence[RequestState]:
        answer = self._answers.get(method)
        if isinstance(answer, Exception):
            raise answer
        return usual if answer is None else answer(usual)


def test_a_policy_that_raises_is_named_with_its_method_and_its_error():
    play = Play(policy=Own(candidates=ZeroDivisionError("by zero")))
    play.add("a", 5)
    with pytest.raises(PolicyError, match=r"Own.candidates failed: ZeroDivisionError\('by zero'\)") as caught:
        play.plan()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_request_that_a_policy_does_not_take_is_refused_and_nothing_is_kept_of_it():
    play = Play(policy=Own(add=ValueError("no")))
    with pytest.raises(PolicyError, match=r"Own\.add failed"):
        play.add("a", 5)
    assert play.scheduler.num_unfinished == 0
    play.check()


@pytest.mark.parametrize(
    ("answers", "text"),
    [
        ({"candidates": lambda states: states * 2}, "Own.candidates gave request a twice"),
        ({"candidates": lambda states: states * 20}, "Own.candidates gave 20 requests, limit is 16"),
        ({"candidates": lambda _: ["a"]}, "Own.candidates gave 'a', which is not one of its requests"),
        ({"candidates": lambda _: None}, "Own.candidates failed: TypeError"),
    ],
)
def test_candidates_that_cannot_be_are_refused(answers: dict[str, Any], text: str):
    play = Play(policy=Own(**answers))
    play.add("a", 5)
    with pytest.raises(PolicyError, match=text):
        play.plan()


def test_a_victim_that_does_not_run_is_refused():
    waiting: list[RequestState] = []
    policy = Own(victims=lambda _: waiting)
    play = Play(policy=policy, blocks=2)
    play.add("a", 16)
    play.add("b", 16)
    play.step()
    play.add("c", 16)
    waiting += policy
    with pytest.raises(PolicyError, match=r"Own\.victims gave"):
        play.step()


@pytest.mark.parametrize("policy", [FCFSPolicy, Own, object(), 3])
def test_a_class_or_anything_without_the_methods_is_no_policy(policy: object):
    with pytest.raises(ConfigError, match="needed is a name or an object"):
        Play(policy=policy)
    play = Play()
    with pytest.raises(ConfigError, match="needed is a name or an object"):
        play.scheduler.swap_policy(policy)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("policy", [FCFSPolicy(), PriorityPolicy(), Own()])
def test_a_policy_that_serves_one_scheduler_cannot_serve_another(policy: Policy):
    Play(policy=policy).add("a", 5)
    with pytest.raises(ConfigError, match="holds 1 requests already"):
        Play(policy=policy)


def test_the_built_in_policies_need_no_guard_and_subclasses_of_them_do():
    assert type(make_policy("fcfs")) is FCFSPolicy
    assert type(make_policy(Own())).__name__ == "GuardedPolicy"


def _queue_with_a_victim(policy: str) -> Play:
    """A runs; B was preempted; C, D and E wait."""
    play = Play(policy=policy, blocks=10)
    play.add("A", 80, arrival_time=0.0)
    play.add("B", 80, arrival_time=1.0, priority=9)
    play.step()
    for number, name in enumerate("CDE"):
        play.add(name, 5, arrival_time=2.0 + number, priority=3 - number)
    play.step()
    assert play.last_plan.preempted_req_ids == {"B"}
    return play


def test_those_who_wait_go_on_waiting_under_the_new_policy_in_its_order():
    play = _queue_with_a_victim("fcfs")
    assert play.waiting() == ["B", "C", "D", "E"]
    play.scheduler.swap_policy("priority")
    assert play.waiting() == ["E", "D", "C", "B"]
    play.scheduler.swap_policy(Own())
    assert play.waiting() == ["B", "C", "D", "E"]
    play.scheduler.abort("C")
    assert play.waiting() == ["B", "D", "E"]
    play.check()


def test_a_policy_that_fails_to_take_over_leaves_the_old_one_in_place():
    play = _queue_with_a_victim("fcfs")
    with pytest.raises(PolicyError, match=r"Own\.add failed"):
        play.scheduler.swap_policy(Own(add=ValueError("no")))
    assert play.waiting() == ["B", "C", "D", "E"]
    play.check()


def test_a_swap_between_propose_and_commit_is_a_fault():
    play = Play()
    play.scheduler.propose(0.0)
    with pytest.raises(MisuseError, match="between propose and commit"):
        play.scheduler.swap_policy("priority")


@pytest.mark.parametrize("depth", [1, 3])
def test_swapping_in_every_step_changes_no_token(depth: int):
    play = ToyPlay(blocks=14, max_num_running_reqs=3)
    for number in range(8):
        play.add(f"r{number}", 3 + number, max_tokens=6, priority=-number, arrival_time=float(number))
    policies = ["priority", Own(), "fcfs", PriorityPolicy()]
    while policies:
        play.scheduler.swap_policy(policies.pop())
        play.step()
    play.until_done(depth)
    assert set(play.ends) == set(play.tokens)
    play.assert_as_alone()
    assert play.free_blocks() == 14
