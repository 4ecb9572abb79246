"""A row of which nothing can be chosen ends its own request, with the reason, and nobody else's."""

from __future__ import annotations

from typing import Any

import anyio
import numpy as np
import pytest
import torch
from dense_reference import CONFIGS, greedy, random_weights
from sampling_tables import enter, table

from callboard import CallboardError, Engine, EngineConfig, SamplingParams, StructuredOutput
from callboard.runner.draws import LOOKS
from callboard.runner.row_tables import RowTables
from callboard.runner.sampler import sample
from callboard.runner.torch_runner import TorchRunner

WIDE = 4 * LOOKS[-1] + 3
NO_NUMBER = "the model gave logits that are NaN or infinite, nothing can be chosen by them"


def rows_of(*params: dict[str, Any], vocabulary: int = 12) -> RowTables:
    rows = table(vocabulary, rows=len(params))
    for row, one in enumerate(params):
        enter(rows, row, SamplingParams(**one), [1])
    return rows


def choose(logits: torch.Tensor, rows: RowTables) -> tuple[list[int], dict[int, str]]:
    count = len(logits)
    found = sample(logits, rows, np.arange(count), np.zeros(count, np.int64))
    return found.tokens.tolist(), found.failed


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
@pytest.mark.parametrize("vocabulary", [12, WIDE])
@pytest.mark.parametrize(
    "params",
    [{"temperature": 0}, {}, {"top_p": 0.9}, {"top_k": 3}, {"min_p": 0.1}, {"top_k": 1500}, {"temperature": 1e-6}],
    ids=str,
)
def test_a_row_that_is_no_numbers_fails_and_the_others_are_as_alone(
    params: dict[str, Any], vocabulary: int, wrong: float
):
    logits = torch.randn(3, vocabulary, generator=torch.Generator().manual_seed(1))
    settings = {"seed": 1} | params
    alone, _ = choose(logits[[0]].clone(), rows_of(settings, vocabulary=vocabulary))
    logits[1, vocabulary - 2] = wrong
    logits[2] = logits[0]
    tokens, failed = choose(logits, rows_of(settings, settings, settings, vocabulary=vocabulary))
    assert (tokens, failed) == ([*alone, 0, *alone], {1: NO_NUMBER})


@pytest.mark.parametrize("temperature", [1e-6, 1e-3, 0.0099])
def test_the_coldest_choices_of_the_largest_logits_are_the_likeliest_token(temperature: float):
    logits = torch.full((1, 12), 1e30)
    logits[0, 7] = 1.1e30
    assert choose(logits, rows_of({"temperature": temperature, "seed": 1})) == ([7], {})


@pytest.mark.parametrize("temperature", [0, 0.005, 1])
def test_allowed_tokens_that_are_all_padding_fail_and_are_not_token_0(temperature: float):
    rows = rows_of({"temperature": temperature, "allowed_token_ids": [12, 15]}, {"temperature": 0})
    tokens, failed = choose(torch.arange(24.0).reshape(2, 12), rows)
    assert tokens == [0, 11]
    assert failed == {0: "allowed_token_ids are all padding of the vocabulary, tokens are below 12"}


@pytest.mark.parametrize("temperature", [0, 1])
def test_nothing_is_put_back_against_a_grammar(temperature: float):
    params = {"temperature": temperature, "structured_output": StructuredOutput(choice=["a"])}
    rows = rows_of(params | {"bad_words_token_ids": [[5]]})
    logits = torch.full((1, 12), -torch.inf)
    logits[0, 5] = 1.0  # what the mask leaves, and the bad word takes
    assert choose(logits, rows) == ([0], {0: "no token is left to choose: all have a logit of minus infinity"})


CONFIG = CONFIGS["untied head"]
BROKEN = 7  # a token that the model has no numbers for


def runner(broken: float | None) -> TorchRunner:
    weights = random_weights(CONFIG)
    if broken is not None:
        weights["embed"][BROKEN] = broken
    return TorchRunner(
        CONFIG, lambda: weights, max_model_len=64, block_size=4, num_kv_blocks=24, max_num_running_reqs=4
    )


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0, 1])
async def test_a_prompt_that_breaks_the_model_ends_alone_and_leaves_nothing_in_its_blocks(
    temperature: float, broken: float, anyio_backend: str
):
    prompts = {f"r{i}": [1 + i, 2, 3, 4, 5][: 2 + i] for i in range(4)}
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    settings = EngineConfig(block_size=4, enable_prefix_caching=False)
    texts: dict[str, list[int]] = {}

    async with Engine(settings, runner=runner(broken)) as engine:

        async def good(name: str) -> None:
            texts[name] = (await engine.complete(prompts[name], params, request_id=name)).outputs[0].token_ids

        async def bad(name: str) -> None:
            wanted = SamplingParams(temperature=temperature, max_tokens=12, seed=1)
            with pytest.raises(CallboardError, match=rf"^step \d+ failed for it: {NO_NUMBER} \(request {name}\)$"):
                await engine.complete([BROKEN] * 40, wanted, request_id=name)

        for turn in range(3):  # blocks of those that failed are given on
            async with anyio.create_task_group() as tasks:
                for name in prompts:
                    tasks.start_soon(good, name)
                tasks.start_soon(bad, f"bad{turn}")
            engine.check()
    weights = random_weights(CONFIG)
    assert texts == {name: greedy(CONFIG, weights, prompt, 12) for name, prompt in prompts.items()}
