"""Who is served next, and who gives way: the waiting queue and the choice of victims."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from heapq import merge
from itertools import chain, islice
from typing import Protocol, runtime_checkable

from .request_state import RequestState


@runtime_checkable
class Policy(Protocol):
    """Order of the waiting requests and of the victims; an extension point.

    A policy holds the waiting requests only. All methods are called from the scheduler's
    turn and must not block. An object serves one engine at a time.

    ``add`` may raise, which refuses a new request: it ends with that error. A policy that raises
    elsewhere, or answers what cannot be, is given up: that is logged as an error and told by
    ``Engine.diagnose``, and all requests go on, first come, first served, until another policy
    is swapped in.
    """

    def add(self, state: RequestState) -> None:
        """Take in a new request."""
        ...

    def requeue(self, state: RequestState) -> None:
        """Take back a preempted request; victims of one step come last admitted first."""
        ...

    def remove(self, state: RequestState) -> None:
        """Give up a request that was admitted or has ended; it is in the queue."""
        ...

    def candidates(self, limit: int, now: float) -> Sequence[RequestState]:
        """At most ``limit`` requests in the order in which they should be admitted.

        Fewer, or none, holds the others back. It is called again in each step while others run, and when
        something arrives; where nothing runs, nothing else makes the engine ask: ``Engine.diagnose`` says
        so, and whoever holds requests back by the clock calls ``Engine.resume`` when their time has come.
        """
        ...

    def victims(self, running: Sequence[RequestState]) -> Iterable[RequestState]:
        """The running requests (given in admission order), the first to give way first.

        Those left out give way last, the last admitted first: else those that run could wait for each other.
        """
        ...

    def __len__(self) -> int:
        """How many wait."""
        ...

    def __iter__(self) -> Iterator[RequestState]:
        """All that wait, in order of admission; the queue stays as it is."""
        ...


class FCFSPolicy:
    """First come, first served; the last admitted gives way first.

    A request that was held up (its grammar took its time) still has the place of its arrival.
    """

    def __init__(self) -> None:
        # Ordered by admission; removal from the middle (an abort) costs the same at any length.
        self._back: OrderedDict[str, RequestState] = OrderedDict()  # preempted: before all others
        self._queue: OrderedDict[str, RequestState] = OrderedDict()
        self._late: list[RequestState] = []  # arrived before others that joined the queue before them; in order
        self._newest = 0  # arrival number of the last that joined the queue

    def add(self, state: RequestState) -> None:
        if state.number < self._newest:
            insort(self._late, state, key=_number)
            return
        self._newest = state.number
        self._queue[state.request_id] = state

    def requeue(self, state: RequestState) -> None:
        self._back[state.request_id] = state
        self._back.move_to_end(state.request_id, last=False)

    def remove(self, state: RequestState) -> None:
        for queue in (self._queue, self._back):
            if queue.get(state.request_id) is state:
                del queue[state.request_id]
                return
        del self._late[next(place for place, late in enumerate(self._late) if late is state)]

    def candidates(self, limit: int, now: float) -> Sequence[RequestState]:  # noqa: ARG002 - other policies age
        return list(islice(iter(self), limit))

    def victims(self, running: Sequence[RequestState]) -> Iterable[RequestState]:
        return reversed(running)

    def in_order(self, states: Collection[RequestState]) -> list[RequestState]:
        """Some of those that wait, in order, without a walk through all."""
        wanted = {id(state) for state in states}
        back = [state for state in self._back.values() if id(state) in wanted]
        wanted.difference_update(map(id, back))
        return back + sorted((state for state in states if id(state) in wanted), key=_number)

    def __len__(self) -> int:
        return len(self._back) + len(self._queue) + len(self._late)

    def __iter__(self) -> Iterator[RequestState]:
        if not self._back and not self._late:
            return iter(self._queue.values())
        return chain(self._back.values(), merge(self._late, self._queue.values(), key=_number))


def _number(state: RequestState) -> int:
    return state.number


PriorityKey = tuple[int, float, str]


class PriorityPolicy:
    """Smaller priority first, then earlier arrival, then smaller id; the worst gives way first."""

    def __init__(self) -> None:
        # One sorted list: an insertion moves pointers only, 8 bytes a waiting request.
        self._keys: list[PriorityKey] = []
        self._states: dict[str, RequestState] = {}

    def add(self, state: RequestState) -> None:
        insort(self._keys, _key(state))
        self._states[state.request_id] = state

    def requeue(self, state: RequestState) -> None:
        self.add(state)

    def remove(self, state: RequestState) -> None:
        del self._keys[bisect_left(self._keys, _key(state))]
        del self._states[state.request_id]

    def in_order(self, states: Collection[RequestState]) -> list[RequestState]:
        """Some of those that wait, in order, without a walk through all."""
        return sorted(states, key=_key)

    def candidates(self, limit: int, now: float) -> Sequence[RequestState]:  # noqa: ARG002 - other policies age
        return [self._states[key[2]] for key in self._keys[:limit]]

    def victims(self, running: Sequence[RequestState]) -> Iterable[RequestState]:
        return sorted(running, key=_key, reverse=True)

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[RequestState]:
        return (self._states[key[2]] for key in self._keys)


def _key(state: RequestState) -> PriorityKey:
    request = state.request
    return (request.priority, request.arrival_time, request.request_id)
