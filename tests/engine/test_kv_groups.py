"""An engine whose model has groups of layers with block tables of their own."""

import pytest

from callboard import Engine, EngineConfig, InvalidRequestError, KVGroupStatistics, SamplingParams
from callboard.runner import SimulatedRunner
from callboard.runner.toy_model import toy_tokens
from callboard.scheduler.kv_groups import KVGroup

GROUPS = (KVGroup(), KVGroup(window=8), KVGroup(window=8))
PROMPT = [token % 50 for token in range(60)]
GREEDY = SamplingParams(temperature=0, max_tokens=20, output_kind="delta")


def make(num_kv_blocks: int, depth: int = 2) -> Engine:
    runner = SimulatedRunner(
        vocab_size=100, num_kv_blocks=num_kv_blocks, block_size=4, max_model_len=100, kv_groups=GROUPS
    )
    return Engine(EngineConfig(block_size=4, max_num_scheduled_tokens=8, steps_in_flight=depth), runner=runner)


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
async def test_statistics_tell_the_blocks_of_each_group_while_the_whole_one_grows(depth: int):
    tokens: list[int] = []
    held: list[tuple[int, ...]] = []
    async with make(60, depth) as engine:
        async for output in engine.generate(PROMPT, GREEDY):
            tokens += output.outputs[0].token_ids
            held.append(tuple(group.num_blocks for group in engine.stats().kv_groups))
        ended = engine.stats().kv_groups
        engine.check()
    assert tokens == toy_tokens(PROMPT, 20, 100, groups=GROUPS)
    whole, *windows = zip(*held[:-1], strict=True)
    assert list(whole) == sorted(whole)
    assert max(whole) == 20
    # A window of 8 and steps of up to 8 tokens, in blocks of 4, and the block that both ends may cut.
    assert all(2 <= max(group) <= -(-(7 + 8 * depth) // 4) + 1 for group in windows)
    assert [group.window for group in ended] == [None, 8, 8]
    assert [group.num_returned > 10 for group in ended] == [False, True, True]


async def test_a_second_reading_of_a_prompt_finds_what_all_groups_have():
    async with make(90) as engine:
        first = await engine.complete(PROMPT, GREEDY)
        again = await engine.complete(PROMPT, GREEDY)
        assert again.outputs[0].token_ids == first.outputs[0].token_ids
        assert (first.num_cached_tokens, again.num_cached_tokens) == (0, 56)


async def test_a_prompt_that_the_groups_together_have_no_room_for_is_refused_at_once():
    # Windows of 8 with two steps of 8 tokens under way take 7 blocks each at most.
    async with make(28) as engine:
        with pytest.raises(InvalidRequestError, match="prompt has 60 tokens and needs 29 KV blocks, limit is 28"):
            engine.generate(PROMPT, GREEDY, request_id="long")
        assert len((await engine.complete(PROMPT[:56], GREEDY)).outputs[0].token_ids) == 1


async def test_a_model_of_one_kind_of_layers_has_one_group():
    runner = SimulatedRunner(vocab_size=100, num_kv_blocks=8, block_size=4, max_model_len=30)
    async with Engine(EngineConfig(block_size=4), runner=runner) as engine:
        assert engine.stats().kv_groups == (KVGroupStatistics(window=None, num_blocks=0, num_returned=0),)
