"""Actors and pipelines for LLM inference inside your own asyncio program."""

from .pipeline import CompletionOutput as CompletionOutput
from .pipeline import Engine as Engine
from .pipeline import EngineConfig as EngineConfig
from .pipeline import EngineStats as EngineStats
from .pipeline import RequestOutput as RequestOutput
from .pipeline import RequestStream as RequestStream
from .pipeline import Timings as Timings
from .pipeline import Usage as Usage
from .scheduler.errors import BooksError as BooksError
from .scheduler.errors import CallboardError as CallboardError
from .scheduler.errors import ConfigError as ConfigError
from .scheduler.errors import EngineDeadError as EngineDeadError
from .scheduler.errors import EngineOverloadedError as EngineOverloadedError
from .scheduler.errors import InvalidRequestError as InvalidRequestError
from .scheduler.errors import ModelLoadError as ModelLoadError
from .scheduler.errors import NotBuiltError as NotBuiltError
from .scheduler.messages import EngineCoreEvent as EngineCoreEvent
from .scheduler.params import SamplingParams as SamplingParams
from .scheduler.params import StructuredOutput as StructuredOutput

__version__ = "0.1.0"
