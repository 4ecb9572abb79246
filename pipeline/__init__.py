"""Wires: the engine, its settings, the way in and the way out."""

from .config import EngineConfig as EngineConfig
from .config import SpeculativeConfig as SpeculativeConfig
from .engine import Engine as Engine
from .outputs import CompletionOutput as CompletionOutput
from .outputs import EngineStats as EngineStats
from .outputs import RequestOutput as RequestOutput
from .outputs import Timings as Timings
from .outputs import Usage as Usage
from .pipeline import Pipeline as Pipeline
from .session import Session as Session
from .step_stats import StepStats as StepStats
from .stream import RequestStream as RequestStream
