"""Plays steps of the scheduler and the KV cache by hand, and audits both after each of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from callboard.runner import SimulatedRunner
from callboard.runner.toy_model import toy_tokens
from callboard.scheduler import (
    EngineCoreOutputs,
    Finished,
    KVCacheManager,
    ModelRunnerOutput,
    Request,
    SamplingParams,
    Scheduler,
    SchedulerConfig,
    SchedulerOutput,
    StopRule,
    plan_step,
)
from callboard.scheduler.hashing import extend_keys, root_key
from callboard.scheduler.messages import Admit, Admitted, Granted, Grow, Release, Reserve, Victim

E = 2  # the end-of-sequence token
ORDINARY = 7
VOCAB = 50

Sampled = int | Mapping[str, int | list[int]]


def make_kv(config: SchedulerConfig, blocks: int, *, merge: bool = True) -> KVCacheManager:
    """The KV cache that a scheduler of this configuration plans for."""
    return KVCacheManager(
        blocks,
        config.block_size,
        config.enable_prefix_caching,
        groups=config.kv_groups,
        max_in_flight_tokens=config.max_in_flight_tokens,
        merge_equal_blocks=merge,
    )


class Play:
    """A scheduler and its KV cache; what a step samples is told by the test.

    A prompt may be a length: it then consists of tokens that no other prompt has.
    """

    def __init__(
        self, *, blocks: int = 1_000, caching: bool = False, rules: list[StopRule] | None = None, **settings: Any
    ) -> None:
        usual = {"max_num_running_reqs": 16, "num_kv_blocks": blocks, "eos_token_ids": (E,)}
        self.config = SchedulerConfig(enable_prefix_caching=caching, **usual | settings)
        self.kv = make_kv(self.config, blocks)
        self.scheduler = Scheduler(self.config, rules or [])
        self.tokens: dict[str, list[int]] = {}  # what each request was given
        self.ends: dict[str, Finished] = {}
        self.last_plan = SchedulerOutput(step=0)
        self.last_outputs = EngineCoreOutputs(step=0)
        self._fresh = 1_000

    def add(self, name: str, prompt: int | list[int], **options: Any) -> None:
        """Queue a request; options are fields of the request or of its sampling parameters."""
        if isinstance(prompt, int):
            self._fresh += prompt
            prompt = list(range(self._fresh - prompt, self._fresh))
        own = {key: options.pop(key) for key in list(options) if key in Request.__struct_fields__}
        params = SamplingParams(**{"temperature": 0.0, "max_tokens": None} | options)
        self.tokens[name] = []
        self.scheduler.add_request(Request(request_id=name, prompt_token_ids=prompt, sampling_params=params, **own))

    def plan(self) -> SchedulerOutput:
        """Make the next plan."""
        self.last_plan = plan_step(self.scheduler, self.kv)
        self.check()
        return self.last_plan

    def apply(self, plan: SchedulerOutput, sampled: Sampled = ORDINARY) -> EngineCoreOutputs:
        """Give a plan's result back: one token for all that sample, or each one's own."""
        self.last_outputs = self.scheduler.update_from_output(plan, self.result(plan, sampled), 0.0)
        self._take(self.last_outputs)
        self.check()
        return self.last_outputs

    def result(self, plan: SchedulerOutput, sampled: Sampled) -> ModelRunnerOutput:
        """What a runner would answer."""
        ids = [name for name, samples in zip(plan.req_ids, plan.samples, strict=True) if samples]
        one = {name: sampled if isinstance(sampled, int) else sampled.get(name, ORDINARY) for name in ids}
        lists = {name: [tokens] if isinstance(tokens, int) else tokens for name, tokens in one.items()}
        return ModelRunnerOutput(step=plan.step, sampled_token_ids=lists)

    def step(self, sampled: Sampled = ORDINARY) -> dict[str, int]:
        """Plan and apply one step; returns the tokens planned for each request."""
        self.apply(self.plan(), sampled)
        return self.last_plan.num_scheduled_tokens

    def steps(self, count: int) -> list[dict[str, int]]:
        """Several steps."""
        return [self.step() for _ in range(count)]

    def until_done(self, depth: int = 1, most: int = 1_000) -> list[SchedulerOutput]:
        """Go on with ``depth`` plans under way until all have ended; returns the plans that compute."""
        plans: list[SchedulerOutput] = []
        under_way: deque[SchedulerOutput] = deque()
        while self.scheduler.num_unfinished or under_way:
            assert len(plans) < most, f"no end after {most} plans: {self.scheduler.statistics()}"
            while len(under_way) < depth and not (plan := self.plan()).is_empty:
                under_way.append(plan)
                plans += [plan] * bool(plan.req_ids)
            assert under_way, f"no progress: {self.scheduler.statistics()}, {self.kv.statistics()}"
            self.apply(under_way.popleft())
        return plans

    def take_notices(self) -> None:
        """Take in ends that no step has carried."""
        if notices := self.scheduler.take_outputs():
            self._take(notices)

    def _take(self, outputs: EngineCoreOutputs) -> None:
        for name, output in outputs.view().items():
            assert name not in self.ends, f"{name} was given something after its end"
            self.tokens.setdefault(name, []).extend(output.new_token_ids)
        self.ends |= outputs.finished

    def check(self) -> None:
        """Audit both cores."""
        self.scheduler.check()
        self.scheduler.check_against(self.kv)
        self.kv.check()

    def waiting(self) -> list[str]:
        """The queue, in order."""
        return [state.request_id for state in self.scheduler.policy]

    def reason(self, name: str) -> str:
        """Why a request ended."""
        return str(self.ends[name].reason)

    def free_blocks(self) -> int:
        """Blocks that nobody holds, once the KV cache has heard of all ends."""
        self.scheduler.release(self.kv)
        self.kv.check()
        return self.kv.statistics().num_free_blocks


class ToyPlay(Play):
    """The same with a runner that computes each token from the slots that the plans name."""

    def __init__(self, *, blocks: int, block_size: int = 4, **settings: Any) -> None:
        settings = {"max_model_len": 60, "eos_token_ids": ()} | settings
        super().__init__(blocks=blocks, block_size=block_size, **settings)
        self.runner = SimulatedRunner(
            vocab_size=VOCAB,
            num_kv_blocks=blocks,
            block_size=block_size,
            max_num_running_reqs=self.config.max_num_running_reqs,
            max_model_len=self.config.max_model_len,
            kv_groups=self.config.kv_groups,
        )
        self.prompts: dict[str, list[int]] = {}

    def add(self, name: str, prompt: int | list[int], **options: Any) -> None:
        if isinstance(prompt, int):
            prompt = [(self._fresh + i) % VOCAB for i in range(prompt)]
            self._fresh += 7
        self.prompts[name] = prompt
        super().add(name, prompt, **options)

    def result(self, plan: SchedulerOutput, sampled: Sampled) -> ModelRunnerOutput:
        return ModelRunnerOutput(step=plan.step, token_ids=self.runner.compute(plan))

    def alone(self, name: str) -> list[int]:
        """The first tokens that the model gives this prompt by definition, as many as came."""
        return toy_tokens(self.prompts[name], len(self.tokens[name]), VOCAB, groups=self.config.kv_groups)

    def assert_as_alone(self) -> None:
        """Every request got the tokens it gets alone."""
        assert self.tokens == {name: self.alone(name) for name in self.tokens}


class Ledger:
    """The KV cache alone."""

    def __init__(self, blocks: int, *, block_size: int = 16, caching: bool = True, **groups: Any) -> None:
        self.kv = KVCacheManager(blocks, block_size, caching, **groups)
        self._budget = groups.get("max_in_flight_tokens") or 100_000  # one step under way

    def ask(self, **wants: Any) -> Granted:
        """Send one reservation."""
        granted = self.kv.reserve(Reserve(**{"completed": 0, "token_budget": self._budget} | wants))
        self.kv.check()
        return granted

    def admit(self, name: str, tokens: list[int], **options: Any) -> Admitted | None:
        """Ask for a prompt's blocks; None if it is refused."""
        keys: list[bytes] = []
        extend_keys(keys, root_key(block_size=self.kv.block_size), tokens, self.kv.block_size)
        bounds = {"keep_free": options.pop("keep_free", 0)}
        granted = self.ask(admit=[Admit(req_id=name, num_tokens=len(tokens), digests=keys, **options)], **bounds)
        return granted.admitted[0] if granted.admitted else None

    def take(self, name: str, tokens: list[int], **options: Any) -> list[int]:
        """A prompt's blocks."""
        admitted = self.admit(name, tokens, **options)
        assert admitted is not None
        return admitted.block_ids

    def grow(self, name: str, count: int, victims: dict[str, int] | None = None, completed: int = 0) -> Granted:
        """Ask for more blocks; ``victims`` are names and fences."""
        told = [Victim(req_id=victim, fence=fence) for victim, fence in (victims or {}).items()]
        return self.ask(completed=completed, grow=[Grow(req_id=name, num_blocks=count)], victims=told)

    def free(self, name: str, fence: int = 0) -> None:
        """Give a request's blocks back."""
        self.ask(release=[Release(req_id=name, fence=fence)])

    def rest(self) -> list[int]:
        """All free blocks, in the order in which they are reused; they are taken."""
        free = self.kv.statistics().num_free_blocks
        return self.take("the rest", [-1 - i for i in range(free * self.kv.block_size)], read_cache=False)


def some(count: int, start: int = 0) -> list[int]:
    """A run of different tokens."""
    return list(range(start, start + count))
