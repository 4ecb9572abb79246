"""Policies of users that fail, and policies that take over from others."""

import re
from asyncio import CancelledError
from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle, islice
from typing import Any

import pytest
import structlog
from play import Play, ToyPlay

from callboard.scheduler import FCFSPolicy, Policy, PriorityPolicy
from callboard.scheduler.errors import ConfigError, MisuseError, PolicyError
from callboard.scheduler.pause import PauseState
from callboard.scheduler.policy_guard import make_policy
from callboard.scheduler.request_state import RequestState


class Own(FCFSPolicy):
    """A policy of a user that does what it is told: raises, or changes its usual answer."""

    def __init__(self, **answers: Any) -> None:
        super().__init__()
        self.answers = answers

    def candidates(self, limit: int, now: float) -> Sequence[RequestState]:
        return self._answer("candidates", list(islice(super().__iter__(), limit)))

    def victims(self, running: Sequence[RequestState]) -> Iterable[RequestState]:
        return self._answer("victims", list(super().victims(running)))

    def add(self, state: RequestState) -> None:
        self._answer("add", [])
        super().add(state)

    def requeue(self, state: RequestState) -> None:
        self._answer("requeue", [])
        super().requeue(state)

    def remove(self, state: RequestState) -> None:
        self._answer("remove", [])
        super().remove(state)

    def __iter__(self) -> Iterator[RequestState]:
        return iter(self._answer("__iter__", list(super().__iter__())))

    def _answer(self, method: str, usual: Sequence[RequestState]) -> Sequence[RequestState]:
        answer = self.answers.get(method)
        if isinstance(answer, BaseException):
            raise answer
        return usual if answer is None else answer(usual)


@pytest.mark.parametrize("error", [ValueError("no"), ConfigError("no"), CancelledError("no")], ids=repr)
def test_a_request_that_a_policy_does_not_take_is_refused_and_nothing_is_kept_of_it(error: BaseException):
    play = Play(policy=Own(add=error))
    with pytest.raises(PolicyError, match=r"Own\.add failed") as caught:
        play.add("a", 5)
    assert caught.value.__cause__ is error
    assert play.scheduler.num_unfinished == 0
    assert play.scheduler.policy_failure is None
    play.check()


class Unspeakable:
    """Has faults of its own."""

    def __repr__(self) -> str:
        raise RuntimeError("no words")


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"candidates": ZeroDivisionError("by zero")}, r"Own.candidates failed: ZeroDivisionError\('by zero'\)"),
    ({"candidates": CancelledError()}, r"Own.candidates failed: CancelledError\(\)"),
    ({"candidates": ConfigError("no")}, "Own.candidates failed: ConfigError"),
    ({"candidates": lambda states: states * 2}, "Own.candidates gave request r0 twice"),
    ({"candidates": cycle}, "Own.candidates gave request r0 twice"),
    ({"candidates": lambda _: ["a"]}, "Own.candidates gave 'a', which is not one of its requests"),
    ({"candidates": lambda _: [Unspeakable()]}, "Own.candidates gave a Unspeakable that cannot be shown"),
    ({"candidates": lambda _: None}, "Own.candidates failed: TypeError"),
    ({"victims": KeyError("v")}, "Own.victims failed"),
    ({"victims": lambda states: [*states, *states]}, "Own.victims gave request r[0-9] twice"),
    ({"victims": lambda _: ["a"]}, "Own.victims gave 'a', which"),
    ({"requeue": KeyError("q")}, r"Own.requeue failed: KeyError\('q'\) \(request r[0-9]\)"),
    ({"remove": KeyError("r")}, r"Own.remove failed: KeyError\('r'\) \(request r0\)"),
]


@pytest.mark.parametrize(("answers", "text"), FAULTS)
@pytest.mark.parametrize("depth", [1, 3])
def test_a_policy_that_fails_is_given_up_and_no_request_is_lost(answers: dict[str, Any], text: str, depth: int):
    play = ToyPlay(blocks=10, max_num_running_reqs=3, policy=Own(**answers))
    for number in range(8):
        play.add(f"r{number}", 3 + 2 * number, max_tokens=12, arrival_time=float(number))
    with structlog.testing.capture_logs() as logs:
        play.until_done(depth)
    assert set(play.ends) == set(play.tokens)
    play.assert_as_alone()
    assert play.free_blocks() == 10
    assert re.match(text, play.scheduler.policy_failure or "none")
    assert [entry["event"] for entry in logs] == ["policy_failed"]


@pytest.mark.parametrize("kept", [lambda _: [], lambda states: states[:1]], ids=["none", "one"])
@pytest.mark.parametrize("depth", [1, 3])
def test_running_requests_that_a_policy_names_as_nobodys_victims_do_not_wait_for_each_other(kept: Any, depth: int):
    play = ToyPlay(blocks=10, max_num_running_reqs=3, policy=Own(victims=kept))
    for number in range(8):
        play.add(f"r{number}", 3 + 2 * number, max_tokens=12, arrival_time=float(number))
    play.until_done(depth)
    play.assert_as_alone()
    assert play.scheduler.policy_failure is None


