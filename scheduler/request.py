"""A request as it is submitted, where it is in its life, and how it ends."""

from __future__ import annotations

import enum

import msgspec

from .params import SamplingParams


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
