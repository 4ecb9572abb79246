"""The contract between the engine and whatever computes its steps."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

import msgspec

from ..scheduler.kv_groups import ONE_GROUP, KVGroup
from ..scheduler.plan import GrammarOutput, ModelRunnerOutput, SchedulerOutput

MERGED_BLOCKS = "merged_blocks"


class RunnerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a runner can do, known before the first step.

    Args:
        vocab_size: width of the logits; every token id is below it.
        max_model_len: most tokens of one request, prompt and output together.
        block_size: tokens in a KV block.
        num_kv_blocks: most blocks it can hold, the null block not counted.
        max_num_running_reqs: rows of its tables.
        eos_token_ids: tokens that end a text.
        capabilities: sampling parameters that it honours beside temperature and seed: "sampling" (top_p,
            top_k, min_p), "penalties", "logit_bias", "allowed_token_ids", "bad_words", "logprobs",
            "prompt_logprobs"; and "grammars": it awaits the masks that ``submit`` gets with a plan. What
            is not named is refused where a request asks for it. ``MERGED_BLOCKS`` says that it honours
            ``SchedulerOutput.replaced``: without it no block changes its place in a request's table.
        weights_id: identity of the weights, part of every prefix-cache key.
        kv_groups: groups of layers, each with block tables of its own; all blocks come from one pool. A
            runner that names more than one keeps a table for each (``NewRequestData.more_block_ids``,
            ``SchedulerOutput.grown_more``).
    """

    vocab_size: int
    max_model_len: int
    num_kv_blocks: int
    block_size: int = 16
    max_num_running_reqs: int = 256
    eos_token_ids: tuple[int, ...] = ()
    capabilities: frozenset[str] = frozenset()
    weights_id: str = ""
    kv_groups: tuple[KVGroup, ...] = ONE_GROUP


class Runner(Protocol):
    """Computes steps in the order in which they are submitted."""

    @property
    def info(self) -> RunnerInfo:
        """Limits and capabilities; constant."""
        ...

    def submit(
        self, plan: SchedulerOutput, grammar: Awaitable[GrammarOutput] | None = None
    ) -> Awaitable[ModelRunnerOutput]:
        """Take a step and return at once; step N+1 may be submitted before N is done.

        The awaitable gives the step's result, or raises what ended the runner.

        While a request has fewer than ``min_tokens`` outputs (``plan.num_outputs`` counts those
        before the step), no end token (unless ``ignore_eos``) and none of its stop tokens may be
        chosen for it. The scheduler does not look at the minimum: such a token ends the request.
        """
        ...

    async def aclose(self) -> None:
        """Give back threads and memory; steps not yet done are dropped. May be called twice."""
        ...
