"""The order of waiting requests as an object, and policies of a user."""

from collections.abc import Iterable, Sequence

import pytest
from play import Play

from callboard.scheduler import FCFSPolicy, Policy, PriorityPolicy, Request, SamplingParams
from callboard.scheduler.errors import ConfigError
from callboard.scheduler.policy_guard import make_policy
from callboard.scheduler.request_state import RequestState


def _state(name: str, priority: int = 0, arrival: float = 0.0) -> RequestState:
    params = SamplingParams()
    request = Request(
        request_id=name, prompt_token_ids=[1], sampling_params=params, priority=priority, arrival_time=arrival
    )
    return RequestState(request)


def _names(states: Iterable[RequestState]) -> list[str]:
    return [state.request_id for state in states]


@pytest.mark.parametrize("kind", [FCFSPolicy, PriorityPolicy])
def test_the_policies_keep_to_the_contract_of_policies(kind: type[Policy]):
    assert isinstance(kind(), Policy)


def test_first_come_first_served_keeps_the_order_and_puts_victims_in_front():
    policy = FCFSPolicy()
    a, b, c = _state("a"), _state("b"), _state("c")
    policy.add(c)
    policy.requeue(b)
    policy.requeue(a)
    assert _names(policy) == ["a", "b", "c"]
    assert _names(policy.victims([a, b, c])) == ["c", "b", "a"]


def test_priority_sorts_by_number_then_arrival_then_id():
    policy = PriorityPolicy()
    for state in (_state("d", 1, 0.0), _state("c", 0, 2.0), _state("b", 0, 1.0), _state("a", 0, 2.0)):
        policy.add(state)
    assert _names(policy) == ["b", "a", "c", "d"]
    assert _names(policy.candidates(2, 0.0)) == ["b", "a"]


def test_a_victim_returns_to_the_place_that_its_priority_gives():
    policy = PriorityPolicy()
    policy.add(_state("urgent", 0))
    policy.requeue(_state("victim", 5))
    policy.add(_state("later", 9))
    assert _names(policy) == ["urgent", "victim", "later"]


@pytest.mark.parametrize("kind", [FCFSPolicy, PriorityPolicy])
def test_candidates_and_iteration_leave_the_queue_as_it_is(kind: type[Policy]):
    policy = kind()
    for name in "abc":
        policy.add(_state(name))
    for _ in range(2):
        assert _names(policy.candidates(2, 0.0)) == ["a", "b"]
        assert (_names(policy), len(policy)) == (["a", "b", "c"], 3)


@pytest.mark.parametrize("kind", [FCFSPolicy, PriorityPolicy])
def test_a_queue_may_be_empty_from_the_first_or_again(kind: type[Policy]):
    policy, state = kind(), _state("a")
    for _ in range(2):
        assert (list(policy.candidates(2, 0.0)), _names(policy), len(policy)) == ([], [], 0)
        policy.add(state)
        policy.remove(state)


def test_a_policy_is_named_or_given():
    assert isinstance(make_policy("fcfs"), FCFSPolicy)
    assert isinstance(make_policy("priority"), PriorityPolicy)
    own = FCFSPolicy()
    assert make_policy(own) is own


def test_an_unknown_policy_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"policy is 'sjf', known are \['fcfs', 'priority'\] or an object"):
        make_policy("sjf")


class ShortestFirst(FCFSPolicy):
    """A policy of a user: short prompts first; the longest gives way."""

    def candidates(self, limit: int, now: float) -> Sequence[RequestState]:
        return sorted(self, key=lambda state: state.num_tokens)[:limit]

    def victims(self, running: Sequence[RequestState]) -> Iterable[RequestState]:
        return sorted(running, key=lambda state: -len(state.request.prompt_token_ids))


def test_a_policy_of_the_user_orders_admission():
    play = Play(policy=ShortestFirst(), max_num_running_reqs=2)
    for name, count in {"long": 30, "short": 5, "middle": 20}.items():
        play.add(name, count)
    assert list(play.step()) == ["short", "middle"]
    assert play.waiting() == ["long"]


def test_a_policy_of_the_user_chooses_victims():
    play = Play(policy=ShortestFirst(), blocks=4)
    play.add("long", 32)
    play.step()
    play.add("short", 16)
    assert play.step() == {"long": 1, "short": 16}
    assert play.step() == {"short": 1}
    assert play.last_plan.preempted_req_ids == {"long"}


class Waits(FCFSPolicy):
    """A policy of a user that reads the clock: nobody is admitted before ten seconds have passed."""

    def candidates(self, limit: int, now: float) -> Sequence[RequestState]:
        return super().candidates(limit, now) if now >= 10 else []


def test_a_policy_is_told_the_time():
    play = Play(policy=Waits())
    play.add("a", 5)
    assert play.scheduler.propose(now=9.0) is None
    wants = play.scheduler.propose(now=10.0)
    assert wants is not None
    assert [admit.req_id for admit in wants.admit] == ["a"]
