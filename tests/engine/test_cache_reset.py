"""What a second request finds of the first one's prompt, and an engine that is told to forget it."""

from typing import Any

import anyio
import anyio.to_thread
import numpy as np
import pytest
from toy_engine import PROMPT, greedy, make

from callboard import ConfigError


async def test_a_second_request_with_the_same_prompt_reports_its_cached_tokens():
    async with make() as engine:
        prompt = list(range(1, 14))
        cold, warm = [await engine.complete(prompt, greedy()) for _ in range(2)]
        assert (cold.num_cached_tokens, warm.num_cached_tokens) == (0, 12)
        assert cold.outputs[0].token_ids == warm.outputs[0].token_ids
        salted = await engine.generate(prompt, greedy(output_kind="final"), cache_salt="mine").__anext__()
        assert salted.num_cached_tokens == 0
        assert await engine.reset_prefix_cache()
        assert engine.stats().kv_blocks_cached == 0


async def test_resetting_the_prefix_cache_waits_for_steps_under_way_but_not_for_requests():
    async with make() as engine:
        await engine.complete(list(range(1, 30)), greedy())
        assert await engine.reset_prefix_cache()
        stream = engine.generate(PROMPT, greedy(max_tokens=90))
        assert not await engine.reset_prefix_cache()
        await stream.aclose()
        assert await engine.reset_prefix_cache()


async def test_resetting_the_prefix_cache_is_answered_under_traffic():
    async with make() as engine:
        engine.runner.gate.close()
        await engine.generate(PROMPT, greedy(), request_id="gone").aclose()
        answers: list[bool] = []

        async def reset() -> None:
            answers.append(await engine.reset_prefix_cache())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reset)
            stream = engine.generate(PROMPT, greedy())
            engine.runner.gate.open()
            assert [output async for output in stream][-1].finished
        assert answers in ([True], [False])


@pytest.mark.parametrize("force", [1, "yes", np.array([1, 2])], ids=str)
async def test_force_that_is_neither_true_nor_false_is_refused_and_the_engine_goes_on(force: Any):
    async with make() as engine:
        with pytest.raises(ConfigError, match=r"force is .*, needed is True or False"):
            await engine.reset_prefix_cache(force=force)
        assert await engine.reset_prefix_cache()
