"""Executes: the runner contract, the torch runner, the simulated runner, and model files."""

from typing import TYPE_CHECKING, Any

from .grammar_spec import GrammarConfig as GrammarConfig
from .latency import H200_8B as H200_8B
from .latency import TWO_CORES_135M as TWO_CORES_135M
from .latency import Latency as Latency
from .load import Lengths as Lengths
from .load import Load as Load
from .load import LoadRequest as LoadRequest
from .runner import MERGED_BLOCKS as MERGED_BLOCKS
from .runner import Runner as Runner
from .runner import RunnerInfo as RunnerInfo
from .simulated import Gate as Gate
from .simulated import SimulatedRunner as SimulatedRunner

if TYPE_CHECKING:
    from .torch_runner import TorchRunner as TorchRunner


def __getattr__(name: str) -> Any:
    # torch takes a second to import: only those who name its runner pay for it.
    if name == "TorchRunner":
        from .torch_runner import TorchRunner  # noqa: PLC0415

        return TorchRunner
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
