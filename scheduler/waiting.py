"""The requests that hold no row: in whose order they are asked for, and what some of them keep."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from .config import check_policy
from .draft import Head
from .errors import BooksError
from .limits import PRIORITY_LIMIT
from .pause import PauseState
from .policy import FCFSPolicy, Policy, PriorityPolicy
from .policy_guard import Claim, GuardedPolicy, hand_over, held_by, make_policy, unguarded
from .request import RequestStatus
from .request_state import RequestState
from .sessions import Sessions, holder_of

MOST_PATIENT = PRIORITY_LIMIT - 1  # no request comes after one with this priority number


class WaitingRoom:
    """A policy's queue, and who of those in it has run already.

    Args:
        policy: a name, or an object with the methods of ``Policy``.
        priority_preemption: whether under the priority policy urgent requests displace running ones.
        max_backfill: requests behind a head without room that may be asked for in its place.
    """

    def __init__(self, policy: str | Policy, *, priority_preemption: bool, max_backfill: int) -> None:
        self.policy = hand_over((), make_policy(policy))
        self._claim = Claim(policy)
        self.pause_state = PauseState.UNPAUSED
        self.refused = False  # the head of the queue found no room in the last step
        self.held_back = False  # the policy named none of its requests when it was last asked
        self.preempted: dict[str, RequestState] = {}
        self.sessions = Sessions()
        self._priority_preemption, self._max_backfill = priority_preemption, max_backfill

    def __len__(self) -> int:
        return len(self.policy)

    @property
    def displaces(self) -> bool:
        """Whether a more urgent request takes blocks and rows of running ones."""
        return self._priority_preemption and isinstance(unguarded(self.policy), PriorityPolicy)

    @property
    def waits_for_change(self) -> bool:
        """Whether nobody will find room before something changes in the KV cache.

        Under a policy of a user's the first of the queue may be another with time alone.
        """
        return self.refused and not self._max_backfill and type(self.policy) in (FCFSPolicy, PriorityPolicy)

    def add(self, state: RequestState) -> None:
        """Take in a new request."""
        self.policy.add(state)
        self.refused = False  # it may come before the one that found no room

    def requeue(self, state: RequestState, *, out_of_turn: bool) -> None:
        """Take back a preempted request; of several the last admitted comes first.

        One that ran out of its turn goes back to its own place, behind those that it had overtaken.
        """
        state.status = RequestStatus.PREEMPTED
        (self.policy.add if out_of_turn else self.policy.requeue)(state)
        self.preempted[state.request_id] = state

    def admit(self, state: RequestState) -> None:
        """Give up a request that has got a row."""
        self.policy.remove(state)
        if self.preempted.pop(state.request_id, None) is None:  # whoever was preempted goes on from what is its own
            self.sessions.resume(state.request)

    def end(self, state: RequestState) -> bool:
        """Give up a request that has ended; whether the KV cache may keep blocks for it."""
        self.policy.remove(state)
        self.refused = False
        return self.preempted.pop(state.request_id, None) is not None

    def kept_for(self, state: RequestState) -> tuple[str | None, int]:
        """The session's holder that a request may go on from (None: its own), and its tokens computed there."""
        if state.request_id in self.preempted:
            return None, state.num_held
        return self.sessions.kept_for(state)

    def swap(self, policy: str | Policy) -> None:
        """Let another policy order those who wait. Raises ConfigError or PolicyError; then the old one stays."""
        check_policy(policy)
        claim = Claim(policy)
        try:
            self.policy = hand_over(held_by(self.policy), make_policy(policy))
        except BaseException:
            claim.let_go()
            raise
        self.let_go_policy()
        self._claim = claim
        self.refused = False

    def let_go_policy(self) -> None:
        """Another engine may use the policy's object, once nobody waits under it."""
        self._claim.let_go()

    @property
    def policy_failure(self) -> str | None:
        """Why the user's policy was given up, if it was: who waits is served first come, first served."""
        guard = self.policy
        return str(guard.failure) if isinstance(guard, GuardedPolicy) and guard.failure else None

    def candidates(self, most: int, now: float, *, blocks_come_back: bool) -> Sequence[RequestState]:
        """Whom to ask for, in order. Behind a head without room only those who may use what it cannot."""
        if self.refused and not blocks_come_back:
            most = min(most, 1 + self._max_backfill)
        if self.pause_state is PauseState.PAUSED_ALL:
            return ()
        if self.pause_state is PauseState.PAUSED_NEW:
            begun = (state for state in self.policy if state.request_id in self.preempted)
            return list(islice(begun, min(most, len(self.preempted))))
        if not most or not len(self.policy):
            return ()
        found = self.policy.candidates(most, now)
        self.held_back = not found
        return found

    def head(self, now: float, *, by_priority: bool) -> Head | None:
        """The first that may be admitted; without ``by_priority`` it comes before nobody by its priority."""
        for state in self.candidates(1, now, blocks_come_back=True):
            return Head(
                max(state.num_tokens - state.num_held, 1), state.request.priority if by_priority else MOST_PATIENT
            )
        return None

    def holders(self) -> list[str]:
        """Those who may keep blocks: sessions, the longest parked first, then the last of the queue first."""
        parked = list(map(holder_of, self.sessions.parked))
        if not self.preempted:
            return parked
        if isinstance(self.policy, FCFSPolicy | PriorityPolicy):
            order = [state.request_id for state in self.policy.in_order(self.preempted.values())]
        else:
            begun = (state.request_id for state in self.policy if state.request_id in self.preempted)
            order = list(islice(begun, len(self.preempted)))
        # A policy that does not show all of its queue puts nobody's blocks out of reach.
        return parked + [req_id for req_id in self.preempted if req_id not in order] + order[::-1]

    @property
    def num_to_do(self) -> int:
        """Requests that are to be admitted in the present state of the pause."""
        if self.pause_state is PauseState.UNPAUSED:
            return len(self.policy)
        return 0 if self.pause_state is PauseState.PAUSED_ALL else len(self.preempted)

    def check(self, known: dict[str, RequestState]) -> None:
        """Raise BooksError if somebody has run already who is not known, or if the count of a session is wrong."""
        if strangers := [name for name, state in self.preempted.items() if known.get(name) is not state]:
            raise BooksError(f"preempted requests are not known: {strangers}")
        self.sessions.check(known.values())
