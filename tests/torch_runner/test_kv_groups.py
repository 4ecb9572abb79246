"""Groups of layers with block tables of their own: places of layers, and tokens over several tables."""

from __future__ import annotations

import pytest
from dense_reference import GEMMA3, greedy, random_weights
from plan_maker import Device, blocks_for, text

from callboard.runner import TorchRunner
from callboard.runner.kv_layout import KVLayout, Place, group_layers, layout_of
from callboard.runner.paged_kv import PagedKV, bytes_per_block
from callboard.scheduler.errors import BooksError
from callboard.scheduler.kv_groups import ONE_GROUP, KVGroup

WEIGHTS = random_weights(GEMMA3)  # layers with a window of 8 tokens: 0, 1 and 3
GROUPS = group_layers(GEMMA3.windows).groups
LENGTH = 42


def device() -> Device:
    return Device(GEMMA3, WEIGHTS, kv_groups=GROUPS)


def tables(first: int = 1) -> list[list[int]]:
    """Four tables for a text of 42 tokens, each with blocks of its own."""
    return [blocks_for(LENGTH, first + 11 * group) for group in range(4)]


def sizes(layout: KVLayout) -> list[tuple[int | None, int]]:
    return [(group.window, group.num_layers) for group in layout.groups]


def test_gemma_270m_has_six_groups_of_three_layers() -> None:
    windows = tuple(512 if (i + 1) % 6 else None for i in range(18))
    layout = group_layers(windows)
    assert sizes(layout) == [(None, 3)] + [(512, 3)] * 5
    assert [layout.places[i] for i in (5, 11, 17)] == [Place(0, 0), Place(0, 1), Place(0, 2)]
    assert [layout.places[i] for i in (0, 1, 2, 3, 16)] == [
        Place(1, 0),
        Place(1, 1),
        Place(1, 2),
        Place(2, 0),
        Place(5, 2),
    ]
    assert len(set(layout.places)) == 18


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        ((None, None), [(None, 2)]),
        ((9, 9, 9), [(9, 3)]),
        ((9, None, 9, None, 9), [(None, 2), (9, 2), (9, 1)]),  # the last of a kind may have fewer
        ((9,) * 9 + (None,) * 8, [(None, 8), (9, 9)]),  # 9 and 8 are near: one group each, one layer's room wasted
        ((9,) * 10 + (None,) * 8, [(None, 8), (9, 8), (9, 2)]),
        ((7, 9, None), [(None, 1), (7, 1), (9, 1)]),
    ],
)
def test_groups_have_the_size_of_the_rarest_kind(
    windows: tuple[int | None, ...], expected: list[tuple[int | None, int]]
) -> None:
    assert sizes(group_layers(windows)) == expected


def test_with_one_group_all_layers_share_a_table_whatever_they_see() -> None:
    assert sizes(layout_of((9, None, 9), ONE_GROUP)) == [(None, 3)]
    assert layout_of((9, None, 9), group_layers((9, None, 9)).groups) == group_layers((9, None, 9))


def test_groups_that_are_not_the_models_are_refused() -> None:
    with pytest.raises(BooksError, match="2 groups of layers are planned for, the model has 3"):
        layout_of((9, None, 9), (KVGroup(), KVGroup(window=9)))


def test_a_block_is_as_large_as_a_group() -> None:
    grouped, whole = layout_of(GEMMA3.windows, GROUPS), layout_of(GEMMA3.windows, ONE_GROUP)
    assert bytes_per_block(GEMMA3, grouped, 16) == bytes_per_block(GEMMA3, whole, 16) // 4


