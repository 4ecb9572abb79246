"""Plans written by hand, as a scheduler would make them, without knowing any result."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from dense_reference import LLAMA

from callboard.runner.model_config import ModelConfig
from callboard.runner.runner import RunnerInfo
from callboard.runner.step_executor import StepExecutor
from callboard.scheduler import NewRequestData, SamplingParams, SchedulerOutput
from callboard.scheduler.kv_groups import ONE_GROUP, KVGroup

BLOCK_SIZE = 4
GREEDY = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)


class _Live:
    def __init__(self, data: NewRequestData) -> None:
        self.data = data
        self.computed = data.num_computed_tokens
        self.known = len(data.token_ids)
        self.epoch = 0


class PlanMaker:
    """``admit`` requests, then ask for steps by naming how many tokens of each are computed."""

    def __init__(self) -> None:
        self._live: dict[str, _Live] = {}
        self._new: dict[str, NewRequestData] = {}
        self._step = 0

    def admit(
        self,
        req_id: str,
        row: int,
        tokens: list[int],
        blocks: list[int],
        *,
        computed: int = 0,
        outputs: int = 0,
        params: SamplingParams = GREEDY,
        more: list[list[int]] | None = None,
    ) -> None:
        """A request whose last ``outputs`` tokens were generated before a preemption; ``more``: further tables."""
        data = NewRequestData(
            req_id=req_id,
            row=row,
            token_ids=tokens,
            num_prompt_tokens=len(tokens) - outputs,
            block_ids=blocks,
            num_computed_tokens=computed,
            sampling_params=params,
            resumed=outputs > 0,
            more_block_ids=more or [],
        )
        self._new[req_id], self._live[req_id] = data, _Live(data)

    def step(
        self,
        grown: dict[int, list[int]] | None = None,
        grown_more: dict[int, list[list[int]]] | None = None,
        **num_tokens: int,
    ) -> SchedulerOutput:
        """A step that computes so many tokens of each request."""
        self._step += 1
        live = [self._live[req_id] for req_id in num_tokens]
        counts = np.array(list(num_tokens.values()), np.int64)
        computed = np.array([one.computed for one in live], np.int64)
        known = np.array([one.known for one in live], np.int64)
        samples = computed + counts == known
        for one, count, sample in zip(live, counts.tolist(), samples.tolist(), strict=True):
            one.computed += count
            one.known += sample
        return SchedulerOutput(
            step=self._step,
            req_ids=tuple(num_tokens),
            rows=np.array([one.data.row for one in live], np.int64),
            epochs=np.zeros(len(live), np.int64),
            num_tokens=counts,
            num_computed=computed,
            num_outputs=known - [one.data.num_prompt_tokens for one in live],
            samples=samples,
            grown=grown or {},
            grown_more=grown_more or {},
            scheduled_new_reqs=[self._new.pop(req_id) for req_id in num_tokens if req_id in self._new],
        )


class Device(PlanMaker):
    """Makes each plan and executes it at once, on an executor without a thread."""

    def __init__(
        self,
        config: ModelConfig,
        weights: dict[str, Any],
        *,
        vocab_size: int | None = None,
        rows: int = 8,
        kv_groups: tuple[KVGroup, ...] = ONE_GROUP,
    ) -> None:
        super().__init__()
        info = RunnerInfo(
            vocab_size=config.vocab_size,
            max_model_len=512,
            block_size=BLOCK_SIZE,
            num_kv_blocks=1000,
            max_num_running_reqs=rows,
            eos_token_ids=config.eos_token_ids,
            kv_groups=kv_groups,
        )
        self.executor = StepExecutor(config, dict(weights), info, vocab_size or config.vocab_size)

    def run(self, grown: dict[int, list[int]] | None = None, **num_tokens: int) -> dict[str, int]:
        """One step; the tokens sampled in it, by request."""
        return self.execute(self.step(grown, **num_tokens))

    def execute(self, plan: SchedulerOutput) -> dict[str, int]:
        """The tokens sampled in a step, by request."""
        tokens = self.executor.execute(plan).token_ids
        assert tokens is not None
        sampling = [req_id for req_id, samples in zip(plan.req_ids, plan.samples, strict=True) if samples]
        return dict(zip(sampling, tokens.tolist(), strict=True))

    def finish(self, req_id: str, first: int, count: int) -> list[int]:
        """Compute ``first`` tokens, then decode until there are ``count`` outputs."""
        return [self.run(**{req_id: tokens})[req_id] for tokens in [first] + [1] * (count - 1)]


def text(length: int, seed: int = 0) -> list[int]:
    """Random tokens of the small models."""
    return random.Random(seed).choices(range(LLAMA.vocab_size), k=length)


def blocks_for(length: int, first: int = 1) -> list[int]:
    """Blocks for so many tokens, numbered from ``first`` on."""
    return list(range(first, first - (-length // BLOCK_SIZE)))


def watch_logits(device: Device) -> list[torch.Tensor]:
    """The logits of each step from now on."""
    model, seen = device.executor.model, []
    logits = model.logits

    def watched(states: torch.Tensor) -> torch.Tensor:
        seen.append(logits(states).clone())
        return seen[-1].clone()

    model.logits = watched
    return seen
