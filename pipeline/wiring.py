"""The actors of a running engine, wired to each other."""

from __future__ import annotations

from collections.abc import Sequence

from ..actors import LoopPort, LoopWatch
from ..runner.grammar_actor import GrammarActor
from ..runner.runner import MERGED_BLOCKS, Runner, RunnerInfo
from ..runner.runner_actor import RunnerActor
from ..scheduler.errors import ConfigError, EngineOverloadedError, EnginePausedError, InvalidRequestError
from ..scheduler.kv_cache_actor import KVCacheActor
from ..scheduler.kv_cache_manager import KVCacheManager
from ..scheduler.messages import Abort, CloseSession, EngineCoreEvent
from ..scheduler.pause import PauseMode
from ..scheduler.scheduler import Scheduler
from ..scheduler.scheduler_actor import SchedulerActor
from ..scheduler.stops import StopRule
from .board import Board
from .config import EngineConfig
from .constraints import ConstraintCheck, vocabulary_of
from .delivery import DeliveryActor
from .door import Door
from .event_log import EventLog
from .intake import Intake, IntakeActor
from .param_limits import ParamLimits
from .pipeline import Pipeline
from .session_names import SessionNames
from .tokenizer import Tokenizer


class Parts:
    """The actors of a running engine and what they share."""

    def __init__(
        self, config: EngineConfig, runner: Runner, tokenizer: Tokenizer | None, stop_rules: Sequence[StopRule] = ()
    ) -> None:
        info = runner.info
        max_model_len = _at_most("max_model_len", config.max_model_len, info.max_model_len)
        num_blocks = _at_most("num_kv_blocks", config.num_kv_blocks, info.num_kv_blocks)
        rows = _at_most("max_num_running_reqs", config.max_num_running_reqs, info.max_num_running_reqs)
        if config.block_size != info.block_size:
            raise ConfigError(f"block_size is {config.block_size}, the runner's is {info.block_size}")
        self.stopped = False
        self.paused: PauseMode | None = None
        self.port = LoopPort()
        self.max_unfinished = config.max_waiting + rows
        self.max_waiting_tokens = config.max_waiting_tokens
        self.board = Board(self._tell_abort)
        self.sessions = SessionNames()
        self.events = EventLog(self.port)
        self.watch = LoopWatch(lambda: len(self.board) > 0)
        depth = config.steps_in_flight
        self.delivery = DeliveryActor(self.board, self.events, steps_in_flight=depth)
        self.runner = RunnerActor(runner, steps_in_flight=depth)
        keyed = config.enable_prefix_caching
        self.grammars = _grammars(config, info, tokenizer)
        settings = config.scheduler(
            max_num_running_reqs=rows,
            max_model_len=max_model_len,
            num_kv_blocks=num_blocks,
            eos_token_ids=info.eos_token_ids,
            weights_id=info.weights_id,
            kv_groups=info.kv_groups,
        )
        self.kv = KVCacheActor(
            KVCacheManager(
                num_blocks,
                config.block_size,
                keyed,
                groups=info.kv_groups,
                max_in_flight_tokens=settings.max_in_flight_tokens,
                merge_equal_blocks=MERGED_BLOCKS in info.capabilities,
            )
        )
        core = Scheduler(settings, stop_rules)
        self.scheduler = SchedulerActor(
            core,
            reserve=self.kv.wants,
            plans=self.runner.plans,
            outputs=self.delivery.outputs,
            max_waiting=self.max_unfinished,
            grammars=self.grammars.wanted if self.grammars else None,
        )
        if self.grammars:
            self.grammars.deliver_to(self.scheduler.mailbox.control_nowait)
            self.runner.ask_for_masks(self.grammars.mailbox.control_nowait)
        self.runner.deliver_to(self.scheduler.mailbox.control_nowait)
        intake = Intake(
            info,
            tokenizer,
            max_model_len=max_model_len,
            num_kv_blocks=num_blocks,
            sizes=settings.group_sizes(),
            prefix_hash=config.prefix_hash if keyed else None,
        )
        limits = ParamLimits(
            info, type(runner).__name__, max_logprobs=config.max_logprobs, has_tokenizer=tokenizer is not None
        )
        self.door = Door(intake, tokenizer, limits, ConstraintCheck(info, tokenizer))
        self.intake = IntakeActor(intake, self.board, submits=self.scheduler.submits, max_waiting=self.max_unfinished)
        # Started from the end of the data's way to its beginning: nobody sends to an actor that does not run.
        self.pipeline = Pipeline(
            self.delivery,
            *([self.grammars] if self.grammars else []),
            self.runner,
            self.kv,
            self.scheduler,
            self.intake,
            self.watch,
            stop_timeout=config.stop_timeout,
            raise_on_exit=False,
        )

    def refuse_overload(self, request_id: str, n: int) -> None:
        """Raise EngineOverloadedError when a request's ``n`` completions may not all wait."""
        if n > self.max_unfinished:
            raise InvalidRequestError(f"n is {n}, limit is {self.max_unfinished} (request {request_id})")
        if self.board.num_places + n > self.max_unfinished:
            more = f" and {n} more are asked for" if n > 1 else ""
            raise EngineOverloadedError(
                f"{self.board.num_places} requests are unfinished{more}, limit is {self.max_unfinished} "
                f"(max_waiting and max_num_running_reqs together); try again later (request {request_id})"
            )

        limit, load = self.max_waiting_tokens, self.board.load.total
        if limit is not None and load >= limit:
            raise EngineOverloadedError(
                f"{load} prompt tokens wait to be computed, limit is {limit} (max_waiting_tokens); "
                f"try again later (request {request_id})"
            )

    def refuse_paused(self, request_id: str) -> None:
        """Raise EnginePausedError while the engine is paused in a mode that takes no requests."""
        if self.paused in ("wait", "abort"):
            raise EnginePausedError(
                f"the engine is paused, in mode {self.paused!r}; try again after it was resumed (request {request_id})"
            )

    def stop(self) -> None:
        """End every request and tell whoever follows; nothing is accepted from now on."""
        self.stopped = True
        now = self.port.time()
        step = self.scheduler.core.statistics().num_steps
        ended = self.board.abort_all(now)
        # The scheduler may say so too, later: by then nobody listens any more.
        self.events.add([EngineCoreEvent(kind="FINISHED", request_id=key, step=step, time=now) for key in ended])
        self.events.close()

    def abort_from_anywhere(self, keys: list[str]) -> None:
        """Abort a request whose stream was dropped, in whichever thread that happened."""
        if self.port.is_owner:
            self._abort(keys)
        else:
            self.port.post(self._abort, keys)

    def close_session_from_anywhere(self, name: str) -> None:
        """Close a session that was dropped, in whichever thread that happened."""
        if self.port.is_owner:
            self.close_session(name)
        else:
            self.port.post(self.close_session, name)

    def close_session(self, name: str) -> None:
        """Give back what is kept for a session; its requests have ended or are aborted."""
        self.sessions.close(name)
        if not self.stopped:
            self.scheduler.mailbox.control_nowait(CloseSession(name))

    def _abort(self, keys: list[str]) -> None:
        if not self.stopped:
            self.board.abort(keys, self.port.time())

    def _tell_abort(self, keys: list[str]) -> None:
        if not self.stopped:
            self.scheduler.mailbox.control_nowait(Abort(keys))


def _grammars(config: EngineConfig, info: RunnerInfo, tokenizer: Tokenizer | None) -> GrammarActor | None:
    """The grammars' actor, where there is a vocabulary to constrain."""
    if tokenizer is None:
        return None
    return GrammarActor(lambda: vocabulary_of(tokenizer, info), config.grammars)


def _at_most(name: str, wanted: int | None, limit: int) -> int:
    if wanted is not None and wanted > limit:
        raise ConfigError(f"{name} is {wanted}, the runner's limit is {limit}")
    return wanted or limit
