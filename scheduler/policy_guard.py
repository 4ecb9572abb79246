"""A user's policy behind a guard: what it must not do is told by name, before it does harm."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from .errors import ConfigError, PolicyError
from .policy import FCFSPolicy, Policy, PriorityPolicy
from .request import RequestState

T = TypeVar("T")


def make_policy(policy: str | Policy) -> Policy:
    """The policy of a name, or the object itself behind a guard. Raises ConfigError for an unknown name."""
    if not isinstance(policy, str):
        return _unused(policy) if type(policy) in (FCFSPolicy, PriorityPolicy) else GuardedPolicy(policy)
    known = {"fcfs": FCFSPolicy, "priority": PriorityPolicy}
    if policy not in known:
        raise ConfigError(f"policy is {policy!r}, known are {sorted(known)} or an object with the methods of Policy")
    return known[policy]()


def unguarded(policy: Policy) -> Policy:
    """The user's policy itself, where this is its guard."""
    return policy.policy if isinstance(policy, GuardedPolicy) else policy


def _unused(policy: Policy) -> Policy:
    if held := len(policy):
        raise ConfigError(f"policy {type(policy).__name__} holds {held} requests already: it serves another engine")
    return policy


def hand_over(waiting: Policy, policy: Policy) -> Policy:
    """Give all that wait to an empty policy, in order of arrival; who has run already goes to its head.

    The old queue stays as it is. Raises PolicyError if the new one fails.
    """
    states = sorted(waiting, key=lambda state: state.number)
    begun = [state for state in states if state.num_preemptions]
    for state in states:
        if not state.num_preemptions:
            policy.add(state)
    for state in reversed(begun):
        policy.requeue(state)
    return policy


class GuardedPolicy:
    """Calls a policy and checks its answers against the requests that it was given.

    Raises PolicyError, with the policy's own error as its cause, from every method.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._waiting: dict[str, RequestState] = {}
        self._call("__len__", lambda: _unused(policy))

    @property
    def name(self) -> str:
        """The policy's type."""
        return type(self.policy).__name__

    def add(self, state: RequestState) -> None:
        """Take in a new request."""
        self._call("add", lambda: self.policy.add(state), state)
        self._waiting[state.request_id] = state

    def requeue(self, state: RequestState) -> None:
        """Take back a preempted request."""
        self._call("requeue", lambda: self.policy.requeue(state), state)
        self._waiting[state.request_id] = state

    def remove(self, state: RequestState) -> None:
        """Give up a request."""
        self._call("remove", lambda: self.policy.remove(state), state)
        del self._waiting[state.request_id]

    def candidates(self, limit: int, now: float) -> Sequence[RequestState]:
        """At most ``limit`` requests that wait, each once."""
        chosen = self._call("candidates", lambda: list(self.policy.candidates(limit, now)))
        if len(chosen) > limit:
            raise PolicyError(f"{self.name}.candidates gave {len(chosen)} requests, limit is {limit}")
        self._check("candidates", chosen, self._waiting)
        return chosen

    def victims(self, running: Sequence[RequestState]) -> Iterable[RequestState]:
        """Running requests, each once."""
        chosen = self._call("victims", lambda: list(self.policy.victims(running)))
        self._check("victims", chosen, {state.request_id: state for state in running})
        return chosen

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[RequestState]:
        return iter(self._call("__iter__", lambda: list(self.policy)))

    def _call(self, method: str, call: Callable[[], T], state: RequestState | None = None) -> T:
        try:
            return call()
        except ConfigError:
            raise
        except Exception as error:
            which = f" (request {state.request_id})" if state else ""
            raise PolicyError(f"{self.name}.{method} failed: {error!r}{which}") from error

    def _check(self, method: str, chosen: Sequence[RequestState], known: dict[str, RequestState]) -> None:
        seen: set[int] = set()
        for state in chosen:
            if known.get(getattr(state, "request_id", "")) is not state:
                raise PolicyError(f"{self.name}.{method} gave {state!r}, which is not one of its requests")
            if id(state) in seen:
                raise PolicyError(f"{self.name}.{method} gave request {state.request_id} twice")
            seen.add(id(state))
