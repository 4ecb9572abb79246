"""Which blocks a group of layers needs, and which prefix all groups can go on from."""

import pytest

from callboard.scheduler.kv_groups import GroupSizes, KVGroup, longest_hit


def sizes(*windows: int | None, block_size: int = 16, in_flight: int | None = None) -> GroupSizes:
    return GroupSizes([KVGroup(window=window) for window in windows], block_size, in_flight)


def hit(found: GroupSizes, *patterns: str) -> int:
    """The hit where each group has the blocks marked T."""
    return longest_hit(found, len(patterns[0]), lambda group, i: patterns[group][i] == "T")


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [("TTFTFFTTFTTT", 12), ("TTFTFFTTFFF", 8), ("TTFTFFTTFFFT", 8), ("TF", 1), ("F" * 10, 0)],
)
def test_a_window_needs_only_the_blocks_before_the_hits_end(pattern: str, expected: int):
    assert hit(sizes(4, block_size=2), pattern) == expected


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (("TTT", "TTT", "TTT"), 3),
        (("TTT", "FTT", "FTT"), 3),
        (("FTT", "TTT", "TTT"), 0),
        (("TTF", "TTF", "TTF"), 2),
        (("TTF", "TTT", "TTT"), 2),
        (("TTT", "TTF", "TTT"), 2),
        (("TTF", "FTT", "FTT"), 0),
        (("TTTT", "FTTF", "TTFT"), 0),  # each of the windows takes something from the other
    ],
)
def test_the_hit_is_what_all_groups_agree_on(patterns: tuple[str, ...], expected: int):
    assert hit(sizes(None, 32, 32), *patterns) == expected


def test_a_window_of_one_token_needs_no_block_before_the_hits_end():
    assert hit(sizes(1), "FFF") == 3


@pytest.mark.parametrize(("computed", "passed"), [(4, 0), (5, 1), (6, 1), (7, 2), (11, 4)])
def test_blocks_wholly_below_the_window_are_passed(computed: int, passed: int):
    assert sizes(4, block_size=2).passed(0, computed) == passed


@pytest.mark.parametrize(("in_flight", "room"), [(1024, 129), (2048, 193)])
def test_a_window_needs_room_for_itself_and_for_steps_in_flight(in_flight: int, room: int):
    found = sizes(1024, None, in_flight=in_flight)
    assert found.room(0, 100_000) == room
    assert found.room(0, 160) == 10
    assert found.room(1, 100_000) == 6250
    assert found.total_room(100_000) == room + 6250


@pytest.mark.parametrize(
    ("blocks", "tokens"),
    [(2, 0), (3, 16), (8, 32), (9, 48), (12, 64), (13, 80), (14, 96), (15, 112), (1000, 500)],
)
def test_the_longest_text_fills_the_pool_over_all_groups(blocks: int, tokens: int):
    # Windows of 33 with 16 tokens in flight never need more than 4 blocks.
    assert sizes(None, 33, 33, in_flight=16).longest_text(blocks, 500) == tokens


def test_without_a_whole_group_a_text_may_be_as_long_as_the_model_allows():
    assert sizes(33, in_flight=16).longest_text(4, 5000) == 5000
    assert sizes(33, in_flight=16).longest_text(3, 5000) == 48
