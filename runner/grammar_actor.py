"""The grammars as an actor: compiled off the loop, matched on a thread, masks handed to the runner.

Between actors nothing waits for it but the sampling of a step with constrained requests: the
scheduler is told when a request's grammar is ready, and the runner starts a step's forward pass
while the step's masks are made from the tokens of the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any

import anyio
import anyio.to_thread
import structlog
from anyio.abc import TaskGroup

from ..actors import Actor, Ask, Channel
from ..actors.reply import Reply
from ..actors.tasks import no_quiet_end
from ..scheduler.errors import EngineDeadError, InvalidRequestError
from ..scheduler.messages import GrammarNews, PrepareGrammars
from ..scheduler.params import StructuredOutput
from ..scheduler.plan import GrammarOutput, SchedulerOutput
from .grammar_cache import GrammarCache
from .grammar_engine import GrammarEngine
from .grammar_manager import GrammarManager, GrammarStatistics
from .grammar_rows import StepTokens
from .grammar_spec import GrammarConfig, GrammarSpec, Vocabulary, spec_of
from .request_matcher import RequestMatcher
from .runner_thread import RunnerThread

log: Any = structlog.get_logger(__name__)

Masks = Ask[SchedulerOutput, GrammarOutput]
GrammarControl = Masks | StepTokens
CLOSE_LIMIT = 5.0  # seconds; the thread is at one step's masks, or waits


class GrammarActor(Actor):
    """Owns the compilers, the cache and the matchers. Costs nothing before the first constrained request.

    Args:
        vocabulary: makes the vocabulary; called on a thread, once.
        config: limits.
    """

    def __init__(self, vocabulary: Callable[[], Vocabulary], config: GrammarConfig) -> None:
        super().__init__("grammars")
        # One message for all requests that came and went since the scheduler last found room.
        self.wanted: Channel[PrepareGrammars] = self.mailbox.lane("wanted", 4)
        self.cache = GrammarCache(config.cache_bytes)
        self._engine = GrammarEngine(vocabulary, config)
        self._manager: GrammarManager | None = None  # made with the first grammar; used on the thread only
        self._thread = RunnerThread("grammar masks")
        self._compilers, self._preload = config.num_compilers, config.preload
        self._waiting: dict[GrammarSpec, dict[str, StructuredOutput]] = {}
        self._numbers: dict[str, int] = {}  # of the arrivals of those who wait
        self._asks: dict[int, Masks] = {}  # by step: masks that are not made yet
        self._deliver: Callable[[GrammarNews], None] | None = None
        self._failure: BaseException | None = None

    def deliver_to(self, deliver: Callable[[GrammarNews], None]) -> None:
        """Where news of requests go: the scheduler's control lane, which never blocks."""
        self._deliver = deliver

    def statistics(self) -> GrammarStatistics:
        """Counts of masks and tokens as they are now; all 0 before the first grammar."""
        return self._manager.statistics() if self._manager is not None else GrammarStatistics()

    def check(self) -> None:
        """Raise BooksError if the cache's books do not balance, or a runner has ever chosen against a mask."""
        self.cache.check()
        if self._manager is not None:
            self._manager.check()

    async def on_start(self) -> None:
        """With ``preload`` the first request finds everything there."""
        if self._preload:
            what = GrammarSpec(kind="choice", text='["a"]')
            await anyio.to_thread.run_sync(
                self._engine.compile, what, limiter=anyio.CapacityLimiter(1), abandon_on_cancel=True
            )

    async def run(self) -> None:
        places = anyio.Semaphore(self._compilers)
        async with anyio.create_task_group() as tasks:
            while not self._failure and not (self.wanted.closed and not len(self.wanted)):
                while len(self.wanted):
                    self._prepare(self.wanted.receive_nowait(), tasks, places)
                for message in self.mailbox.take_control():
                    self._control(message)
                await self.wait()
            tasks.cancel_scope.cancel()
        if self._failure:
            raise self._failure

    async def on_stop(self) -> None:
        """End the compilers and the thread."""
        self._engine.close()
        await self._thread.aclose(CLOSE_LIMIT)

    # --- grammars

    def _prepare(self, news: PrepareGrammars, tasks: TaskGroup, places: anyio.Semaphore) -> None:
        self._forget(news.ended)
        self._numbers |= news.numbers
        for req_id, structured in news.wanted.items():
            try:
                spec = spec_of(structured)
            except InvalidRequestError as error:
                self._tell(GrammarNews(failed={req_id: f"{error} (request {req_id})"}, numbers=self._take([req_id])))
                continue
            if spec in self._waiting:
                self._waiting[spec][req_id] = structured
            elif (compiled := self.cache.get(spec)) is not None:
                self._ready(compiled, {req_id: structured})
            else:
                self._waiting[spec] = {req_id: structured}
                tasks.start_soon(no_quiet_end, "the compiling of a grammar", self._compile, spec, places)

    def _forget(self, ended: list[str]) -> None:
        for req_id in ended:
            self._numbers.pop(req_id, None)
            for waiting in self._waiting.values():
                waiting.pop(req_id, None)
        if ended and self._manager is not None:
            self._on_thread(lambda manager: manager.drop(ended))

    async def _compile(self, spec: GrammarSpec, places: anyio.Semaphore) -> None:
        async with places:
            if not self._waiting[spec]:  # all have ended meanwhile
                del self._waiting[spec]
                return
            # A thread of our own, and not one of the host's; it is left behind at the end, where the
            # process that it waits for is killed.
            made = await anyio.to_thread.run_sync(
                self._engine.compile, spec, limiter=anyio.CapacityLimiter(1), abandon_on_cancel=True
            )
        waiting = self._waiting.pop(spec)
        if isinstance(made, str):
            what = spec.kind
            failed = {
                req_id: f"structured_output.{what} cannot be used: {made} (request {req_id})" for req_id in waiting
            }
            self._tell(GrammarNews(failed=failed, numbers=self._take(failed)))
            return
        self.cache.put(spec, made.compiled, made.num_bytes)
        self._ready(made.compiled, waiting)

    def _ready(self, compiled: Any, waiting: dict[str, StructuredOutput]) -> None:
        """The matchers first: a plan with one of these requests comes to the thread behind them."""
        if self._manager is None:
            self._manager = self._engine.new_manager()
        new_matcher, numbers = self._engine.new_matcher, self._take(waiting)

        def add(manager: GrammarManager) -> None:
            for req_id, structured in waiting.items():
                end, number = structured.reasoning_end_token_id, numbers[req_id]
                manager.add(req_id, RequestMatcher(new_matcher(compiled), end, number=number))

        self._on_thread(add)
        self._tell(GrammarNews(ready=list(waiting), numbers=numbers))

    def _take(self, waiting: Iterable[str]) -> dict[str, int]:
        """Who they are that wait no longer."""
        return {req_id: self._numbers.pop(req_id) for req_id in waiting}

    def _tell(self, news: GrammarNews) -> None:
        assert self._deliver is not None
        self._deliver(news)

    # --- masks

    def _control(self, message: GrammarControl) -> None:
        match message:
            case Ask(message=plan):
                self._asks[plan.step] = message
                self._on_thread(lambda manager: manager.plan(plan))
            case StepTokens(plan=plan, output=output):
                self._on_thread(lambda manager: manager.result(plan, output))

    def _on_thread(self, work: Callable[[GrammarManager], None]) -> None:
        """Do something with the manager, behind what came before; then hand out what can be handed out."""
        manager = self._manager
        assert manager is not None, "a step has constrained requests before any grammar was ready"
        self._thread.submit(lambda: _attempt(manager, work)).add_done_callback(self._hand_out)

    def _hand_out(self, reply: Reply[_Made]) -> None:
        if reply.error is not None:
            if not isinstance(reply.error, EngineDeadError):  # which says no more than that it was closed
                self._end_with(reply.error)
            return
        masks, news, failure, began, ended = reply.value
        for mask in masks:
            if self.observer is not None:
                shift = self.observer.time() - perf_counter()  # from the thread's clock to the loop's
                facts = {"requests": len(mask.req_ids)}
                self.observer.worked("masks", f"step {mask.step}", began + shift, ended + shift, facts)
            self._asks.pop(mask.step).reply.set_result(mask)
        if news:
            log.error("constrained_requests_end", requests=news.failed | news.broken)
            self._tell(news)
        if failure is not None:
            self._end_with(failure)

    def _end_with(self, failure: BaseException) -> None:
        self._failure = failure
        self.mailbox.wake()


# Masks, what the scheduler must hear, what ends the actor, and when the work began and ended.
_Made = tuple[list[GrammarOutput], GrammarNews | None, Exception | None, float, float]


def _attempt(manager: GrammarManager, work: Callable[[GrammarManager], None]) -> _Made:
    began = perf_counter()
    try:
        work(manager)
        masks = manager.take_masks()
        failed, broken, numbers = manager.take_refused(), manager.take_broken(), manager.take_numbers()
        news = GrammarNews(failed=failed, broken=broken, numbers=numbers)
        return masks, news if news.failed or news.broken else None, None, began, perf_counter()
    except Exception as error:  # noqa: BLE001 - whatever it is ends the actor, and so the engine
        return [], None, error, began, perf_counter()
