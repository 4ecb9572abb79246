"""The records that actors send each other, one group for each receiver.

Commands are imperative, events are past tense. All are frozen values, and all but one encode to
msgpack, so that a channel may be replaced by a socket: ``SwapPolicy`` with a policy of the user's
holds an object. What asks for an answer travels in an ``Ask``, whose reply belongs to this process;
a socket would send the record in it and number the answer. Between any two actors the number of records in a step
does not depend on how many requests run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from .arrays import NO_INTS, IntArray
from .kv_events import KVChange, KVEventBatch
from .logprobs import LogprobColumns
from .params import StructuredOutput
from .pause import PauseMode
from .plan import BlockIds, ModelRunnerOutput
from .request import FinishReason, Request
from .statistics import PrefillStats, SchedulerStats

# Whose fault it is that a request failed: its own, the user's policy's or stop rule's, or the runner's.
Fault = Literal["request", "policy", "rule", "runner"]

# --- to the scheduler: the data lane


class Submit(msgspec.Struct, frozen=True, tag=True):
    """Take in a new request."""

    request: Request


# --- to the scheduler: the control lane


class Abort(msgspec.Struct, frozen=True, tag=True):
    """End these requests; ids that are unknown or have ended are ignored.

    ``unsent``: they will never come; they are told as ended, once every abort sent before this has been read.
    """

    request_ids: list[str]
    unsent: bool = False


class CloseSession(msgspec.Struct, frozen=True, tag=True):
    """A session has no further input: give back what is kept for it."""

    session: str


class StepDone(msgspec.Struct, frozen=True, tag=True):
    """A step has ended with this result."""

    output: ModelRunnerOutput


class ResetPrefixCache(msgspec.Struct, frozen=True, tag=True):
    """Forget all cached prefixes, if nobody holds a block; asked of the scheduler, and by it of the KV cache.

    With ``force`` the scheduler preempts all running requests first.
    """

    force: bool = False


class Pause(msgspec.Struct, frozen=True, tag=True):
    """Plan less from now on; answered when what the mode still lets run has ended."""

    mode: PauseMode


class SwapPolicy(msgspec.Struct, frozen=True, tag=True):
    """Go on under another policy: a name, or an object with the methods of ``Policy``, which has no form as bytes."""

    policy: Any


class Resume(msgspec.Struct, frozen=True, tag=True):
    """Plan everything again."""


class Follow(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Somebody wants to know: events of the KV cache, or the counts of each step; from now on, to the end."""

    kv_events: bool = False
    steps: bool = False


