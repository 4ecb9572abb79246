"""The engine: actors wired into the pipeline that serves requests, inside the host's event loop."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import structlog

from ..actors import Ask, LoopPort
from ..actors.tasks import finish
from ..runner.runner import Runner
from ..runner.runner_actor import RunnerActor
from ..scheduler.errors import (
    ConfigError,
    EngineDeadError,
    EngineOverloadedError,
    InvalidRequestError,
    NotBuiltError,
)
from ..scheduler.kv_cache_actor import KVCacheActor
from ..scheduler.kv_cache_manager import KVCacheManager
from ..scheduler.messages import Abort, EngineCoreEvent, ResetPrefixCache
from ..scheduler.params import SamplingParams, refuse_unbuilt
from ..scheduler.scheduler import Scheduler
from ..scheduler.scheduler_actor import SchedulerActor
from .board import MARK, Board
from .config import EngineConfig
from .delivery import DeliveryActor
from .event_log import EventLog, EventStream
from .intake import Intake, IntakeActor, Prompted
from .outputs import EngineStats, RequestOutput
from .pipeline import Pipeline
from .stream import RequestStream, StreamState
from .text import TextBuilder
from .tokenizer import Tokenizer

Message = dict[str, Any]
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
    """

    def __init__(
        self, config: EngineConfig | None = None, *, runner: Runner, tokenizer: Tokenizer | None = None
    ) -> None:
        self.config = config or EngineConfig()
        self.runner = runner
        self.tokenizer = tokenizer
        self._parts: _Parts | None = None
        self._started = False
        self._cause: BaseException | None = None
        self._ids = itertools.count()

    @classmethod
    def from_pretrained(cls, path_or_name: str, **config: Any) -> Self:
        """An engine for a model's files: a Hugging Face folder, a .gguf file, or an installed model's name.

        Reads the model's description and tokenizer; the weights are read when the engine starts.
        Raises ModelLoadError for files that are missing, damaged or of an unsupported kind, and
        ConfigError for unknown or contradictory settings.
        """
        from .loading import load  # noqa: PLC0415 - torch and tokenizers are imported only where a model is

        settings = EngineConfig(model=str(path_or_name), **config)
        runner, tokenizer = load(settings)
        return cls(settings, runner=runner, tokenizer=tokenizer)

    # --- life

    async def __aenter__(self) -> Self:
        if self._started:
            raise ConfigError("the engine was entered already; an engine serves one `async with`")
        self._started = True
        try:
            parts = _Parts(self)  # checks the settings against the runner's limits, before weights are read
            if start := getattr(self.runner, "start", None):
                await start()
            await parts.pipeline.__aenter__()
        except BaseException:
            await self._close_runner()
            raise
        self._parts = parts
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        parts = self._running(dead_too=True)
        parts.stop()
        try:
            await parts.pipeline.__aexit__(exc_type, exc, tb)
        finally:
            await self._close_runner()

    async def _close_runner(self) -> None:
        if not await finish(self.runner.aclose, seconds=CLOSE_LIMIT, name="close runner"):
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

        Raises InvalidRequestError for what can never be served, EngineOverloadedError when too
        many requests wait, EngineDeadError when the engine has ended. A text prompt is tokenized
        later: what is wrong with its tokens is raised by the stream's first read.
        """
        return self._submit(
            prompt, params, request_id=request_id, priority=priority, cache_salt=cache_salt, adapter=adapter
        )

    async def complete(
        self, prompt: str | Sequence[int], params: SamplingParams | None = None, **options: Any
    ) -> RequestOutput:
        """Continue a prompt to its end; returns all of it. Cancelling aborts the request."""
        params = _replace(params or SamplingParams(), output_kind="final")
        async with self.generate(prompt, params, **options) as stream:
            return await anext(stream)

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Message] | None = None,
        **options: Any,
    ) -> RequestStream:
        """Answer a conversation: messages with "role" and "content", through the model's chat template."""
        if self.tokenizer is None:
            raise InvalidRequestError("chat needs a tokenizer with a chat template, the engine has none")
        text = self.tokenizer.apply_chat_template(list(messages), tools=list(tools) if tools else None)
        return self._submit(text, params, add_special_tokens=False, **options)

    async def abort(self, request_id: str) -> None:
        """End a request; its stream ends with finish reason "abort". Unknown ids are ignored."""
        parts = self._owned()
        parts.board.abort_id(request_id, parts.port.time())

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False, and nothing forgotten, while a request is unfinished.

        Waits for steps that are still under way when the last request has ended.
        """
        parts = self._owned()
        if len(parts.board):
            return False
        reset: Ask[ResetPrefixCache, bool] = Ask(ResetPrefixCache())
        parts.scheduler.mailbox.control_nowait(reset)
        return await reset.reply

    # --- looking in

    def stats(self) -> EngineStats:
        """Counts as they are now."""
        parts = self._running(dead_too=True)
        scheduler, kv = parts.scheduler.core.statistics(), parts.kv.core.statistics()
        return EngineStats(
            num_running=scheduler.num_running,
            # The board forgets an aborted request before the scheduler does.
            num_waiting=max(0, len(parts.board) - scheduler.num_running),
            kv_blocks_total=kv.num_blocks,
            kv_blocks_free=kv.num_free_blocks,
            kv_blocks_cached=kv.num_cached_blocks,
            prefix_queries=kv.prefix_queries,
            prefix_hits=kv.prefix_hits,
            num_preemptions=scheduler.num_preemptions,
            num_steps=scheduler.num_steps,
            num_prompt_tokens=scheduler.num_prompt_tokens,
            num_generated_tokens=scheduler.num_generated_tokens,
            num_finished=parts.board.num_finished,
        )

    def events(self) -> EventStream:
        """Follow what happens to requests, from now on; ends when the engine stops."""
        return self._owned().events.follow()

    def check(self) -> None:
        """Audit every core; raises BooksError, with the numbers, if any count does not agree."""
        parts = self._running(dead_too=True)
        for core in (parts.scheduler.core, parts.kv.core, parts.board):
            core.check()

    def diagnose(self) -> str:
        """What each actor is waiting for, since when, and how full its lanes are."""
        return self._running(dead_too=True).pipeline.diagnose()

    # --- inside

    def _submit(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None,
        *,
        request_id: str | None = None,
        add_special_tokens: bool = True,
        **options: Any,
    ) -> RequestStream:
        parts = self._owned()
        request_id = self._request_id(request_id)
        params = self._checked_params(params or SamplingParams(), request_id)
        _check_options(request_id=request_id, **options)
        given = _prompt_parts(prompt, request_id)
        if "token_ids" in given:
            parts.intake.core.check_prompt(given["token_ids"], request_id)
        parts.refuse_overload(request_id)
        text = TextBuilder(self.tokenizer, params) if self.tokenizer else None
        state = StreamState(request_id, params, text, parts.port.time())
        parts.board.add(state)
        # There is a place: each holder of one is on the board, or leaving it.
        parts.intake.prompts.send_nowait(
            Prompted(
                request_id=request_id,
                key=state.key,
                params=params,
                arrived=parts.port.time(),
                add_special_tokens=add_special_tokens,
                **given,
                **options,
            )
        )
        return RequestStream(state, parts.abort_from_anywhere, parts.port)

    def _request_id(self, request_id: str | None) -> str:
        if request_id is None:
            made = (f"request-{number}" for number in self._ids)
            return next(name for name in made if not self._running().board.has_id(name))
        if not isinstance(request_id, str) or not request_id or MARK in request_id:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidRequestError(f"request id is {request_id!r}, needed is text that is not empty, without NUL")
        return request_id

    def _checked_params(self, params: SamplingParams, request_id: str) -> SamplingParams:
        refuse_unbuilt(params, request_id)
        if params.stop_strings and self.tokenizer is None:
            raise InvalidRequestError(f"stop strings need a tokenizer, the engine has none (request {request_id})")
        for token in params.stop_token_ids or ():
            self._running().intake.core.check_token("stop_token_ids", token, request_id)
        return params

    def _running(self, *, dead_too: bool = False) -> _Parts:
        if self._parts is None:
            raise EngineDeadError("the engine is not started, or did not start: use `async with engine:`")
        if self._cause is not None and not dead_too:
            raise EngineDeadError(f"the engine ended: {self._cause!r}") from self._cause
        if self._parts.stopped and not dead_too:
            raise EngineDeadError("the engine has stopped")
        return self._parts

    def _owned(self) -> _Parts:
        parts = self._running()
        parts.port.check_owner()
        return parts

    def end_with(self, cause: BaseException) -> None:
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


class _Parts:
    """The actors of a running engine and what they share."""

    def __init__(self, engine: Engine) -> None:
        config, info = engine.config, engine.runner.info
        max_model_len = _at_most("max_model_len", config.max_model_len, info.max_model_len)
        num_blocks = _at_most("num_kv_blocks", config.num_kv_blocks, info.num_kv_blocks)
        rows = _at_most("max_num_running_reqs", config.max_num_running_reqs, info.max_num_running_reqs)
        if config.block_size != info.block_size:
            raise ConfigError(f"block_size is {config.block_size}, the runner's is {info.block_size}")
        self.stopped = False
        self.port = LoopPort()
        self.max_unfinished = config.max_waiting + rows
        self.board = Board(self._tell_abort)
        self.events = EventLog(self.port)
        depth = config.steps_in_flight
        self.delivery = DeliveryActor(self.board, self.events, steps_in_flight=depth)
        self.runner = RunnerActor(engine.runner, steps_in_flight=depth)
        keyed = config.enable_prefix_caching
        self.kv = KVCacheActor(KVCacheManager(num_blocks, config.block_size, keyed))
        core = Scheduler(
            config.scheduler(
                max_num_running_reqs=rows,
                max_model_len=max_model_len,
                num_kv_blocks=num_blocks,
                eos_token_ids=info.eos_token_ids,
                weights_id=info.weights_id,
            )
        )
        self.scheduler = SchedulerActor(
            core,
            reserve=self.kv.wants,
            plans=self.runner.plans,
            outputs=self.delivery.outputs,
            max_waiting=self.max_unfinished,
        )
        self.runner.deliver_to(self.scheduler.mailbox.control_nowait)
        intake = Intake(info, engine.tokenizer, max_model_len=max_model_len, num_kv_blocks=num_blocks, keyed=keyed)
        self.intake = IntakeActor(intake, self.board, submits=self.scheduler.submits, max_waiting=self.max_unfinished)
        # Started from the end of the data's way to its beginning: nobody sends to an actor that does not run.
        self.pipeline = Pipeline(
            self.delivery,
            self.runner,
            self.kv,
            self.scheduler,
            self.intake,
            stop_timeout=config.stop_timeout,
            raise_on_exit=False,
        )
        self.pipeline.on_failure(engine.end_with)

    def refuse_overload(self, request_id: str) -> None:
        """Raise EngineOverloadedError when no more requests may wait."""
        if self.board.num_places >= self.max_unfinished:
            raise EngineOverloadedError(
                f"{self.board.num_places} requests are unfinished, limit is {self.max_unfinished} "
                f"(max_waiting and max_num_running_reqs together); try again later (request {request_id})"
            )

    def stop(self) -> None:
        """End every request and tell whoever follows; nothing is accepted from now on."""
        self.stopped = True
        now = self.port.time()
        step = self.scheduler.core.statistics().num_steps
        ended = self.board.abort_all(now)
        self.events.add([EngineCoreEvent(kind="FINISHED", request_id=r, step=step, time=now) for r in ended])
        self.events.close()

    def abort_from_anywhere(self, key: str) -> None:
        """Abort a request whose stream was dropped, in whichever thread that happened."""
        if self.port.is_owner:
            self._abort_one(key)
        else:
            self.port.post(self._abort_one, key)

    def _abort_one(self, key: str) -> None:
        if not self.stopped:
            self.board.abort([key], self.port.time())

    def _tell_abort(self, keys: list[str]) -> None:
        if not self.stopped:
            self.scheduler.mailbox.control_nowait(Abort(keys))


def _at_most(name: str, wanted: int | None, limit: int) -> int:
    if wanted is not None and wanted > limit:
        raise ConfigError(f"{name} is {wanted}, the runner's limit is {limit}")
    return wanted or limit


def _prompt_parts(prompt: Any, request_id: str) -> dict[str, Any]:
    if isinstance(prompt, str):
        return {"text": prompt}
    if isinstance(prompt, bytes | bytearray | dict | set) or not hasattr(prompt, "__iter__"):
        kind = type(prompt).__name__  # pyright: ignore[reportUnknownArgumentType]
        raise InvalidRequestError(f"prompt is {kind}, needed is text or a list of token ids (request {request_id})")
    tokens = [*prompt]
    for place, token in enumerate(tokens):
        if isinstance(token, bool) or not hasattr(token, "__index__"):
            raise InvalidRequestError(f"prompt[{place}] is {token!r}, needed is a token id (request {request_id})")
    return {"token_ids": [*map(operator.index, tokens)]}


def _check_options(
    *, request_id: str, priority: int = 0, cache_salt: str | None = None, adapter: str | None = None
) -> None:
    if not isinstance(priority, int):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidRequestError(f"priority is {priority!r}, needed is a whole number (request {request_id})")
    if cache_salt is not None and not isinstance(cache_salt, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidRequestError(f"cache_salt is {cache_salt!r}, needed is text or None (request {request_id})")
    if adapter is not None:
        raise NotBuiltError(f"adapter={adapter!r} is not supported yet (request {request_id})")


def _replace(params: SamplingParams, **changes: Any) -> SamplingParams:
    fields = {name: getattr(params, name) for name in params.__struct_fields__}
    return SamplingParams(**fields | changes)
