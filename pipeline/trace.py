"""A trace of the engine's actors, for Perfetto (ui.perfetto.dev) or chrome://tracing.

One track for each actor holds its turns; the runner's steps have a track of their own, "device",
and so has the making of their masks, "masks".
Counters show how full each lane is. A turn lasts from an actor's wake-up to its next wait; a
step from the moment when the runner has it and is done with the one before, until the loop
sees its result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.to_thread
import msgspec
import structlog

from ..actors import Actor, LoopPort
from ..actors.tasks import finish
from ..scheduler.errors import ConfigError

log: Any = structlog.get_logger(__name__)

# Entries that a trace holds at most, some 100 bytes each; what comes later is counted only.
ENTRY_LIMIT = 1_000_000
# Seconds that writing the file may take when the trace ends.
WRITE_LIMIT = 60.0

Event = dict[str, Any]


class TraceLog:
    """Collects what actors do, as an observer; makes Chrome's JSON of it.

    Args:
        actors: those watched.
        clock: seconds on the loop's clock.
    """

    def __init__(self, actors: Iterable[Actor], clock: Callable[[], float], limit: int = ENTRY_LIMIT) -> None:
        self._actors = {actor.name: actor for actor in actors}
        self._clock, self._limit = clock, limit
        self._began = clock()
        self._woke: dict[str, float] = {}  # when the turn began of each actor that has one
        self._slices: list[tuple[str, str, float, float, dict[str, Any]]] = []  # track, name, began, ended, facts
        self._depths: list[tuple[str, float, int]] = []  # lane, when, places taken
        self._last_depth: dict[str, int] = {}
        self.num_dropped = 0  # entries beyond the limit

    # --- as an observer

    def time(self) -> float:
        """Seconds on the loop's clock."""
        return self._clock()

    def wakes(self, actor: str) -> None:
        """Its turn begins."""
        self._woke[actor] = now = self._clock()
        self._note_depths(actor, now)

    def sleeps(self, actor: str, wait: str) -> None:
        """Its turn has ended."""
        now = self._clock()
        began = self._woke.pop(actor, None)
        if began is not None:
            self._add(actor, "turn", began, now, {"then waits for": wait})
            self._note_depths(actor, now)

    def worked(self, where: str, what: str, began: float, ended: float, facts: dict[str, int]) -> None:
        """Something took place outside of the loop's thread."""
        self._add(where, what, began, ended, facts)

    # --- inside

    def _add(self, track: str, name: str, began: float, ended: float, facts: dict[str, Any]) -> None:
        if self._has_room():
            self._slices.append((track, name, began, ended, facts))

    def _note_depths(self, actor: str, now: float) -> None:
        for lane, depth in self._actors[actor].mailbox.used().items():
            name = f"{actor} {lane}"
            if self._last_depth.get(name) != depth and self._has_room():
                self._last_depth[name] = depth
                self._depths.append((name, now, depth))

    def _has_room(self) -> bool:
        room = len(self._slices) + len(self._depths) < self._limit
        self.num_dropped += not room
        return room

    # --- the file

    def events(self) -> list[Event]:
        """Chrome's trace events, times in microseconds since the trace began."""
        tracks = {name: number for number, name in enumerate([*self._actors, "device"], 1)}
        for track, *_ in self._slices:
            tracks.setdefault(track, len(tracks) + 1)
        names = [_named("process_name", 0, "callboard"), *(_named("thread_name", n, t) for t, n in tracks.items())]
        turns = [
            {"ph": "X", "pid": 1, "tid": tracks[track], "name": name, "ts": self._micros(began),
             "dur": (ended - began) * 1e6, "args": facts}
            for track, name, began, ended, facts in self._slices
        ]  # fmt: skip
        depths = [
            {"ph": "C", "pid": 1, "name": name, "ts": self._micros(when), "args": {"places": depth}}
            for name, when, depth in self._depths
        ]
        return [*names, *turns, *depths]

    def encode(self) -> bytes:
        """The whole file."""
        other = {"dropped_entries": self.num_dropped}
        return msgspec.json.encode({"traceEvents": self.events(), "displayTimeUnit": "ms", "otherData": other})

    def _micros(self, when: float) -> float:
        return (when - self._began) * 1e6


def _named(kind: str, track: int, name: str) -> Event:
    return {"ph": "M", "pid": 1, "tid": track, "name": kind, "args": {"name": name}}


class Trace:
    """What ``Engine.trace`` returns: watches as long as its ``async with`` lasts, then writes the file.

    The file is written in a thread, also when the block is left by an error or a cancel.
    """

    def __init__(self, path: str | Path, actors: Iterable[Actor], port: LoopPort) -> None:
        self.path = Path(path)
        self._actors, self._port = list(actors), port
        self.log: TraceLog | None = None  # from the start on

    async def __aenter__(self) -> Self:
        if self.log is not None or any(actor.observer is not None for actor in self._actors):
            raise ConfigError("the engine is being traced already, one trace at a time is allowed")
        self.path.write_bytes(b"")  # a path that cannot be written is told now and not at the end
        self.log = TraceLog(self._actors, self._port.fine_time)
        for actor in self._actors:
            actor.observe(self.log)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        for actor in self._actors:
            actor.observe(None)
        if not await finish(self._write, seconds=WRITE_LIMIT, name="write trace"):
            log.error("trace_not_written", path=str(self.path), waited_seconds=WRITE_LIMIT)

    async def _write(self) -> None:
        # A limiter of its own: the host's may be taken by threads that wait for this engine.
        await anyio.to_thread.run_sync(self._write_file, limiter=anyio.CapacityLimiter(1))

    def _write_file(self) -> None:
        assert self.log is not None
        self.path.write_bytes(self.log.encode())
        if self.log.num_dropped:
            log.warning("trace_is_cut", path=str(self.path), dropped=self.log.num_dropped, limit=ENTRY_LIMIT)