def test_who_is_left_out_of_the_victims_gives_way_last_and_the_last_admitted_of_them_first():
    play = Play(policy=Own(victims=lambda _: [play.scheduler.books.requests["b"]]))
    for name in "abcd":
        play.add(name, 5)
    play.step()
    victims = play.scheduler.policy.victims(play.scheduler.books.running())
    assert [state.request_id for state in victims] == ["b", "d", "c", "a"]


def test_those_who_wait_go_on_in_the_order_of_their_arrival():
    policy = Own()
    play = _queue_with_a_victim(policy)
    policy.answers["candidates"] = lambda _: ["nobody"]
    play.step()
    assert play.scheduler.policy_failure == "Own.candidates gave 'nobody', which is not one of its requests"
    assert play.waiting() == ["B", "C", "D", "E"]
    play.scheduler.swap_policy("priority")
    assert play.scheduler.policy_failure is None
    assert play.waiting() == ["E", "D", "C", "B"]


@pytest.mark.parametrize("answer", [lambda _: [], lambda states: states[1:], lambda _: [1, 2], OSError("gone")])
def test_what_a_policy_says_of_its_queue_loses_nobody_when_another_takes_over(answer: Any):
    policy = Own()
    play = _queue_with_a_victim(policy)
    policy.answers["__iter__"] = answer
    play.scheduler.swap_policy("fcfs")
    assert play.waiting() == ["B", "C", "D", "E"]
    play.check()


@pytest.mark.parametrize("answer", [lambda _: [], lambda states: states[1:], lambda _: [1, 2], OSError("gone")])
def test_a_queue_that_is_not_told_whole_while_new_requests_wait_gives_the_policy_up(answer: Any):
    policy = Own()
    play = _queue_with_a_victim(policy)
    policy.answers["__iter__"] = answer
    play.scheduler.set_pause_state(PauseState.PAUSED_NEW)
    play.scheduler.abort("A")
    play.step()
    assert (play.scheduler.policy_failure or "").startswith("Own.__iter__ ")
    assert play.last_plan.req_ids == ("B",)


@pytest.mark.parametrize("policy", [FCFSPolicy, Own, object(), 3])
def test_a_class_or_anything_without_the_methods_is_no_policy(policy: object):
    with pytest.raises(ConfigError, match="needed is a name or an object"):
        Play(policy=policy)
    play = Play()
    with pytest.raises(ConfigError, match="needed is a name or an object"):
        play.scheduler.swap_policy(policy)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("kind", [FCFSPolicy, PriorityPolicy, Own])
def test_a_policy_that_serves_one_scheduler_cannot_serve_another(kind: type[Policy]):
    policy = kind()
    play, other = Play(policy=policy), Play()
    with pytest.raises(ConfigError, match="serves another engine, or this one, already"):
        Play(policy=policy)
    with pytest.raises(ConfigError, match="serves another engine, or this one, already"):
        other.scheduler.swap_policy(policy)
    with pytest.raises(ConfigError, match="serves another engine, or this one, already"):
        play.scheduler.swap_policy(policy)
    play.scheduler.swap_policy("fcfs")
    other.scheduler.swap_policy(policy)
    other.add("a", 5)
    other.scheduler.let_go_policy()
    with pytest.raises(ConfigError, match="holds 1 requests already"):
        play.scheduler.swap_policy(policy)
    assert other.step() == {"a": 5}
    play.scheduler.swap_policy(policy)


def test_the_built_in_policies_need_no_guard_and_subclasses_of_them_do():
    assert type(make_policy("fcfs")) is FCFSPolicy
    assert type(make_policy(Own())).__name__ == "GuardedPolicy"


def _queue_with_a_victim(policy: str | Policy) -> Play:
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


@pytest.mark.parametrize(
    ("answers", "text"),
    [
        ({"add": ValueError("no")}, r"Own\.add failed"),
        ({"add": ConfigError("no")}, r"Own\.add failed"),
        ({"requeue": CancelledError()}, r"Own\.requeue failed"),
        ({"__iter__": OSError("gone")}, r"Own\.__iter__ failed"),
        ({"__iter__": lambda states: states[1:]}, r"Own\.__iter__ gave 3 requests, needed are 4 to 4"),
        ({"__iter__": lambda states: states * 2}, r"Own\.__iter__ gave request [A-E] twice"),
        ({"__iter__": lambda _: [1]}, r"Own\.__iter__ gave 1, which is not one of its requests"),
    ],
)
def test_a_policy_that_fails_to_take_over_leaves_the_old_one_in_place(answers: dict[str, Any], text: str):
    play, policy = _queue_with_a_victim("fcfs"), Own(**answers)
    for _ in range(2):
        with pytest.raises((PolicyError, ConfigError), match=f"{text}|holds [0-9] requests already"):
            play.scheduler.swap_policy(policy)
    assert play.scheduler.policy_failure is None
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
