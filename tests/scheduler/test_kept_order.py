"""Whose kept blocks are taken first: those of the last in the queue, whatever a policy says of victims."""

from typing import Any

from play import Play, ToyPlay

from callboard.scheduler import FCFSPolicy, RequestState, RequestStatus


class FewVictims(FCFSPolicy):
    """Names one victim only, and refuses to be asked of requests that do not run."""

    def victims(self, running: Any) -> Any:
        assert all(state.row >= 0 for state in running)
        return [running[-1]] if running else []


class HalfBlind(FCFSPolicy):
    """Shows no preempted request when its queue is looked through."""

    def __iter__(self) -> Any:
        return iter([state for state in super().__iter__() if not state.num_preemptions])


class InOrder(list[RequestState]):
    """A queue in the order in which it is filled."""

    add = list[RequestState].append

    def requeue(self, state: RequestState) -> None:
        self.insert(0, state)

    def candidates(self, limit: int, now: float) -> list[RequestState]:
        return self[:limit]

    def victims(self, running: Any) -> Any:
        return reversed(running)


def preempted(play: Play, *names: str) -> None:
    """Admit these and take their rows again; a policy of the user's stays the one that orders them."""
    for name in names:
        play.add(name, 10)
    play.step()
    for state in reversed(play.scheduler.books.running()):
        play.scheduler.books.requests[state.request_id].num_held = 10
        play.scheduler._departures.preempt(state, 0.0)  # pyright: ignore[reportPrivateUsage]


def test_the_last_in_the_queue_gives_its_blocks_first():
    play = Play(policy="priority")
    play.add("soon", 10, priority=1)
    play.add("late", 10, priority=9)
    play.step()
    for state in reversed(play.scheduler.books.running()):
        play.scheduler._departures.preempt(state, 0.0)  # pyright: ignore[reportPrivateUsage]
    assert play.scheduler.books.waiting.holders() == ["late", "soon"]


def test_a_policy_is_asked_for_victims_among_those_who_run_only():
    play = Play(policy=FewVictims())
    preempted(play, "a", "b", "c")
    assert play.scheduler.books.waiting.holders() == ["c", "b", "a"]


def test_what_a_policy_does_not_show_is_within_reach_too():
    play = Play(policy=HalfBlind())
    preempted(play, "a", "b")
    assert sorted(play.scheduler.books.waiting.holders()) == ["a", "b"]


def test_with_such_a_policy_everybody_ends_with_the_tokens_it_gets_alone():
    play = ToyPlay(blocks=12, policy=FewVictims(), max_num_running_reqs=4)
    for name in "abcd":
        play.add(name, 12, max_tokens=20)
    play.until_done(2)
    play.assert_as_alone()
    assert play.scheduler.statistics().num_preemptions
    assert play.free_blocks() == 12


def test_a_swap_keeps_the_order_of_arrival_and_not_that_of_the_clock():
    play = Play(max_num_running_reqs=1, policy=InOrder())
    for name, arrived in (("first", 9.0), ("second", 5.0), ("third", 7.0)):
        play.add(name, 10, arrival_time=arrived)
    play.scheduler.swap_policy(InOrder())
    assert play.waiting() == ["first", "second", "third"]


def test_a_policy_that_still_holds_a_request_sees_that_it_has_ended():
    play = Play()
    play.add("a", 10, max_tokens=1)
    state = play.scheduler.books.requests["a"]
    assert not state.status.is_finished
    play.step()
    assert state.status is RequestStatus.FINISHED_LENGTH_CAPPED
    assert state.status.is_finished
