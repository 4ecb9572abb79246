"""What the scheduler remembers of a request."""

from __future__ import annotations

from .messages import Admit
from .repetition import RepetitionWatch
from .request import Request, RequestStatus
from .statistics import PrefillStats


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
