"""A user's policy behind a guard: what it must not do is told by name, and costs no request its place.

A policy that fails is given up, and all that wait go on first come, first served. Only ``add``
may raise: that refuses the request, and nobody else hears of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, TypeVar
from weakref import WeakValueDictionary

import structlog

from .errors import ConfigError, PolicyError
from .policy import FCFSPolicy, Policy, PriorityPolicy
from .ranges import shown
from .request_state import RequestState

T = TypeVar("T")
log: Any = structlog.get_logger(__name__)


def make_policy(policy: str | Policy) -> Policy:
    """The policy of a name, or the object itself behind a guard. Raises ConfigError for an unknown name."""
    if not isinstance(policy, str):
        return _unused(policy) if type(policy) in (FCFSPolicy, PriorityPolicy) else GuardedPolicy(policy)
    known = {"fcfs": FCFSPolicy, "priority": PriorityPolicy}
    if policy not in known:
        raise ConfigError(
            f"policy is {shown(policy)}, known are {sorted(known)} or an object with the methods of Policy"
        )
    return known[policy]()


def unguarded(policy: Policy) -> Policy:
    """The user's policy itself, where this is its guard."""
    return policy.policy if isinstance(policy, GuardedPolicy) else policy


def _unused(policy: Policy) -> Policy:
    if held := len(policy):
        raise ConfigError(f"policy {type(policy).__name__} holds {held} requests already: it serves another engine")
    return policy


class Claim:
    """Keeps a policy's object for one engine until it is let go. Raises ConfigError if another one has it."""

    # By the object's id, which nothing else has while its claim lives.
    _held: ClassVar[WeakValueDictionary[int, Claim]] = WeakValueDictionary()

    def __init__(self, policy: str | Policy) -> None:
        self._policy = policy
        if not isinstance(policy, str) and self._held.setdefault(id(policy), self) is not self:
            raise ConfigError(
                f"policy {type(policy).__name__} serves another engine, or this one, already: each needs its own"
            )

    def let_go(self) -> None:
        """Another engine may have it."""
        if self._held.get(id(self._policy)) is self:
            del self._held[id(self._policy)]


def hand_over(states: Iterable[RequestState], policy: Policy) -> Policy:
    """Give all that wait to an empty policy, in order of arrival; who has run already goes to its head.

    Raises PolicyError if it fails.
    """
    states = sorted(states, key=lambda state: state.number)
    begun = [state for state in states if state.num_preemptions]
    for state in states:
        if not state.num_preemptions:
            policy.add(state)
    for state in reversed(begun):
        policy.requeue(state)
    if isinstance(policy, GuardedPolicy):
        policy.begin()
    return policy


def held_by(policy: Policy) -> Iterable[RequestState]:
    """All that wait under a policy, whatever a user's would say of them."""
    return policy.held if isinstance(policy, GuardedPolicy) else policy


class GuardedPolicy:
    """Calls a policy and checks its answers against the requests that it was given.

    Until ``begin`` every failure is raised as PolicyError, with the policy's own error as its
    cause. From then on ``failure`` holds the first, and the requests are served by FCFSPolicy.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.name = type(policy).__name__
        self.failure: PolicyError | None = None
        self._begun = False
        self._waiting: dict[str, RequestState] = {}
        if held := self._call("__len__", lambda: len(policy)):
            raise ConfigError(f"policy {self.name} holds {held} requests already: it serves another engine")

    def begin(self) -> None:
        """Serve; the policy has all that wait. Raises PolicyError if it does not say so."""
        list(self)
        self._begun = True

    @property
    def held(self) -> list[RequestState]:
        """All that wait, in no certain order."""
        return list(self._waiting.values())

    def add(self, state: RequestState) -> None:
        """Take in a request. Raises PolicyError where the policy does not take in a new one."""
        try:
            self._call("add", lambda: self.policy.add(state), state)
            self._waiting[state.request_id] = state
        except PolicyError as error:
            if not state.num_preemptions:
                raise
            self._waiting[state.request_id] = state  # it has begun: it cannot be refused any more
            self._give_up(error)

    def requeue(self, state: RequestState) -> None:
        """Take back a preempted request."""
        self._waiting[state.request_id] = state
        try:
            self._call("requeue", lambda: self.policy.requeue(state), state)
        except PolicyError as error:
            self._give_up(error)

    def remove(self, state: RequestState) -> None:
        """Give up a request."""
        del self._waiting[state.request_id]
        try:
            self._call("remove", lambda: self.policy.remove(state), state)
        except PolicyError as error:
            self._give_up(error)

    def candidates(self, limit: int, now: float) -> Sequence[RequestState]:
        """At most ``limit`` requests that wait, each once."""
        return self._answer("candidates", lambda: self.policy.candidates(limit, now), self._waiting, most=limit)

    def victims(self, running: Sequence[RequestState]) -> Iterable[RequestState]:
        """The running requests, each once; those that the policy left out come last."""
        known = {state.request_id: state for state in running}
        named = self._answer("victims", lambda: self.policy.victims(running), known, most=len(known))
        for state in named:
            del known[state.request_id]
        return [*named, *reversed(known.values())]

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[RequestState]:
        count = len(self._waiting)
        return iter(self._answer("__iter__", lambda: iter(self.policy), self._waiting, most=count, least=count))

    # --- the guard

    def _answer(
        self,
        method: str,
        ask: Callable[[], Iterable[RequestState]],
        known: Mapping[str, RequestState],
        *,
        most: int,
        least: int = 0,
    ) -> list[RequestState]:
        """What the policy answers, if it can be; else what FCFSPolicy does."""
        try:
            # One more than it may be: an answer without an end is found out too.
            chosen = self._call(method, lambda: list(islice(ask(), most + 1)))
            self._check(method, chosen, known)
            if not least <= len(chosen) <= most:
                count = f"{len(chosen)} requests" if len(chosen) < least else f"more than {most} requests"
                raise PolicyError(f"{self.name}.{method} gave {count}, needed are {least} to {most}")
        except PolicyError as error:
            self._give_up(error)
            return list(ask())
        return chosen

    def _check(self, method: str, chosen: Sequence[object], known: Mapping[str, RequestState]) -> None:
        seen: set[int] = set()
        for state in chosen:
            if not isinstance(state, RequestState) or known.get(state.request_id) is not state:
                raise PolicyError(f"{self.name}.{method} gave {shown(state)}, which is not one of its requests")
            if id(state) in seen:
                raise PolicyError(f"{self.name}.{method} gave request {state.request_id} twice")
            seen.add(id(state))

    def _call(self, method: str, call: Callable[[], T], state: RequestState | None = None) -> T:
        try:
            return call()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # what looks like a cancellation comes from the policy too: nothing waits in it
            which = f" (request {state.request_id})" if state else ""
            raise PolicyError(f"{self.name}.{method} failed: {error!r}{which}") from error

    def _give_up(self, error: PolicyError) -> None:
        """Go on without the policy. Before it has begun there is nothing to go on with: raises the error."""
        if not self._begun:
            raise error
        log.error("policy_failed", policy=self.name, error=str(error), goes_on="fcfs", exc_info=error)
        self.failure = error
        self.policy = hand_over(self._waiting.values(), FCFSPolicy())
