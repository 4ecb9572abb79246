"""The intake's shell: prompts in, submissions out; long ones are worked on in a thread."""

from __future__ import annotations

import anyio
import anyio.to_thread

from ..actors import Actor, Channel
from ..actors.tasks import no_quiet_end
from ..scheduler.errors import InvalidRequestError
from ..scheduler.messages import Submit
from ..scheduler.request import Request
from .board import Board
from .intake import Intake, Prompted, Taken


class IntakeActor(Actor):
    """Turns prompts into submissions; long ones in a thread, so that nobody waits behind them."""

    def __init__(self, core: Intake, board: Board, *, submits: Channel[Submit], max_waiting: int) -> None:
        super().__init__("intake", sends_to=[submits])
        self.core, self._board, self._submits = core, board, submits
        self.prompts: Channel[Prompted] = self.mailbox.lane("prompts", max_waiting)

    async def run(self) -> None:
        # Threads of our own: the host's may all be waiting for results of this engine.
        threads = anyio.CapacityLimiter(1)
        async with anyio.create_task_group() as tasks:
            async for prompted in self.prompts:
                if not any(map(self._board.get, prompted.keys)):  # aborted already: not worth the work
                    for key in prompted.keys:
                        self._board.unsent(key)
                elif not prompted.is_long:
                    self._submit_all(prompted, self._take(prompted))
                else:
                    tasks.start_soon(no_quiet_end, "the tokenizing of a prompt", self._submit_long, prompted, threads)
        self._submits.close()

    async def _submit_long(self, prompted: Prompted, threads: anyio.CapacityLimiter) -> None:
        taken = await anyio.to_thread.run_sync(self._take, prompted, limiter=threads)
        self._submit_all(prompted, taken)

    def _take(self, prompted: Prompted) -> Taken | Exception:
        try:
            return self.core.take(prompted)
        except (KeyboardInterrupt, SystemExit):
            raise
        except Exception as error:  # noqa: BLE001 - whatever a prompt does to the tokenizer is its request's end
            return error
        except BaseException as error:  # noqa: BLE001 - what ends a tokenizer's native code is no Exception
            failed = InvalidRequestError(f"the prompt cannot be read: {error!r} (request {prompted.request_id})")
            failed.__cause__ = error
            return failed

    def _submit_all(self, prompted: Prompted, taken: Taken | Exception) -> None:
        """All completions in one turn, so that they meet in one plan."""
        if isinstance(taken, Exception):
            for key in prompted.keys:
                self._board.fail(key, taken)
            return
        for request in taken.requests:
            self._submit(request, taken.tokens)

    def _submit(self, request: Request, tokens: list[int]) -> None:
        stream = self._board.get(request.request_id)
        if stream is None:  # aborted while it was on its way
            self._board.unsent(request.request_id)
            return
        stream.begin(tokens)
        self._board.load.enter(stream.key, len(tokens))
        self._submits.send_nowait(Submit(request))
