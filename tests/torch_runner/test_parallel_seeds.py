"""Several completions of one prompt with a seed: different from each other, the same on each run."""

from typing import Any

from dense_reference import LLAMA, random_weights

from callboard import Engine, EngineConfig, SamplingParams
from callboard.pipeline.parallel import child_seed
from callboard.runner.torch_runner import TorchRunner

WEIGHTS = random_weights(LLAMA)
PROMPT = [5, 9, 17, 3, 8]


async def completions(*, others: int = 0, **params: Any) -> list[list[int]]:
    sizes = {"max_model_len": 64, "block_size": 4, "num_kv_blocks": 50, "max_num_running_reqs": 8}
    runner = TorchRunner(LLAMA, lambda: dict(WEIGHTS), **sizes)
    async with Engine(EngineConfig(block_size=4), runner=runner) as engine:
        held = [engine.generate([4], SamplingParams(max_tokens=30)) for _ in range(others)]
        final = await engine.complete(PROMPT, SamplingParams(max_tokens=12, **params))
        del held
    return [completion.token_ids for completion in final.outputs]


async def test_completions_differ_and_are_the_same_on_each_run_whatever_runs_beside_them():
    first = await completions(n=3, seed=42)
    assert len({tuple(tokens) for tokens in first}) == 3
    assert await completions(n=3, seed=42, others=2) == first


async def test_each_completion_can_be_had_alone_by_its_seed():
    together = await completions(n=3, seed=42)
    assert child_seed(42, 0) == 42
    alone = [await completions(seed=child_seed(42, index)) for index in range(3)]
    assert together == [tokens for (tokens,) in alone]


async def test_completions_without_a_seed_differ_too():
    assert len({tuple(tokens) for tokens in await completions(n=3)}) == 3


def test_seeds_of_neighbours_share_no_completion():
    seeds = [child_seed(seed, index) for seed in range(-5, 20) for index in range(10)]
    assert len(set(seeds)) == len(seeds)
    assert child_seed(42, 1) == 7845810475459835116