def test_memory_holds_as_many_blocks_as_fit_and_each_is_as_large_as_the_arrays_make_it() -> None:
    layout = layout_of(GEMMA3.windows, GROUPS)
    one = bytes_per_block(GEMMA3, layout, 4)
    runner = TorchRunner(GEMMA3, lambda: WEIGHTS, max_model_len=64, block_size=4, kv_cache_memory=one * 10 + one // 2)
    assert (runner.info.num_kv_blocks, runner.info.kv_groups) == (10, GROUPS)
    cache = PagedKV(GEMMA3, layout, 10, 4)
    assert sum(slots.nbytes for slots in cache.slots) == 11 * one  # the null block is extra


def test_without_a_limit_each_group_of_each_row_has_room_for_a_text_of_full_length() -> None:
    runner = TorchRunner(GEMMA3, lambda: WEIGHTS, max_model_len=64, block_size=4, max_num_running_reqs=3)
    assert runner.info.num_kv_blocks == 3 * 16 * 4


@pytest.mark.parametrize("chunks", [[30], [7, 7, 16], [1] * 30], ids=str)
def test_tokens_over_four_tables_are_those_of_the_dense_reference(chunks: list[int]) -> None:
    run, prompt = device(), text(30)
    first, *more = tables()
    run.admit("a", 0, prompt, first, more=more)
    for chunk in chunks[:-1]:
        run.run(a=chunk)
    assert run.finish("a", chunks[-1], 12) == greedy(GEMMA3, WEIGHTS, prompt, 12)


def test_blocks_that_a_window_has_passed_may_be_anothers() -> None:
    run, prompt, other = device(), text(30), text(5, seed=9)
    first, *more = tables()
    run.admit("a", 0, prompt, first, more=more)
    outputs = [run.run(a=30)["a"]]
    # The next token is number 30 and sees tokens 23 on: blocks 0 to 4 of the window groups are free.
    run.admit("b", 1, other, [60, 61], more=[table[1:3] for table in more])
    run.run(b=5)
    outputs += [run.run(a=1)["a"] for _ in range(11)]
    assert outputs == greedy(GEMMA3, WEIGHTS, prompt, 12)


def test_a_hit_needs_only_the_blocks_in_sight_of_window_groups() -> None:
    run, prompt = device(), text(24)
    first, *more = tables()
    run.admit("a", 0, prompt, first, more=more)
    run.run(a=24)
    # Of the 20 cached tokens those from 13 on are seen by token 20: blocks 3 and 4 of each window group.
    seen = [[0, 0, 0, *table[3:5], *range(70 + 10 * i, 76 + 10 * i)] for i, table in enumerate(more)]
    run.admit("b", 1, prompt, [*first[:5], *range(60, 66)], more=seen, computed=20)
    assert run.finish("b", 4, 12) == greedy(GEMMA3, WEIGHTS, prompt, 12)


def test_all_tables_grow_together() -> None:
    run, prompt = device(), text(8)
    run.admit("a", 0, prompt, [1, 2], more=[[3, 4], [5, 6], [7, 8]])
    outputs = [run.run(a=8)["a"]]
    for i in range(9):
        grown = ({0: [10 + i]}, {0: [[20 + i], [30 + i], [40 + i]]}) if i % 4 == 0 else (None, None)
        outputs.append(run.execute(run.step(*grown, a=1))["a"])
    assert outputs == greedy(GEMMA3, WEIGHTS, prompt, 10)


def test_each_table_may_grow_when_it_is_short() -> None:
    run, prompt = device(), text(8)
    run.admit("a", 0, prompt, [1, 2, 3], more=[[4], [5], [6]])
    assert run.run(a=4) == {}
    assert run.execute(run.step({0: []}, {0: [[7], [8], [9]]}, a=4))["a"] == greedy(GEMMA3, WEIGHTS, prompt, 1)[0]


def test_a_step_beyond_the_shortest_table_is_refused() -> None:
    run = device()
    run.admit("a", 0, text(8), [1, 2], more=[[3, 4], [5], [7, 8]])
    with pytest.raises(BooksError, match="no blocks for its tokens: row 0 up to token 8, 8 tokens and 1 blocks"):
        run.run(a=8)


def test_tables_of_another_number_of_groups_are_refused() -> None:
    run = device()
    run.admit("a", 0, text(4), [1], more=[[3], [5]])
    with pytest.raises(BooksError, match="row 0 gets blocks for 3 groups of layers, 4 are there"):
        run.run(a=4)