class GrammarNews(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Grammars are ready, or their requests must end: each one's reason is its text.

    ``failed`` are those whose constraint cannot be honoured, ``broken`` those whose mask the runner did not apply.
    ``numbers`` says as which arrivals they are meant: a later request of the same id hears nothing of it.
    """

    ready: list[str] = []
    failed: dict[str, str] = {}
    broken: dict[str, str] = {}
    numbers: dict[str, int] = {}


# --- to the grammars


class PrepareGrammars(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Requests wait for their grammars; others, which had one or waited for it, have ended.

    ``numbers`` are those of the wanted ones' arrivals.
    """

    wanted: dict[str, StructuredOutput] = {}
    ended: list[str] = []
    numbers: dict[str, int] = {}


# --- to the KV cache


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """A request's blocks are given up; ``fence`` is the last step that may touch them.

    ``digests`` are keys of its last full blocks which the cache has not been told yet. With
    ``keep_as`` they are kept under that name until others need them, in the place of what was. With
    ``lacks_last_token`` the last of them is that of a block behind the full ones, of which all
    tokens but the last were computed.
    """

    req_id: str
    fence: int
    digests: list[bytes] = []
    num_full_blocks: int = 0
    keep_as: str | None = None
    lacks_last_token: bool = False


class Publish(msgspec.Struct, frozen=True, kw_only=True):
    """The first ``num_full_blocks`` of a request's table are computed by planned steps.

    ``digests`` continue the keys that the cache has for the request. ``merges``: it has a token in
    the planned step, by which the runner can be told of equal blocks that take their place.
    """

    req_id: str
    num_full_blocks: int
    digests: list[bytes] = []
    merges: bool = False


class Grow(msgspec.Struct, frozen=True, kw_only=True):
    """A running request needs more blocks for its next tokens: so many more than every group has.

    ``takes`` is false for one that was admitted out of its turn: nobody gives way to it.
    """

    req_id: str
    num_blocks: int
    takes: bool = True


class Victim(msgspec.Struct, frozen=True, kw_only=True):
    """A request that may be preempted; ``fence`` is the last step that may touch its blocks."""

    req_id: str
    fence: int


class Admit(msgspec.Struct, frozen=True, kw_only=True):
    """A waiting request wants a row; blocks for all its known tokens, or nothing.

    ``digests`` are the keys of its full blocks; ``read_cache`` is false where every token
    must be computed; ``resumed`` requests are counted apart. ``num_held`` tokens were computed
    into the blocks that the cache may still keep for it, or for its session as ``kept_as``.
    """

    req_id: str
    num_tokens: int
    digests: list[bytes]
    read_cache: bool = True
    resumed: bool = False
    num_held: int = 0
    kept_as: str | None = None

    @property
    def holder(self) -> str:
        """The name under which blocks may be kept for it."""
        return self.kept_as or self.req_id


class Reserve(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """All that one step wants of the KV cache, in the order in which it is to be granted.

    ``step`` is the one that is planned. ``completed`` is the last whose result was applied:
    fences up to it are open.
    ``settled`` names requests whose windows have passed blocks, with their tokens computed by
    applied steps; ``soon_passed`` counts the blocks that windows pass when steps under way end.
    ``victims`` give way to those who grow, first to last; ``holders`` have no row and give their
    blocks before, also to the first candidate; to it ``displaced`` give way, by their blocks and
    by their rows. Behind a first candidate without room up to ``backfill`` others are admitted.
    The rest bounds admission: ``num_rows`` are idle, ``token_budget`` tokens are left in the step, a prompt gets at
    most ``prefill_cap`` of them (0: all) and is split where ``split_prompts`` allows it,
    ``keep_free`` blocks stay free unless the pool is idle. With ``report`` the answer tells
    which cached blocks came and went.
    """

    completed: int
    step: int = 0
    release: list[Release] = []
    settled: dict[str, int] = {}
    soon_passed: int = 0
    grow: list[Grow] = []
    victims: list[Victim] = []
    holders: list[str] = []
    displaced: list[Victim] = []
    publish: list[Publish] = []
    admit: list[Admit] = []
    num_rows: int = 1
    backfill: int = 0
    token_budget: int = 0
    prefill_cap: int = 0
    split_prompts: bool = True
    keep_free: int = 0
    report: bool = False


# --- from the KV cache


class Admitted(msgspec.Struct, frozen=True, kw_only=True):
    """A waiting request got its blocks; ``num_scheduled_tokens`` are computed in this step.

    ``out_of_turn``: the first candidate found no room, and this one uses what it cannot.
    """

    req_id: str
    block_ids: BlockIds
    num_cached_tokens: int
    num_scheduled_tokens: int
    more_block_ids: list[BlockIds] = []
    write_from: int = 0
    out_of_turn: bool = False


class Granted(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What the KV cache gave; ``grown`` in the first group of layers, ``grown_more`` in each further one.

    In the tables of ``replaced`` requests equal blocks take the place of their own: (group, place, block).
    ``stalled`` requests get nothing in this step: enough blocks are on their way to free.
    ``refused`` says that the first candidate left over found no room. ``changes`` are those of
    the prefix cache, if a report was wanted.
    """

    grown: dict[str, BlockIds] = {}
    grown_more: dict[str, list[BlockIds]] = {}
    replaced: dict[str, list[tuple[int, int, int]]] = {}
    stalled: set[str] = set()
    preempted: list[str] = []
    admitted: list[Admitted] = []
    refused: bool = False
    num_free_blocks: int = 0
    changes: list[KVChange] = []


# --- to the front end


EventKind = Literal["QUEUED", "SCHEDULED", "PREEMPTED", "FINISHED"]


class EngineCoreEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to a request."""

    kind: EventKind
    request_id: str
    step: int
    time: float


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """A request has ended; with an ``error``, ``fault`` says whose it was."""

    reason: FinishReason
    stop_reason: int | str | None = None
    error: str | None = None
    fault: Fault = "request"

    @classmethod
    def by_error(cls, error: str, fault: Fault = "request") -> Finished:
        """An end that its reader gets as an error."""
        return cls(reason=FinishReason.ERROR, error=error, fault=fault)


class EngineCoreOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What a step gave for one request (a view; the step's record holds columns)."""

    request_id: str
    new_token_ids: list[int]
    new_logprobs: LogprobColumns | None = None
    new_prompt_logprobs: LogprobColumns | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    prefill: PrefillStats | None = None

    @property
    def num_cached_tokens(self) -> int | None:
        """Prompt tokens that came from the prefix cache; only with the first token."""
        return self.prefill.num_cached_tokens if self.prefill else None


class EngineCoreOutputs(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What a step gave for all requests: new tokens as columns, and who has ended.

    ``req_ids`` and ``token_ids`` are parallel; a request with several tokens stands there
    several times, in order. ``logprobs`` has a place for each token of those who ask for it,
    ``prompt_logprobs`` the next places of their prompts. ``prefill`` holds, with a request's first
    token, how its prompt was come by. The last two are there for those who follow them.
    """

    step: int
    req_ids: list[str] = []
    token_ids: IntArray = NO_INTS
    logprobs: dict[str, LogprobColumns] = {}
    prompt_logprobs: dict[str, LogprobColumns] = {}
    finished: dict[str, Finished] = {}
    prefill: dict[str, PrefillStats] = {}
    events: list[EngineCoreEvent] = []
    kv_events: list[KVEventBatch] = []
    scheduler_stats: SchedulerStats | None = None

    @property
    def cached(self) -> dict[str, int]:
        """Prompt tokens that came from the prefix cache, with a request's first token."""
        return {req_id: prefill.num_cached_tokens for req_id, prefill in self.prefill.items()}

    def view(self) -> dict[str, EngineCoreOutput]:
        """The outputs by request."""
        tokens: dict[str, list[int]] = {req_id: [] for req_id in self.req_ids}
        for req_id, token in zip(self.req_ids, self.token_ids.tolist(), strict=True):
            tokens[req_id].append(token)
        for req_id in self.finished:
            tokens.setdefault(req_id, [])
        return {req_id: self._one(req_id, new) for req_id, new in tokens.items()}

    def _one(self, req_id: str, new: list[int]) -> EngineCoreOutput:
        end = self.finished.get(req_id)
        return EngineCoreOutput(
            request_id=req_id,
            new_token_ids=new,
            new_logprobs=self.logprobs.get(req_id),
            new_prompt_logprobs=self.prompt_logprobs.get(req_id),
            finish_reason=end.reason if end else None,
            stop_reason=end.stop_reason if end else None,
            error=end.error if end else None,
            prefill=self.prefill.get(req_id),
        )

    def __iter__(self) -> Iterator[EngineCoreOutput]:
        return iter(self.view().values())

    def __getitem__(self, req_id: str) -> EngineCoreOutput:
        return self.view()[req_id]
