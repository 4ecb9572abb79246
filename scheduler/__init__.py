"""Decides: requests, queues, the scheduler and the KV cache's ledger, as pure cores with thin actors."""

from .block_pool import BlockPool as BlockPool
from .config import SchedulerConfig as SchedulerConfig
from .kv_cache_manager import KVCacheManager as KVCacheManager
from .messages import EngineCoreEvent as EngineCoreEvent
from .messages import EngineCoreOutput as EngineCoreOutput
from .messages import EngineCoreOutputs as EngineCoreOutputs
from .messages import Finished as Finished
from .params import RepetitionDetection as RepetitionDetection
from .params import SamplingParams as SamplingParams
from .params import StructuredOutput as StructuredOutput
from .pause import PauseState as PauseState
from .plan import CachedRequestData as CachedRequestData
from .plan import GrammarOutput as GrammarOutput
from .plan import ModelRunnerOutput as ModelRunnerOutput
from .plan import NewRequestData as NewRequestData
from .plan import SchedulerOutput as SchedulerOutput
from .policy import FCFSPolicy as FCFSPolicy
from .policy import Policy as Policy
from .policy import PriorityPolicy as PriorityPolicy
from .request import FinishReason as FinishReason
from .request import Request as Request
from .request import RequestStatus as RequestStatus
from .running_table import RunningTable as RunningTable
from .scheduler import Scheduler as Scheduler
from .scheduler import plan_step as plan_step
from .stops import StopRule as StopRule
