"""Actors and pipelines for LLM inference inside your own asyncio program.

    async with Engine.from_pretrained("smollm2") as engine:
        async for output in engine.chat(messages, SamplingParams(max_tokens=64)):
            print(output.text, end="")

The main names:

- ``Engine``: ``from_pretrained``, ``generate``, ``complete``, ``chat``, ``open_session``; ``EngineConfig`` has its
  settings, which ``from_pretrained`` takes by name.
- ``SamplingParams``: how to sample and when to stop; ``StructuredOutput`` constrains the text.
- ``RequestStream`` gives ``RequestOutput``s, each with its ``CompletionOutput``s, ``Usage`` and ``Timings``.
- ``EngineStats``, ``StepStats`` and the events of ``engine.events()`` and ``engine.kv_events()``: looking in.
- ``Policy`` and ``StopRule``: what an object of yours has to offer to order requests, or to end them.
- ``CallboardError``: the base of all errors; ``InvalidRequestError`` is one request's, ``EngineDeadError`` everybody's.
"""

from callboard.actors.errors import WrongLoopError as WrongLoopError
from callboard.pipeline import CompletionOutput as CompletionOutput
from callboard.pipeline import Engine as Engine
from callboard.pipeline import EngineConfig as EngineConfig
from callboard.pipeline import EngineStats as EngineStats
from callboard.pipeline import Pipeline as Pipeline
from callboard.pipeline import RequestOutput as RequestOutput
from callboard.pipeline import RequestStream as RequestStream
from callboard.pipeline import Session as Session
from callboard.pipeline import SpeculativeConfig as SpeculativeConfig
from callboard.pipeline import StepStats as StepStats
from callboard.pipeline import Timings as Timings
from callboard.pipeline import Usage as Usage
from callboard.pipeline.outputs import Logprob as Logprob
from callboard.runner.grammar_cache import GrammarCacheStatistics as GrammarCacheStatistics
from callboard.runner.grammar_manager import GrammarStatistics as GrammarStatistics
from callboard.runner.grammar_spec import GrammarConfig as GrammarConfig
from callboard.scheduler.errors import BooksError as BooksError
from callboard.scheduler.errors import CallboardError as CallboardError
from callboard.scheduler.errors import ConfigError as ConfigError
from callboard.scheduler.errors import EngineDeadError as EngineDeadError
from callboard.scheduler.errors import EngineOverloadedError as EngineOverloadedError
from callboard.scheduler.errors import EnginePausedError as EnginePausedError
from callboard.scheduler.errors import InvalidRequestError as InvalidRequestError
from callboard.scheduler.errors import MisuseError as MisuseError
from callboard.scheduler.errors import ModelLoadError as ModelLoadError
from callboard.scheduler.errors import NotBuiltError as NotBuiltError
from callboard.scheduler.errors import PolicyError as PolicyError
from callboard.scheduler.errors import RequestFailedError as RequestFailedError
from callboard.scheduler.errors import RunnerError as RunnerError
from callboard.scheduler.kv_events import AllBlocksCleared as AllBlocksCleared
from callboard.scheduler.kv_events import BlockRemoved as BlockRemoved
from callboard.scheduler.kv_events import BlockStored as BlockStored
from callboard.scheduler.kv_events import KVEventBatch as KVEventBatch
from callboard.scheduler.kv_events import KVEventsLost as KVEventsLost
from callboard.scheduler.messages import EngineCoreEvent as EngineCoreEvent
from callboard.scheduler.messages import Finished as Finished
from callboard.scheduler.params import RepetitionDetection as RepetitionDetection
from callboard.scheduler.params import SamplingParams as SamplingParams
from callboard.scheduler.params import StructuredOutput as StructuredOutput
from callboard.scheduler.policy import FCFSPolicy as FCFSPolicy
from callboard.scheduler.policy import Policy as Policy
from callboard.scheduler.policy import PriorityPolicy as PriorityPolicy
from callboard.scheduler.request import FinishReason as FinishReason
from callboard.scheduler.statistics import KVGroupStatistics as KVGroupStatistics
from callboard.scheduler.statistics import PrefillStats as PrefillStats
from callboard.scheduler.stops import StopRule as StopRule

__all__ = [
    "AllBlocksCleared",
    "BlockRemoved",
    "BlockStored",
    "BooksError",
    "CallboardError",
    "CompletionOutput",
    "ConfigError",
    "Engine",
    "EngineConfig",
    "EngineCoreEvent",
    "EngineDeadError",
    "EngineOverloadedError",
    "EnginePausedError",
    "EngineStats",
    "FCFSPolicy",
    "FinishReason",
    "Finished",
    "GrammarCacheStatistics",
    "GrammarConfig",
    "GrammarStatistics",
    "InvalidRequestError",
    "KVEventBatch",
    "KVEventsLost",
    "KVGroupStatistics",
    "Logprob",
    "MisuseError",
    "ModelLoadError",
    "NotBuiltError",
    "Pipeline",
    "Policy",
    "PolicyError",
    "PrefillStats",
    "PriorityPolicy",
    "RepetitionDetection",
    "RequestFailedError",
    "RequestOutput",
    "RequestStream",
    "RunnerError",
    "SamplingParams",
    "Session",
    "SpeculativeConfig",
    "StepStats",
    "StopRule",
    "StructuredOutput",
    "Timings",
    "Usage",
    "WrongLoopError",
]

__version__ = "0.1.0"
