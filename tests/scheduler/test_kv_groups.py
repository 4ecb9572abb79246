"""Which blocks a group of layers needs, and which prefix all groups can go on from."""

from typing import Any

import pytest
from play import Ledger, Play, ToyPlay, some

from callboard.scheduler.block_pool import NULL_BLOCK, BlockPool
from callboard.scheduler.block_table import BlockTable
from callboard.scheduler.errors import BooksError, InvalidRequestError
from callboard.scheduler.kv_groups import GroupSizes, KVGroup
from callboard.scheduler.prefix_hit import find_hit, longest_hit


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


# --- the KV cache's ledger: a group that keeps everything and two that see 32 tokens

WHOLE_AND_TWO_WINDOWS = (KVGroup(), KVGroup(window=32), KVGroup(window=32))


def tables(ledger: Ledger, name: str) -> list[list[int]]:
    return [ledger.kv.block_ids(name, group) for group in range(3)]


def two_with_one_beginning() -> Ledger:
    ledger = Ledger(30, groups=WHOLE_AND_TWO_WINDOWS)
    ledger.take("a", some(55))
    assert tables(ledger, "a") == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]
    return ledger


def test_a_hit_holds_the_blocks_in_sight_and_null_blocks_before_them():
    ledger = two_with_one_beginning()
    admitted = ledger.admit("b", some(48) + some(5, start=900))
    assert admitted is not None
    assert admitted.num_cached_tokens == 48
    assert [admitted.block_ids, *admitted.more_block_ids] == [[1, 2, 3, 13], [0, 6, 7, 14], [0, 10, 11, 15]]
    assert ledger.kv.statistics().num_free_blocks == 15
    ledger.free("a")
    # Its own three ends and the first block of each window are free, what b shares is not.
    assert ledger.kv.statistics().num_free_blocks == 15 + 3 + 2
    ledger.free("b")
    assert ledger.kv.statistics().num_free_blocks == 30


@pytest.mark.parametrize(
    ("forgotten", "hit_blocks"),
    [([5, 9], 3), ([1], 0), ([3, 7, 11], 2), ([3], 2), ([7], 2), ([3, 5, 9], 0)],
)
def test_what_one_group_has_forgotten_shortens_the_hit_of_all(forgotten: list[int], hit_blocks: int):
    pool, keys = BlockPool(12, num_groups=3), [b"0", b"1", b"2"]
    blocks = pool.take(12)
    for group in range(3):
        table = blocks[4 * group :]
        pool.publish(table, keys, [place for place in range(3) if table[place] not in forgotten], group)
    found = find_hit(pool, GroupSizes(WHOLE_AND_TWO_WINDOWS, 16, None), keys, 3)
    assert found.num_blocks == hit_blocks


def test_a_block_of_one_group_is_not_found_by_another_under_the_same_key():
    pool = BlockPool(4, num_groups=2)
    first, second = pool.take(2)
    pool.publish([second], [b"key"], [0], group=1)
    assert [pool.find(b"key", group) for group in (0, 1)] == [NULL_BLOCK, second]
    pool.publish([first], [b"key"], [0], group=0)
    assert [pool.find(b"key", group) for group in (0, 1)] == [first, second]


@pytest.mark.parametrize(("settled", "freed"), [(4, 0), (5, 1), (6, 1), (7, 2), (11, 4)])
def test_blocks_that_the_window_has_passed_come_back_while_the_request_runs(settled: int, freed: int):
    ledger = Ledger(11, block_size=2, groups=[KVGroup(window=4)])
    blocks = ledger.take("a", some(22))
    ledger.ask(settled={"a": settled})
    assert ledger.kv.block_ids("a") == [0] * freed + blocks[freed:]
    statistics = ledger.kv.statistics()
    assert statistics.num_free_blocks == freed
    assert statistics.groups[0].num_returned == freed
    assert statistics.groups[0].num_blocks == 11 - freed


