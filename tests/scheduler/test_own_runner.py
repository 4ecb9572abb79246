"""A runner of one's own, which reads nothing of a plan but the contract's fields."""

import random
from collections import deque
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
from play import make_kv

from callboard import Engine, EngineConfig, SamplingParams
from callboard.runner import MERGED_BLOCKS, SimulatedRunner
from callboard.scheduler import KVCacheManager, Request, Scheduler, SchedulerConfig, SchedulerOutput, plan_step

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_runner.py"
BLOCKS, SIZE = 24, 4


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = spec_from_file_location("own_runner", EXAMPLE)
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def alone(example: ModuleType, prompt: list[int], count: int) -> list[int]:
    """What the example's model continues a prompt with, by its definition."""
    text = list(prompt)
    for _ in range(count):
        text.append(sum(weight * (token + 1) for weight, token in enumerate(text, 1)) % example.VOCAB)
    return text[len(prompt) :]


class Contract:
    """Many requests with few different prompts, in a pool that is too small for all of them."""

    def __init__(self, example: ModuleType, depth: int, seed: int, *, merge: bool) -> None:
        self.example, self.depth, self.dice = example, depth, random.Random(seed)
        sizes = {"max_num_running_reqs": 6, "max_num_scheduled_tokens": self.dice.choice([3, 7, 20, 64])}
        self.config = SchedulerConfig(
            block_size=SIZE, max_model_len=60, num_kv_blocks=BLOCKS, steps_in_flight=depth, **sizes
        )
        self.runner = example.OwnRunner(BLOCKS, SIZE)
        self.scheduler, self.kv = Scheduler(self.config), make_kv(self.config, BLOCKS, merge=merge)
        self.tokens: dict[str, list[int]] = {}
        self.prompts: dict[str, list[int]] = {}
        self.num_replaced = 0

    def add_all(self, count: int) -> None:
        texts = [[self.dice.randrange(self.example.VOCAB) for _ in range(30)] for _ in range(2)]
        for number in range(count):
            prompt = self.dice.choice(texts)[: self.dice.choice([9, 16, 30])]
            params = SamplingParams(temperature=0, max_tokens=self.dice.randint(4, 25))
            self.prompts[f"r{number}"], self.tokens[f"r{number}"] = prompt, []
            self.scheduler.add_request(
                Request(request_id=f"r{number}", prompt_token_ids=prompt, sampling_params=params)
            )

    def play(self) -> None:
        under_way: deque[SchedulerOutput] = deque()
        while self.scheduler.num_unfinished or under_way:
            while len(under_way) < self.depth and (plan := plan_step(self.scheduler, self.kv)).req_ids:
                under_way.append(plan)
                self.num_replaced += len(plan.replaced)
            plan = under_way.popleft()
            for output in self.scheduler.update_from_output(plan, self.runner.compute(plan), 0.0):
                self.tokens[output.request_id] += output.new_token_ids
            self.scheduler.check()
            self.kv.check()

    def assert_as_alone(self) -> None:
        assert self.tokens == {
            name: alone(self.example, prompt, len(self.tokens[name])) for name, prompt in self.prompts.items()
        }


def played(example: ModuleType, depth: int, *, merge: bool) -> int:
    """Many histories, each request compared with what it gets alone; returns how many were preempted."""
    preemptions = 0
    for seed in range(20):
        contract = Contract(example, depth, seed, merge=merge)
        contract.add_all(12)
        contract.play()
        contract.assert_as_alone()
        preemptions += contract.scheduler.statistics().num_preemptions
    return preemptions


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_contracts_fields_are_all_that_a_runner_needs(example: ModuleType, depth: int):
    assert played(example, depth, merge=False) > 20


def test_a_runner_that_does_not_know_of_merged_blocks_would_read_foreign_ones(example: ModuleType):
    with pytest.raises(AssertionError):
        played(example, 2, merge=True)


def test_a_kv_cache_merges_nothing_unless_it_is_told_to(example: ModuleType):
    contract = Contract(example, 1, 0, merge=True)
    contract.kv = KVCacheManager(BLOCKS, SIZE)
    contract.add_all(12)
    contract.play()
    assert contract.num_replaced == 0


@pytest.mark.parametrize("depth", [1, 2, 3])
async def test_an_engine_serves_a_runner_of_ones_own_exactly(example: ModuleType, depth: int):
    runner, prompt = example.OwnRunner(BLOCKS, SIZE), list(range(100, 121))
    config = EngineConfig(block_size=SIZE, max_num_scheduled_tokens=8, steps_in_flight=depth)
    async with Engine(config, runner=runner) as engine:
        streams = [engine.generate(prompt, SamplingParams(temperature=0, max_tokens=20)) for _ in range(6)]
        for stream in streams:
            tokens = [token async for output in stream for token in output.outputs[0].token_ids]
            assert tokens == alone(example, prompt, 20)
        assert engine.stats().num_preemptions
        engine.check()


def test_the_simulated_runner_says_that_its_blocks_may_be_merged():
    assert MERGED_BLOCKS in SimulatedRunner().info.capabilities
