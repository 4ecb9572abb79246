"""The engine: actors wired into the pipeline that serves requests, inside the host's event loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio
import anyio.to_thread
import msgspec
import structlog

from ..actors import ActorStoppedError, Ask
from ..actors.tasks import finish
from ..runner.grammar_cache import GrammarCacheStatistics
from ..runner.grammar_manager import GrammarStatistics
from ..runner.runner import Runner
from ..scheduler.config import check_policy
from ..scheduler.errors import ConfigError, EngineDeadError, InvalidRequestError
from ..scheduler.messages import Follow, Pause, ResetPrefixCache, Resume, SwapPolicy
from ..scheduler.params import SamplingParams
from ..scheduler.pause import STATE_OF_MODE, PauseMode
from ..scheduler.policy import Policy
from ..scheduler.setting_types import at_least, shown
from ..scheduler.stops import StopRule, checked_rules
from .board import public_id
from .config import EngineConfig, refuse_load_settings
from .conversation import Conversation
from .event_log import EventStream, KVEventStream, StepStatsStream
from .garbage import Frozen
from .outputs import EngineStats, RequestOutput
from .parallel import ParallelState, new_states
from .session import Session, check_chunk_params
from .stream import RequestStream
from .tokenizer import Tokenizer
from .trace import Trace
from .wiring import Parts, checked_runner, checked_tokenizer

Message = dict[str, Any]
T = TypeVar("T")
log: Any = structlog.get_logger(__name__)

# Seconds that a runner may take to close: it may have to wait for the step that it is at.
CLOSE_LIMIT = 90.0


class Engine:
    """Serves requests with one runner.

    Used as an async context manager; entering starts the actors, leaving ends every request and
    stops them. It belongs to the event loop and thread that entered it.

    Args:
        config: settings; None: the defaults.
        runner: what computes the steps.
        tokenizer: turns text into tokens and back; None: token ids in and out.
        stop_rules: ends of requests beyond end tokens, stop tokens and length (``StopRule``).
    """

    def __init__(
        self,
        config: EngineConfig | None = None,
        *,
        runner: Runner,
        tokenizer: Tokenizer | None = None,
        stop_rules: Sequence[StopRule] = (),
    ) -> None:
        self._set_up(EngineConfig() if config is None else config, stop_rules)
        refuse_load_settings(self.config)
        self._runner, self._tokenizer = checked_runner(runner), checked_tokenizer(tokenizer)

    def _set_up(self, config: EngineConfig, stop_rules: Sequence[StopRule]) -> None:
        """All but the model."""
        if not isinstance(config, EngineConfig):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"config is {config!r}, needed is an EngineConfig or None")
        self.config = config
        self.stop_rules = checked_rules(stop_rules)
        self._load: Callable[[], tuple[Runner, Tokenizer]] | None = None  # where the model is still to be read
        self._runner: Runner | None = None
        self._tokenizer: Tokenizer | None = None
        self._parts: Parts | None = None
        self._started = False
        self._cause: BaseException | None = None
        self._left = False
        self._frozen: Frozen | None = None

    @classmethod
    def from_pretrained(cls, path_or_name: str, *, stop_rules: Sequence[StopRule] = (), **config: Any) -> Self:
        """An engine for a model's files: a Hugging Face folder, a .gguf file, or an installed model's name.

        Looks for the files and checks the settings; all reading is done off the loop, when the engine is
        entered. Raises ModelLoadError for files that are not there and ConfigError for unknown or contradictory
        settings; entering the engine raises them for files that are damaged or of an unsupported kind, and for
        settings that contradict the model.
        """
        from .loading import check_model, load  # noqa: PLC0415 - only where a model is

        if "model" in config:
            raise ConfigError(f"model is given twice: {path_or_name!r} and {config['model']!r}")
        settings = EngineConfig(model=str(path_or_name), **config)
        check_model(settings)
        engine = cls.__new__(cls)
        engine._set_up(settings, stop_rules)
        engine._load = partial(load, settings)
        return engine

    @property
    def runner(self) -> Runner:
        """What computes the steps. An engine of ``from_pretrained`` has it once it is entered; before: ConfigError."""
        self._check_loaded()
        assert self._runner is not None
        return self._runner

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Turns text into tokens and back. As with ``runner``, there once a model is read."""
        self._check_loaded()
        return self._tokenizer

    def _check_loaded(self) -> None:
        if self._runner is None:
            raise ConfigError(f"the model {self.config.model!r} is not read yet: use `async with engine:`")

    # --- life

    async def __aenter__(self) -> Self:
        if self._started:
            raise ConfigError("the engine was entered already; an engine serves one `async with`")
        self._started = True
        parts: Parts | None = None
        try:
            if self._load is not None:
                # A thread of our own, left behind by a host that is cancelled: nothing must be given back.
                self._runner, self._tokenizer = await anyio.to_thread.run_sync(
                    self._load, limiter=anyio.CapacityLimiter(1), abandon_on_cancel=True
                )
            # Checks the settings against the runner's limits, before weights are read.
            parts = Parts(self.config, self.runner, self.tokenizer, self.stop_rules)
            parts.pipeline.on_failure(self._end_with)
            if start := getattr(self.runner, "start", None):
                await start()
            await parts.pipeline.__aenter__()
        except BaseException:
            if parts is not None:
                parts.scheduler.core.let_go_policy()
            await self._close_runner()
            raise
        self._parts = parts
        if self.config.freeze_gc:
            self._frozen = Frozen()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        parts = self._running(dead_too=True)
        parts.port.check_owner()
        if self._left:
            return
        self._left = True
        parts.stop()
        if self._frozen is not None:
            self._frozen.thaw()
        try:
            await parts.pipeline.__aexit__(exc_type, exc, tb)
        finally:
            parts.scheduler.core.let_go_policy()
            await self._close_runner()

    async def _close_runner(self) -> None:
        if self._runner is not None and not await finish(self._runner.aclose, seconds=CLOSE_LIMIT, name="close runner"):
            log.error("runner_does_not_close", runner=type(self.runner).__name__, waited_seconds=CLOSE_LIMIT)

    # --- requests

    def generate(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        adapter: str | None = None,
    ) -> RequestStream:
        """Continue a prompt; returns the stream of its outputs at once.

        Args:
            prompt: text, or token ids.
            params: how to sample and when to stop.
            request_id: unique among unfinished requests; None: one is made.
            priority: smaller is more urgent, under the priority policy.
            cache_salt: only requests with an equal salt share cached prefixes.
            adapter: name of an adapter of the weights; none is built yet, so any name is refused.

        Raises InvalidRequestError for what can never be served, EngineOverloadedError when too
        many requests wait or the engine is paused, EngineDeadError when the engine has ended. A text is
        tokenized later, and of more than 4,000 token ids each is looked at later: what is wrong with the
        tokens is then raised by the stream's first read.
        """
        return self._submit(
            prompt, params, request_id=request_id, priority=priority, cache_salt=cache_salt, adapter=adapter
        )

    async def complete(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        adapter: str | None = None,
    ) -> RequestOutput:
        """Continue a prompt to its end; returns all of it. Cancelling aborts the request.

        Options as in ``generate``.
        """
        stream = self._submit(
            prompt,
            params,
            request_id=request_id,
            priority=priority,
            cache_salt=cache_salt,
            adapter=adapter,
            output_kind="final",
        )
        async with stream:
            return await anext(stream)

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Message] | None = None,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        adapter: str | None = None,
    ) -> RequestStream:
        """Answer a conversation: messages with "role" and "content", through the model's chat template.

        Options and errors as in ``generate``. What is wrong with one of more than 100 messages and tools is
        raised by the stream's first read.
        """
        return self._submit(
            Conversation(messages, tools),
            params,
            request_id=request_id,
            priority=priority,
            cache_salt=cache_salt,
            adapter=adapter,
        )

    def open_session(
        self,
        params: SamplingParams | None = None,
        *,
        session_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        adapter: str | None = None,
    ) -> Session:
        """A text that grows by inputs and by what the model adds to each; ``Session.send`` gives it the next.

        Args:
            params: of inputs that are sent without their own.
            session_id: unique among open sessions; None: one is made.
            priority, cache_salt, adapter: of all its requests, as in ``generate``.

        Raises InvalidRequestError for an id that is in use and for options that cannot be served.
        """
        parts = self._owned()
        name = parts.sessions.open(session_id)
        try:
            parts.door.check_options(priority, cache_salt, adapter, public_id(name))
            params = check_chunk_params(parts.door, params, public_id(name))
        except BaseException:
            parts.sessions.close(name)
            raise
        options = {"priority": priority, "cache_salt": cache_salt, "adapter": adapter}
        return Session(self._owned, name, params, options, self.tokenizer)

    async def abort(self, request_id: str) -> None:
        """End a request; its stream ends with finish reason "abort". Unknown ids are ignored."""
        parts = self._owned()
        if not isinstance(request_id, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidRequestError(f"request_id is {request_id!r}, needed is text")
        parts.board.abort_id(request_id, parts.port.time())

    async def pause(self, mode: PauseMode = "wait") -> None:
        """Plan less until ``resume``; returns when what the mode lets run has ended and no step is under way.

        - "wait": requests that have begun go on to their end, those that wait for their first step stay.
        - "abort": all unfinished requests end with finish reason "abort".
        - "keep": everything stands still and goes on after ``resume``.

        New requests are refused with EnginePausedError, in mode "keep" they wait. The mode holds
        from the call on, also if the caller stops waiting; a later call replaces it.
        """
        parts = self._owned()
        if not isinstance(mode, str) or mode not in STATE_OF_MODE:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"mode is {mode!r}, known are {', '.join(map(repr, STATE_OF_MODE))}")
        parts.paused = mode
        if mode == "abort":
            parts.board.abort_all(parts.port.time())
        pause: Ask[Pause, None] = Ask(Pause(mode))
        await self._ask(pause)

    async def resume(self) -> None:
        """Go on after ``pause``; whoever still waits there returns. Without a pause it changes nothing."""
        parts = self._owned()
        parts.paused = None
        parts.scheduler.mailbox.control_nowait(Resume())

    async def swap_policy(self, policy: str | Policy) -> None:
        """Go on under another scheduling policy; no request is lost, whoever waits goes on waiting there.

        Raises ConfigError for what is no policy and for an object that serves an engine already, PolicyError
        for one that fails to take the requests over: then the old one stays. One that fails later is given up,
        and the requests go on first come, first served: see ``Policy``.
        """
        self._owned()
        check_policy(policy)
        swap: Ask[SwapPolicy, None] = Ask(SwapPolicy(policy))
        await self._ask(swap)

    async def reset_prefix_cache(self, force: bool = False) -> bool:
        """Forget all cached prefixes; False, and nothing forgotten, while requests use the cache.

        With ``force`` running requests are preempted, in their order, and computed anew; no token
        is lost, and it is carried out even if the caller stops waiting. Waits for steps that are
        under way, and after another such reset until a running request has got a token. A paused
        engine whose requests all wait holds nothing, so there it succeeds.
        """
        parts = self._owned()
        if not isinstance(force, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"force is {shown(force)}, needed is True or False")
        if len(parts.board) and not force and parts.paused is None:
            return False
        reset: Ask[ResetPrefixCache, bool] = Ask(ResetPrefixCache(force))
        return await self._ask(reset)

    # --- looking in

    def stats(self) -> EngineStats:
        """Counts as they are now."""
        parts = self._running(dead_too=True)
        scheduler, kv = parts.scheduler.core.statistics(), parts.kv.core.statistics()
        lateness, grammars = parts.watch.lateness.statistics(), parts.grammars
        return EngineStats(
            num_running=scheduler.num_running,
            # The board forgets an aborted request before the scheduler does.
            num_waiting=max(0, len(parts.board) - scheduler.num_running),
            num_deferred=scheduler.num_deferred,
            kv_blocks_total=kv.num_blocks,
            kv_blocks_free=kv.num_free_blocks,
            kv_blocks_cached=kv.num_cached_blocks,
            prefix_queries=kv.prefix_queries,
            prefix_hits=kv.prefix_hits,
            prefix_hit_rate=scheduler.prefix_hit_rate,
            num_preemptions=scheduler.num_preemptions,
            num_steps=scheduler.num_steps,
            num_prompt_tokens=scheduler.num_prompt_tokens,
            num_generated_tokens=scheduler.num_generated_tokens,
            num_finished=parts.board.num_finished,
            loop_lag_median=lateness.median,
            loop_lag_p99=lateness.p99,
            loop_lag_max=lateness.longest,
            kv_groups=kv.groups,
            grammars=grammars.statistics() if grammars else GrammarStatistics(),
            grammar_cache=grammars.cache.statistics() if grammars else GrammarCacheStatistics(),
        )

    def events(self) -> EventStream:
        """Follow what happens to requests, from now on; ends when the engine stops."""
        return self._owned().events.follow()

    def kv_events(self, replay_from: int | None = None) -> KVEventStream:
        """Follow which cached blocks come and go: one numbered batch a step, from now on.

        The scheduler reports them from the first call on, to the engine's end; before it, that
        costs nothing. A follower that leaves more than 10,000 batches unread loses the oldest and
        finds a ``KVEventsLost`` with their numbers in their place.

        Args:
            replay_from: number of the batch to begin with, of the last 10,000 that are kept.

        Raises ConfigError for what is no such number.
        """
        parts = self._owned()
        if replay_from is not None:
            at_least("replay_from", replay_from, 0, most=2**63 - 1)
        parts.scheduler.mailbox.control_nowait(Follow(kv_events=True))
        return parts.events.follow_kv(replay_from)

    def step_stats(self) -> StepStatsStream:
        """Follow the counts of each step, from now on; a slow follower loses the oldest of 10,000."""
        parts = self._owned()
        parts.scheduler.mailbox.control_nowait(Follow(steps=True))
        return parts.events.steps.follow()

    def trace(self, path: str | Path) -> Trace:
        """Watch the actors inside an ``async with``; leaving it writes a trace for Perfetto or Chrome.

        Raises, when it is entered, OSError for a path that cannot be written and ConfigError while
        another trace is under way. It holds up to a million entries, about 20 a step.
        """
        parts = self._owned()
        return Trace(path, parts.pipeline.actors.values(), parts.port)

    def check(self) -> None:
        """Audit every core; raises BooksError, with the numbers, if any count does not agree."""
        parts = self._running(dead_too=True)
        for core in (parts.scheduler.core, parts.kv.core, parts.board, *([parts.grammars] if parts.grammars else [])):
            core.check()
        # A reservation that is under way has changed one side and not yet the other.
        if self._cause is None and not parts.stopped and not len(parts.kv.wants):
            parts.scheduler.core.check_against(parts.kv.core)

    def diagnose(self) -> str:
        """What each actor is waiting for, since when, and how full its lanes are.

        Before that whether the engine is paused, and whether its policy has failed or keeps all waiting.
        """
        parts = self._running(dead_too=True)
        paused = f"the engine is paused, in mode {parts.paused!r}\n" if parts.paused else ""
        failure = parts.scheduler.core.policy_failure
        failed = f"the policy was given up, requests go on under 'fcfs': {failure}\n" if failure else ""
        count = parts.scheduler.core.num_held_back
        held = f"nothing runs: the policy holds back {count} requests, until something arrives\n" if count else ""
        return paused + failed + held + parts.pipeline.diagnose()

    # --- inside

    def _submit(
        self,
        prompt: str | Sequence[int] | Conversation,
        params: SamplingParams | None,
        *,
        request_id: str | None = None,
        **options: Any,
    ) -> RequestStream:
        parts = self._owned()
        if request_id is None:
            request_id = parts.door.make_id(parts.board.has_id)
        prompted = parts.door.check(prompt, params, request_id=request_id, **options)
        parts.refuse_paused(request_id)
        now, params = parts.port.time(), prompted.params
        parts.room.refuse(request_id, params.n)
        states = new_states(request_id, params, self.tokenizer, now)
        parts.board.add(states)
        # There is a place: each holder of one is on the board, or leaving it.
        keys = [state.key for state in states]
        for key in keys:
            parts.board.load.enter(key, len(prompted.token_ids or ()))
        parts.watch.mailbox.wake()
        parts.intake.prompts.send_nowait(msgspec.structs.replace(prompted, keys=keys, arrived=now))
        state = states[0] if len(states) == 1 else ParallelState(states)
        return RequestStream(state, parts.abort_from_anywhere, parts.port)

    async def _ask(self, ask: Ask[Any, T]) -> T:
        self._running().scheduler.mailbox.control_nowait(ask)
        try:
            return await ask.reply
        except ActorStoppedError as error:
            self._running()
            raise EngineDeadError("the engine ended before it had answered") from error

    def _running(self, *, dead_too: bool = False) -> Parts:
        if self._parts is None:
            raise EngineDeadError("the engine is not started, or did not start: use `async with engine:`")
        if self._cause is not None and not dead_too:
            raise EngineDeadError(f"the engine ended: {self._cause!r}") from self._cause
        if self._parts.stopped and not dead_too:
            raise EngineDeadError("the engine has stopped")
        return self._parts

    def _owned(self) -> Parts:
        parts = self._running()
        parts.port.check_owner()
        return parts

    def _end_with(self, cause: BaseException) -> None:
        """Hand the one cause of the engine's end to every waiter; called by the supervisor."""
        if self._parts is not None and self._parts.stopped:  # what falls while an engine stops is no death
            return
        self._cause = cause
        if self._parts is None:  # it failed while it started, which raises the cause by itself
            return
        parts = self._parts

        def dead() -> EngineDeadError:
            error = EngineDeadError(f"the engine ended: {cause!r}")
            error.__cause__ = cause
            return error

        parts.board.fail_all(dead)
        parts.events.close(dead)
