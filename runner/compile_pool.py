"""The engine's side of the process that compiles grammars: blocking calls, for threads."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from queue import SimpleQueue

import msgspec

from .grammar_answer import Compiled
from .grammar_spec import GrammarConfig, GrammarSpec, Vocabulary
from .grammar_zygote import Setup, frame_of, read_frame, send_frame

# Finds the package where this process has found it, whatever is in the working directory.
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from callboard.runner.grammar_zygote import main; main([int(fd) for fd in sys.argv[2:]])"
)
# Threads of numeric libraries are of no use there, and a fork would lose them.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
CANNOT = "grammars are compiled in child processes, which this system does not have"


class CompilePool:
    """A process with a lane for each grammar that may be compiled at once.

    The process is started by the first call, and again by the next call after it has ended.
    Calls come from any thread, at most ``num_compilers`` at a time.
    """

    def __init__(self, vocabulary: Vocabulary, config: GrammarConfig) -> None:
        self._setup = Setup(vocabulary=vocabulary, limits=config)
        self._count = config.num_compilers
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._lanes: list[socket.socket] = []
        self._free: SimpleQueue[socket.socket] = SimpleQueue()
        self._closed = False

    def compile(self, spec: GrammarSpec) -> Compiled:
        """Compile a grammar, or say why not. Blocks, for no longer than the limit, and the start of the process."""
        sent = frame_of(spec)  # before a lane is taken: what cannot be written costs none
        for _ in range(2):  # a process that has ended is started anew, once
            if error := self._start():
                return Compiled(error=error)
            process, lane = self._process, self._free.get()
            with suppress(OSError):
                lane.sendall(sent)
                if (data := read_frame(lane)) is not None:
                    self._free.put(lane)
                    return msgspec.msgpack.decode(data, type=Compiled)
            self._stop(process)
        return Compiled(error="the process that compiles grammars has ended twice")

    def close(self) -> None:
        """End the process and all that it is at; calls under way return an error."""
        self._closed = True
        self._stop(self._process)

    def _start(self) -> str | None:
        """Start the process unless it runs; what stands in its way."""
        with self._lock:
            if self._closed:
                return "the engine stops"
            if self._process is not None:
                return None
            if not hasattr(os, "fork"):
                return CANNOT
            pairs = [socket.socketpair() for _ in range(self._count)]
            try:
                self._process = _spawn([theirs for _, theirs in pairs])
            finally:
                for _, theirs in pairs:
                    theirs.close()
            self._lanes = [ours for ours, _ in pairs]
            error = self._greet(self._lanes[0])
            if error is None:
                self._free = SimpleQueue()
                for lane in self._lanes:
                    self._free.put(lane)
        if error:
            self._stop(self._process)
        return error

    def _greet(self, lane: socket.socket) -> str | None:
        with suppress(OSError):
            send_frame(lane, self._setup)
            if data := read_frame(lane):
                return msgspec.msgpack.decode(data, type=Compiled).error
        return "the process that compiles grammars does not start"

    def _stop(self, process: subprocess.Popen[bytes] | None) -> None:
        """End this process, unless another was started in its place."""
        # Without the lock: it may be held by a start that waits for the process.
        if process is not None and self._process is process:
            self._process = None
            for lane in self._lanes:
                with suppress(OSError):
                    lane.shutdown(socket.SHUT_RDWR)  # wakes whoever waits for an answer, and tells the process
                lane.close()
            process.kill()
            process.wait()


def _spawn(lanes: list[socket.socket]) -> subprocess.Popen[bytes]:
    fds = [lane.fileno() for lane in lanes]
    return subprocess.Popen(  # noqa: S603 - this interpreter, with arguments of our own
        [sys.executable, "-c", _START, json.dumps(sys.path), *map(str, fds)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | _ENVIRONMENT,
        pass_fds=fds,
    )