def test_passed_blocks_stay_cached_until_they_are_reused_the_last_one_first():
    ledger = Ledger(12, block_size=2, groups=[KVGroup(window=4)])
    ledger.take("a", some(22))
    ledger.ask(settled={"a": 11})
    assert ledger.kv.statistics().num_cached_blocks == 11
    assert ledger.rest() == [12, 4, 3, 2, 1]


def test_a_group_with_a_window_is_admitted_with_room_for_itself_and_steps_in_flight():
    # Window 16 and 16 tokens in flight need 3 of the prompt's 8 blocks.
    for keep_free, admitted in ((4, True), (10, False)):
        ledger = Ledger(11, groups=[KVGroup(window=16)], max_in_flight_tokens=16)
        ledger.take("other", some(16, start=500))
        wanted = ledger.admit("a", some(128), keep_free=keep_free)
        assert (wanted is not None) == admitted
        assert len(ledger.kv.block_ids("a")) == (3 if admitted else 0)


@pytest.mark.parametrize(("cached", "kept"), [(10, 10), (10, 5)])
def test_hits_that_nobody_holds_count_as_room_and_null_blocks_do_not(cached: int, kept: int):
    # Of a table of 20 blocks 10 are found: 10 + 10 are needed where all are in sight, and 5 + 10 where 5 are.
    ledger = Ledger(30, groups=[KVGroup(window=16 * kept)])
    ledger.take("a", some(16 * cached))
    ledger.free("a")
    ledger.take("other", some(16 * (10 - 1), start=5000), read_cache=False)
    before = ledger.kv.statistics().num_free_blocks
    spare = before - (10 + kept)
    assert ledger.admit("b", some(320), keep_free=spare + 1) is None
    assert ledger.kv.statistics().num_free_blocks == before
    assert ledger.admit("b", some(320), keep_free=spare) is not None
    assert ledger.kv.block_ids("b")[: cached - kept] == [0] * (cached - kept)


def test_a_reservation_over_several_groups_is_all_or_nothing():
    ledger = Ledger(11, groups=WHOLE_AND_TWO_WINDOWS)
    before = ledger.kv.statistics()
    assert ledger.admit("a", some(55)) is None
    assert ledger.kv.statistics() == before
    ledger.take("b", some(48))
    granted = ledger.grow("b", 1)
    assert (granted.stalled, granted.grown, granted.grown_more) == ({"b"}, {}, {})
    assert tables(ledger, "b") == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


def test_growth_fills_up_the_shortest_tables_first():
    ledger = Ledger(30, groups=WHOLE_AND_TWO_WINDOWS, max_in_flight_tokens=16)
    ledger.take("a", some(160))
    assert [len(blocks) for blocks in tables(ledger, "a")] == [10, 4, 4]
    granted = ledger.grow("a", 2)
    assert (granted.grown, granted.grown_more) == ({"a": []}, {"a": [[19, 20], [21, 22]]})
    assert [len(blocks) for blocks in tables(ledger, "a")] == [10, 6, 6]


def test_an_audit_finds_a_block_that_a_window_has_passed():
    table = BlockTable([[1, 2, 3]], passed=[0], keys=[], published=0)
    table.pass_by(0, 1)
    table.check("a")
    table.groups[0][0] = 1
    with pytest.raises(BooksError, match="'a' still has blocks among the 1 that its window has passed"):
        table.check("a")


# --- scheduler and KV cache together

GEMMA_LIKE = (KVGroup(), *[KVGroup(window=12)] * 3)


