"""The actors of a running engine, wired to each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..actors import LoopPort, LoopWatch
from ..runner.grammar_actor import GrammarActor
from ..runner.runner import MERGED_BLOCKS, Runner, RunnerInfo
from ..runner.runner_actor import RunnerActor
from ..scheduler.config import SchedulerConfig
from ..scheduler.errors import ConfigError, EnginePausedError
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
from .intake import Intake
from .intake_actor import IntakeActor
from .param_limits import ParamLimits
from .pipeline import Pipeline
from .session_names import SessionNames
from .tokenizer import Tokenizer
from .waiting_room import WaitingRoom


class Parts:
    """The actors of a running engine and what they share."""

    def __init__(
        self, config: EngineConfig, runner: Runner, tokenizer: Tokenizer | None, stop_rules: Sequence[StopRule] = ()
    ) -> None:
        settings = _settings(config, runner.info)
        self.stopped = False
        self.paused: PauseMode | None = None
        self.port = LoopPort()
        self.board = Board(self._tell_abort, self._tell_unsent)
        self.room = WaitingRoom(
            self.board, config.max_waiting + settings.max_num_running_reqs, config.max_waiting_tokens
        )
        self.sessions = SessionNames()
        self.events = EventLog(self.port)
        self.watch = LoopWatch(lambda: len(self.board) > 0)
        self._make_ends(config, runner, tokenizer)
        self._make_scheduler(settings, stop_rules)
        self._make_intake(config, settings, runner, tokenizer)
        self._connect()
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

    def _make_ends(self, config: EngineConfig, runner: Runner, tokenizer: Tokenizer | None) -> None:
        """The actors that the scheduler sends to."""
        depth = config.steps_in_flight
        self.delivery = DeliveryActor(self.board, self.events, steps_in_flight=depth)
        self.runner = RunnerActor(runner, steps_in_flight=depth)
        self.grammars = _grammars(config, runner.info, tokenizer)

    def _make_scheduler(self, settings: SchedulerConfig, stop_rules: Sequence[StopRule]) -> None:
        """The scheduler and the KV cache."""
        assert settings.num_kv_blocks is not None
        self.kv = KVCacheActor(
            KVCacheManager(
                settings.num_kv_blocks,
                settings.block_size,
                settings.enable_prefix_caching,
                groups=settings.kv_groups,
                max_in_flight_tokens=settings.max_in_flight_tokens,
                merge_equal_blocks=MERGED_BLOCKS in self.runner.runner.info.capabilities,
            )
        )
        self.scheduler = SchedulerActor(
            Scheduler(settings, stop_rules),
            reserve=self.kv.wants,
            plans=self.runner.plans,
            outputs=self.delivery.outputs,
            max_waiting=self.room.max_unfinished,
            grammars=self.grammars.wanted if self.grammars else None,
        )

    def _make_intake(
        self, config: EngineConfig, settings: SchedulerConfig, runner: Runner, tokenizer: Tokenizer | None
    ) -> None:
        """The way in: the door, and what makes requests of prompts."""
        info = runner.info
        assert settings.num_kv_blocks is not None
        intake = Intake(
            info,
            tokenizer,
            max_model_len=settings.max_model_len,
            num_kv_blocks=settings.num_kv_blocks,
            sizes=settings.group_sizes(),
            prefix_hash=config.prefix_hash if config.enable_prefix_caching else None,
        )
        limits = ParamLimits(
            info, type(runner).__name__, max_logprobs=config.max_logprobs, has_tokenizer=tokenizer is not None
        )
        self.door = Door(intake, tokenizer, limits, ConstraintCheck(info, tokenizer))
        self.intake = IntakeActor(
            intake, self.board, submits=self.scheduler.submits, max_waiting=self.room.max_unfinished
        )

    def _connect(self) -> None:
        """The ways back: control lanes, which never block."""
        to_scheduler = self.scheduler.mailbox.control_nowait
        self.runner.deliver_to(to_scheduler)
        if self.grammars:
            self.grammars.deliver_to(to_scheduler)
            self.runner.ask_for_masks(self.grammars.mailbox.control_nowait)

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

    def _tell_unsent(self, key: str) -> None:
        if self.stopped:  # no request comes any more
            self.board.gone(key)
        else:
            self.scheduler.mailbox.control_nowait(Abort([key], unsent=True))


def checked_runner(runner: Any) -> Runner:
    """The runner. Raises ConfigError for what is none."""
    calls = all(callable(getattr(runner, name, None)) for name in ("submit", "aclose"))
    if isinstance(runner, type) or not calls or not isinstance(getattr(runner, "info", None), RunnerInfo):
        raise ConfigError(f"runner is {runner!r}, needed is an object with the methods of Runner and a RunnerInfo")
    return runner


def checked_tokenizer(tokenizer: Any) -> Tokenizer | None:
    """The tokenizer, if there is one. Raises ConfigError for what is none."""
    if tokenizer is not None and not all(callable(getattr(tokenizer, name, None)) for name in ("encode", "join_bytes")):
        raise ConfigError(f"tokenizer is {tokenizer!r}, needed is a Tokenizer or None")
    return tokenizer


def _grammars(config: EngineConfig, info: RunnerInfo, tokenizer: Tokenizer | None) -> GrammarActor | None:
    """The grammars' actor, where there is a vocabulary to constrain."""
    if tokenizer is None:
        return None
    return GrammarActor(lambda: vocabulary_of(tokenizer, info), config.grammars)


def _settings(config: EngineConfig, info: RunnerInfo) -> SchedulerConfig:
    """The scheduler's settings. Raises ConfigError for those that the runner cannot meet."""
    if config.block_size != info.block_size:
        raise ConfigError(f"block_size is {config.block_size}, the runner's is {info.block_size}")
    limits = {
        name: _at_most(name, getattr(config, name), getattr(info, name))
        for name in ("max_model_len", "num_kv_blocks", "max_num_running_reqs")
    }
    return config.scheduler(
        **limits, eos_token_ids=info.eos_token_ids, weights_id=info.weights_id, kv_groups=info.kv_groups
    )


def _at_most(name: str, wanted: int | None, limit: int) -> int:
    if wanted is not None and wanted > limit:
        raise ConfigError(f"{name} is {wanted}, the runner's limit is {limit}")
    return wanted or limit
