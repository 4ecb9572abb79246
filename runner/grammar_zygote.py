"""The process that compiles grammars: one short-lived child for each, which can be stopped at any time.

Compilers are native code that may run for hours on a few hundred bytes of schema, cannot be
interrupted, and may take all memory. So each grammar is compiled in a child of its own: forked in
milliseconds from a process that has everything imported, with a limit of memory, a lower
priority, and a time after which it is killed. Its result comes back as bytes.

This process has no event loop and no thread. It reads one message from each of its lanes, the
sockets that it was started with, forks, and answers. It ends when a lane is closed: its parent
has ended, or wants it to.
"""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import socket
import struct
import tempfile
from contextlib import suppress
from time import monotonic
from typing import NoReturn

import msgspec

from .grammar_answer import Compile, Compiled, first_line, first_warning
from .grammar_spec import GrammarConfig, GrammarSpec, Vocabulary

_LENGTH = struct.Struct("<Q")
_CHUNK = 1 << 20
MAX_RESULT_BYTES = 64 << 20
_PR_SET_PDEATHSIG = 1
NICENESS = 10  # compiling gives way to the steps of requests that run


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """The first message on the first lane."""

    vocabulary: Vocabulary
    limits: GrammarConfig


def frame_of(message: msgspec.Struct) -> bytes:
    """One record as it goes over a lane."""
    data = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(data)) + data


def send_frame(lane: socket.socket, message: msgspec.Struct) -> None:
    """Send one record; blocks until it is out."""
    lane.sendall(frame_of(message))


def read_frame(lane: socket.socket) -> bytes | None:
    """One record's bytes; None at the end of the lane."""
    head = _read(lane, _LENGTH.size)
    return None if head is None else _read(lane, _LENGTH.unpack(head)[0])


def _read(lane: socket.socket, count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        try:
            data = lane.recv(min(count - len(parts), _CHUNK))
        except OSError:
            return None
        if not data:
            return None
        parts += data
    return bytes(parts)


def main(fds: list[int]) -> None:
    """Serve the lanes behind these file descriptors until one is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent decides
    lanes = [socket.socket(fileno=fd) for fd in fds]
    first = read_frame(lanes[0])
    if first is None:
        return
    try:
        setup = msgspec.msgpack.decode(first, type=Setup)
        from .xgrammar_backend import make_compile  # noqa: PLC0415 - seconds, and only in this process

        compile_spec = make_compile(setup.vocabulary)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent must hear of it
        send_frame(lanes[0], Compiled(error=f"the grammar compiler does not start: {error!r}"))
        return
    send_frame(lanes[0], Compiled())
    _Zygote(lanes, setup.limits, compile_spec).serve()


class _Job:
    """A child at work."""

    def __init__(self, lane: socket.socket, pid: int, pipe: int, deadline: float) -> None:
        self.lane, self.pid, self.pipe, self.deadline = lane, pid, pipe, deadline
        self.data = bytearray()


class _Zygote:
    """Forks a child for each grammar that is asked for, and kills it when its time is up."""

    def __init__(self, lanes: list[socket.socket], limits: GrammarConfig, compile_spec: Compile) -> None:
        self._limits, self._compile = limits, compile_spec
        self._jobs: dict[int, _Job] = {}  # by pipe
        self._selector = selectors.DefaultSelector()
        for lane in lanes:
            self._selector.register(lane, selectors.EVENT_READ, lane)

    def serve(self) -> None:
        while True:
            first = min((job.deadline for job in self._jobs.values()), default=None)
            for key, _ in self._selector.select(None if first is None else max(0.0, first - monotonic())):
                if isinstance(key.data, _Job):
                    self._read_child(key.data)
                elif not self._begin(key.data):
                    return self._kill_all()
            for job in [job for job in self._jobs.values() if job.deadline <= monotonic()]:
                os.kill(job.pid, signal.SIGKILL)
                self._end(
                    job, Compiled(error=f"it took more than {self._limits.compile_seconds} s, which is the limit")
                )

    def _begin(self, lane: socket.socket) -> bool:
        data = read_frame(lane)
        if data is None:
            return False
        spec = msgspec.msgpack.decode(data, type=GrammarSpec)
        pipe, end = os.pipe()
        pid = os.fork()
        if not pid:
            _child(end, spec, self._limits, self._compile)
        os.close(end)
        job = self._jobs[pipe] = _Job(lane, pid, pipe, monotonic() + self._limits.compile_seconds)
        self._selector.register(pipe, selectors.EVENT_READ, job)
        return True

    def _read_child(self, job: _Job) -> None:
        data = os.read(job.pipe, _CHUNK)
        job.data += data
        if len(job.data) > MAX_RESULT_BYTES:
            os.kill(job.pid, signal.SIGKILL)
            self._end(job, Compiled(error=f"the grammar has more than {MAX_RESULT_BYTES} bytes, which is the limit"))
        elif not data:
            self._end(job, None)

    def _end(self, job: _Job, answer: Compiled | None) -> None:
        self._selector.unregister(job.pipe)
        os.close(job.pipe)
        del self._jobs[job.pipe]
        _, status = os.waitpid(job.pid, 0)
        if answer is None:
            answer = self._answer(job, os.waitstatus_to_exitcode(status))
        with suppress(OSError):  # the parent has gone; the lane's end says so too
            send_frame(job.lane, answer)

    def _answer(self, job: _Job, code: int) -> Compiled:
        if code == 0:
            return msgspec.msgpack.decode(job.data, type=Compiled)
        megabytes = self._limits.compile_memory >> 20
        why = f"signal {-code}" if code < 0 else f"code {code}"
        return Compiled(error=f"compiling it broke down ({why}): too deep, or beyond its {megabytes} MiB of memory")

    def _kill_all(self) -> None:
        for job in self._jobs.values():
            os.kill(job.pid, signal.SIGKILL)
            os.waitpid(job.pid, 0)


def _child(end: int, spec: GrammarSpec, limits: GrammarConfig, compile_spec: Compile) -> NoReturn:
    """Compile, write the answer, and vanish without running anything of the parent's."""
    code = 1
    try:
        _limit(limits)
        data = memoryview(msgspec.msgpack.encode(_attempt(spec, compile_spec)))
        while data:
            data = data[os.write(end, data) :]
        code = 0
    finally:
        os._exit(code)


def _limit(limits: GrammarConfig) -> None:
    import resource  # noqa: PLC0415 - not on every system

    os.nice(NICENESS)
    _die_with_parent()
    seconds = int(limits.compile_seconds) + 2  # of computing; a net under the parent, which kills earlier
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(ValueError, OSError):  # macOS knows no limit of address space
        used = _address_space() + limits.compile_memory
        resource.setrlimit(resource.RLIMIT_AS, (used, used))


def _die_with_parent() -> None:
    """Linux: end when the process that forked this one ends, however it does."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _address_space() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def _attempt(spec: GrammarSpec, compile_spec: Compile) -> Compiled:
    with tempfile.TemporaryFile() as said:  # what the native code has to say goes to its standard error
        os.dup2(said.fileno(), 2)
        try:
            payload = compile_spec(spec)
        except MemoryError:
            return Compiled(error="it takes more memory than its limit")
        except RecursionError:
            return Compiled(error="it is nested too deep")
        except Exception as error:  # noqa: BLE001 - the native code raises what it likes
            if "bad_alloc" in str(error):
                return Compiled(error="it takes more memory than its limit")
            return Compiled(error=first_line(str(error)) or repr(error))
        said.seek(0)
        if warning := first_warning(said.read().decode("utf-8", "replace")):
            return Compiled(error=warning)
        return Compiled(payload=payload)
