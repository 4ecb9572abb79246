"""Executes plans one after another: everything of the torch runner but its thread."""

from __future__ import annotations

import secrets
from typing import TypeVar

import numpy as np
import torch

from ..scheduler.plan import NO_INTS, ModelRunnerOutput, SchedulerOutput
from .decoder import Decoder, Weights
from .kv_layout import layout_of
from .logprobs import SampledLogprobs, prompt_logprobs
from .mask_ticket import MaskTicket
from .model_config import ModelConfig
from .paged_kv import PagedKV
from .row_tables import RowTables
from .runner import RunnerInfo
from .sampler import sample
from .step_batch import StepBatch
from .token_masks import apply_masks

T = TypeVar("T")


class StepExecutor:
    """Model, KV cache and rows. Synchronous; all calls come from one thread.

    Args:
        weights: neutral names as ``load_weights`` gives them; emptied.
        vocab_size: tokens that the tokenizer knows, at most the logits' width.
    """

    def __init__(self, config: ModelConfig, weights: Weights, info: RunnerInfo, vocab_size: int) -> None:
        with torch.inference_mode():
            self.model = Decoder(config, weights, info.max_model_len)
            layout = layout_of(config.windows, info.kv_groups)
            self._kv = PagedKV(config, layout, info.num_kv_blocks, info.block_size)
        self._vocab_size = vocab_size
        self._rows = RowTables(
            rows=info.max_num_running_reqs,
            max_model_len=info.max_model_len,
            block_size=info.block_size,
            vocab_size=vocab_size,
            width=config.vocab_size,
            eos_token_ids=info.eos_token_ids,
            random_base=secrets.randbits(64),
            groups=len(info.kv_groups),
        )

    def execute(self, plan: SchedulerOutput, masks: MaskTicket | None = None) -> ModelRunnerOutput:
        """Apply a plan to the rows, compute its tokens, and sample where it says so.

        Masks are waited for when the logits are there, not before.

        Raises:
            BooksError: the plan does not fit what the plans before it said.
        """
        for row, block_ids in plan.grown.items():
            self._rows.grow(row, block_ids, plan.grown_more.get(row, ()))
        for new in plan.scheduled_new_reqs:
            self._rows.fill(new)
        output = self._compute(plan, masks) if plan.req_ids else ModelRunnerOutput(step=plan.step, token_ids=NO_INTS)
        for row, changes in plan.replaced.items():
            for group, place, block in changes:
                self._rows.replace(row, group, place, block)
        return output

    def _compute(self, plan: SchedulerOutput, masks: MaskTicket | None) -> ModelRunnerOutput:
        batch = StepBatch(plan, self._rows)
        with torch.inference_mode():
            states = self.model.forward(batch, self._kv)
            of_prompts = prompt_logprobs(plan, batch, self._rows, lambda places: self.model.logits(states[places]))
            logits = self.model.logits(states[batch.last_tokens])
            wanted = SampledLogprobs(logits, self._rows, batch.sampled_rows)
            logits = logits[:, : self._vocab_size]
            if masks is not None:
                apply_masks(logits, masks.wait(), plan)
            tokens, failed = sample(logits, self._rows, batch.sampled_rows, batch.sampled_outputs)
            of_samples = wanted.of(tokens)
        self._rows.append(batch.sampled_rows, tokens)
        return ModelRunnerOutput(
            step=plan.step,
            token_ids=tokens,
            logprobs=_by_request(plan, of_samples),
            prompt_logprobs=of_prompts,
            failed=_by_request(plan, failed),
        )


def _by_request(plan: SchedulerOutput, of_samples: dict[int, T]) -> dict[str, T]:
    if not of_samples:
        return {}
    places = np.nonzero(plan.samples)[0].tolist()
    return {plan.req_ids[places[sample]]: value for sample, value in of_samples.items()}
