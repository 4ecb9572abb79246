"""What a step is: the plan that a runner executes and the result that comes back.

Both are values. A plan carries all that its step reads, so that the scheduler may go on
changing its own tables while the step is under way; a result names its step. Columns are
arrays with one entry for each scheduled request, in plan order; the names that users of
such engines know (``num_scheduled_tokens`` and so on) are views on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from .arrays import NO_BOOLS, NO_INTS, BoolArray, IntArray
from .logprobs import LogprobColumns
from .params import SamplingParams

BlockIds = list[int]


class NewRequestData(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a runner must know of a request that it holds nothing of.

    Sent at the first admission and again after each preemption.

    Args:
        row: the slot of the runner's tables, below ``max_num_running_reqs``.
        token_ids: the prompt, then the tokens generated before a preemption.
        num_prompt_tokens: how many of ``token_ids`` are the prompt.
        block_ids: the block table; token i lives in block ``block_ids[i // block_size]``.
        more_block_ids: the tables of further groups of layers. In a group with a window the null block (0)
            stands where the window has passed, and the table may end before the prompt does.
        num_computed_tokens: tokens whose keys and values are in those blocks already.
        write_from: tokens before it stand in blocks that others read too: one of them that is computed
            again, for its result, reads the keys and values that are there and writes none.
    """

    req_id: str
    row: int
    token_ids: list[int]
    num_prompt_tokens: int
    block_ids: BlockIds
    num_computed_tokens: int
    sampling_params: SamplingParams
    mm_features: list[Any] = []
    adapter: str | None = None
    resumed: bool = False
    more_block_ids: list[BlockIds] = []
    write_from: int = 0


