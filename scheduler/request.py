"""A request as it is submitted, and what the scheduler remembers of it."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import msgspec

from .params import SamplingParams
from .statistics import PrefillStats

if TYPE_CHECKING:
    from .messages import Admit
    from .repetition import RepetitionWatch


class RequestStatus(enum.IntEnum):
    """Where a request is in its life; everything above PREEMPTED has ended."""

    WAITING_FOR_GRAMMAR = -1  # the field's WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2
    FINISHED_STOPPED = 3
    FINISHED_LENGTH_CAPPED = 4
    FINISHED_ABORTED = 5
    FINISHED_ERROR = 6
    FINISHED_REPETITION = 7

    @property
    def is_finished(self) -> bool:
        """Whether the request has ended."""
        return self > RequestStatus.PREEMPTED


class FinishReason(enum.StrEnum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    REPETITION = "repetition"


STATUS_OF_REASON = {
    FinishReason.STOP: RequestStatus.FINISHED_STOPPED,
    FinishReason.LENGTH: RequestStatus.FINISHED_LENGTH_CAPPED,
    FinishReason.ABORT: RequestStatus.FINISHED_ABORTED,
    FinishReason.ERROR: RequestStatus.FINISHED_ERROR,
    FinishReason.REPETITION: RequestStatus.FINISHED_REPETITION,
}


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt to be continued.

    Args:
        request_id: unique among the requests that are alive.
        priority: smaller is more urgent (read by the priority policy).
        arrival_time: seconds on the engine's clock; ties of priority go by it.
        cache_salt: requests with different salts never share cached blocks.
        adapter: name of the adapter that the weights are used with.
        session: name of the session whose text this request goes on with; its prompt is that whole text.
        block_digests: keys of the prompt's full blocks, when the sender has made them;
            None: the scheduler makes them.
        is_checked: whether its sender has looked at each token of the prompt; else the scheduler does.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    priority: int = 0
    arrival_time: float = 0.0
    cache_salt: str | None = None
    adapter: str | None = None
    session: str | None = None
    block_digests: list[bytes] | None = None
    is_checked: bool = False


class RequestState:
    """What the scheduler remembers of a request; the running ones' numbers are in its table.

    ``row`` is -1 while the request holds none. ``output_token_ids`` is filled when the row is
    given up (preemption, end); while the request runs its tokens stand in the table.
    """

    __slots__ = (
        "asks",
        "digests",
        "num_held",
        "num_preemptions",
        "num_prompt_logprobs",
        "number",
        "output_token_ids",
        "prefill",
        "repetition",
        "request",
        "row",
        "status",
    )

    def __init__(self, request: Request) -> None:
        self.request = request
        self.status = RequestStatus.WAITING
        self.row = -1
        self.number = 0  # in order of arrival, from 1; 0: not queued by a scheduler
        self.output_token_ids: list[int] = []
        self.digests: list[bytes] = []
        self.prefill: PrefillStats | None = None  # from the first admission on
        self.num_preemptions = 0
        self.num_held = 0  # tokens computed into blocks that the KV cache may keep for it while it waits
        self.num_prompt_logprobs = 0  # places of the prompt whose log-probabilities were passed on
        self.repetition: RepetitionWatch | None = None  # for a request that asks for it
        self.asks: Admit | None = None  # what the KV cache was asked for it last

    @property
    def request_id(self) -> str:
        """The request's id."""
        return self.request.request_id

    @property
    def num_tokens(self) -> int:
        """Known tokens of a request that holds no row: prompt and outputs."""
        return len(self.request.prompt_token_ids) + len(self.output_token_ids)

    def token_ids(self) -> list[int]:
        """Known tokens of a request that holds no row."""
        return [*self.request.prompt_token_ids, *self.output_token_ids]