class WatchedWindows(ToyPlay):
    """Notes what groups with a window hold, whenever both cores are audited."""

    def __init__(self, **settings: Any) -> None:
        self.held: list[int] = []
        super().__init__(**settings)

    def check(self) -> None:
        super().check()
        self.held += [group.num_blocks for group in self.kv.statistics().groups[1:]]


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("budget", [5, 16])
def test_a_group_with_a_window_holds_no_more_than_window_and_steps_in_flight(depth: int, budget: int):
    play = WatchedWindows(
        blocks=200,
        max_model_len=120,
        kv_groups=GEMMA_LIKE,
        max_num_scheduled_tokens=budget,
        steps_in_flight=depth,
    )
    play.add("a", 70, max_tokens=40)
    most = -(-(12 + depth * budget) // 4) + 1
    play.until_done(depth)
    assert 3 < max(play.held) <= most
    assert play.kv.statistics().groups[0].num_returned == 0
    assert play.kv.statistics().groups[1].num_returned >= (109 - 12) // 4 - 1
    play.assert_as_alone()


def test_growing_groups_preempt_and_every_request_gets_its_tokens():
    play = ToyPlay(
        blocks=60, caching=True, kv_groups=GEMMA_LIKE, max_num_scheduled_tokens=16, steps_in_flight=3, max_model_len=60
    )
    shared = list(range(24))
    for i in range(6):
        play.add(f"r{i}", [*shared[: 4 * i], *range(30 + i, 44 + i)], max_tokens=20)
    play.until_done(depth=3)
    assert play.scheduler.statistics().num_preemptions > 0
    assert play.kv.statistics().prefix_hits > 0
    play.assert_as_alone()
    assert play.free_blocks() == 60


def test_what_can_never_fit_counts_the_blocks_of_all_groups():
    play = Play(blocks=15, kv_groups=WHOLE_AND_TWO_WINDOWS, max_num_scheduled_tokens=16)
    # 16 tokens in flight: windows of 32 need 4 blocks at most, so 7 whole ones are left.
    with pytest.raises(InvalidRequestError, match="prompt has 113 tokens and needs 16 KV blocks, limit is 15"):
        play.add("large", 113)
    play.add("fits", 112)
    play.until_done()
    assert (play.reason("fits"), len(play.tokens["fits"])) == ("length", 1)


def test_a_waiting_request_is_admitted_when_a_window_gives_blocks_back():
    play = Play(blocks=9, kv_groups=(KVGroup(window=16),), max_num_scheduled_tokens=200, max_model_len=200)
    play.add("a", 128, max_tokens=30)
    play.add("b", 40, max_tokens=3)
    assert play.step() == {"a": 128}
    assert play.waiting() == ["b"]
    assert play.step() == {"a": 1, "b": 40}  # seven of a's eight blocks are back


def test_nothing_is_given_back_before_the_prompts_step_was_applied():
    play = Play(kv_groups=(KVGroup(window=5),), max_num_scheduled_tokens=200)
    play.add("a", 100, max_tokens=3)
    prompt, decode = play.plan(), play.plan()
    assert play.kv.statistics().groups[0].num_returned == 0
    play.apply(prompt)
    play.plan()
    assert play.kv.statistics().groups[0].num_returned == 6
    play.apply(decode)


def test_victims_are_named_when_the_free_blocks_do_not_suffice_for_all_groups():
    """Growth by one block takes three here, and two are free."""
    play = Play(blocks=20, kv_groups=(KVGroup(),) * 3)
    for name in ("a", "b"):
        play.add(name, 48, max_tokens=10)
    assert play.step() == {"a": 48, "b": 48}
    assert play.kv.statistics().num_free_blocks == 2
    assert play.step() == {"a": 1}
    assert play.waiting() == ["b"]


def test_nobody_gives_way_while_a_window_is_about_to_pass_blocks():
    play = Play(blocks=9, kv_groups=(KVGroup(window=16),), max_num_scheduled_tokens=200, steps_in_flight=2)
    play.add("a", 64, max_tokens=30)
    play.add("b", 70, max_tokens=30)
    prompts, stalled = play.plan(), play.plan()
    assert prompts.num_scheduled_tokens == {"a": 64, "b": 70}
    assert stalled.num_scheduled_tokens == {"b": 1}  # "a" lacks a block, and the step under way will free three of its
    play.apply(prompts)
    assert play.plan().num_scheduled_tokens == {"a": 1, "b": 1}
    assert play.scheduler.statistics().num_preemptions == 0