class CachedRequestData(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that the runner holds already, as parallel lists.

    ``new_block_ids[i]`` is what joins the end of request i's block table (None: nothing), in the first
    group of layers. A request that resumes after a preemption is not among them: it is in
    ``scheduled_new_reqs``, with ``resumed`` set, all its token ids and its whole block table.
    """

    req_ids: list[str]
    new_block_ids: list[BlockIds | None]
    num_computed_tokens: list[int]
    num_output_tokens: list[int]


class SchedulerOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of one step.

    Columns (length = number of scheduled requests, plan order; new and resumed ones last):
        req_ids: the requests, text.
        rows: int64; their slots in the runner's tables.
        epochs: int64; raised at each admission; a result for an older epoch is dropped.
        num_tokens: int64; tokens to compute in this step, at least 1 each.
        num_computed: int64; tokens computed before this step.
        num_outputs: int64; tokens generated before this step, those still under way included.
        samples: bool; whether the step reaches the end of the known tokens and chooses the next.

    Other fields:
        grown: row -> block ids that join the end of its block table, before the step.
        grown_more: the same for each further group of layers; such a row is in ``grown`` too. Empty for
            a runner with one group; it has no view by request.
        replaced: row -> (group of layers, place in its table, block): an equal block takes the place of
            the row's own after this step. Empty unless the KV cache was made with
            ``merge_equal_blocks``, which is for runners that honour it; it has no view by request.
        scheduled_new_reqs: the new and resumed ones of the columns, in their order.
        finished_req_ids, preempted_req_ids: left the runner since the plan before; sent once. They are
            given up before anything is entered: a name of them may be among the new ones.
        scheduled_spec_decode_tokens, scheduled_encoder_inputs, free_encoder_hashes,
            kv_connector_metadata: for parts that are not built; empty.
    """

    step: int
    req_ids: tuple[str, ...] = ()
    rows: IntArray = NO_INTS
    epochs: IntArray = NO_INTS
    num_tokens: IntArray = NO_INTS
    num_computed: IntArray = NO_INTS
    num_outputs: IntArray = NO_INTS
    samples: BoolArray = NO_BOOLS
    grown: dict[int, BlockIds] = {}
    grown_more: dict[int, list[BlockIds]] = {}
    replaced: dict[int, list[tuple[int, int, int]]] = {}
    scheduled_new_reqs: list[NewRequestData] = []
    finished_req_ids: set[str] = set()
    preempted_req_ids: set[str] = set()
    scheduled_spec_decode_tokens: dict[str, list[int]] = {}
    scheduled_encoder_inputs: dict[str, list[int]] = {}
    free_encoder_hashes: list[str] = []
    kv_connector_metadata: bytes | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the plan computes nothing and says nothing."""
        return not (self.req_ids or self.finished_req_ids or self.preempted_req_ids)

    @property
    def sampled_req_ids(self) -> list[str]:
        """The requests for which a token is chosen, in plan order."""
        if np.count_nonzero(self.samples) == len(self.req_ids):
            return list(self.req_ids)
        return [self.req_ids[place] for place in np.flatnonzero(self.samples).tolist()]

    def sample_of(self, places: IntArray) -> IntArray:
        """Where entries that sample, given by their places in the plan, stand among those that do."""
        if np.count_nonzero(self.samples) == len(self.req_ids):
            return places
        return np.cumsum(self.samples)[places] - 1

    @property
    def num_scheduled_tokens(self) -> dict[str, int]:
        """Tokens to compute for each request."""
        return dict(zip(self.req_ids, self.num_tokens.tolist(), strict=True))

    @property
    def total_num_scheduled_tokens(self) -> int:
        """Tokens to compute in this step, over all requests."""
        return int(self.num_tokens.sum())

    @property
    def scheduled_cached_reqs(self) -> CachedRequestData:
        """The requests that the runner holds already."""
        held = len(self.req_ids) - len(self.scheduled_new_reqs)
        return CachedRequestData(
            req_ids=list(self.req_ids[:held]),
            new_block_ids=[self.grown.get(row) for row in self.rows[:held].tolist()],
            num_computed_tokens=self.num_computed[:held].tolist(),
            num_output_tokens=self.num_outputs[:held].tolist(),
        )


class GrammarOutput(msgspec.Struct, frozen=True, kw_only=True):
    """Masks of the constrained requests of one step, addressed by request and position.

    Row i of ``bitmask`` says which tokens request ``req_ids[i]``, entry ``places[i]`` of the plan, may
    choose as output number ``positions[i]`` (from 0). It is ``width`` words of 32 bits, little-endian:
    bit t % 32 of word t // 32 is set where token t is allowed. Tokens beyond the words are not. Entries
    of the step without a row here are free.
    """

    step: int
    req_ids: list[str] = []
    places: list[int] = []
    positions: list[int] = []
    width: int = 0
    bitmask: bytes = b""


class ModelRunnerOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What one step gave.

    A runner that keeps columns fills ``token_ids``: one token for each plan entry with
    ``samples`` set, in plan order. Any other runner gives ``sampled_token_ids`` by request,
    which also allows several tokens, or none, for a request, where the engine has one step in flight:
    a step that is planned ahead counts on one token of each, so with more in flight an engine
    refuses any other number (RunnerError).

    Args:
        logprobs: by request, of the tokens that it sampled in this step, a place each, for those with ``logprobs``.
        prompt_logprobs: by request, of the prompt's tokens that stand behind those which the step
            computed, for those with ``prompt_logprobs``; the prompt's first token has none.
        failed: by request, why the step could choose nothing for it. It ends with that error, others go
            on; in ``token_ids`` any token below the vocabulary's size holds its place.
    """

    step: int
    sampled_token_ids: Mapping[str, list[int]] | None = None
    token_ids: IntArray | None = None
    draft_token_ids: dict[str, list[int]] = {}
    logprobs: dict[str, LogprobColumns] = {}
    prompt_logprobs: dict[str, LogprobColumns] = {}
    failed: dict[str, str] = {}
    finished_sending: set[str] = set()
    finished_recving: set[str] = set()
    failed_block_ids: set[int] = set()
