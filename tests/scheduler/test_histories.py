"""Whatever happens to whom in which order, each request gets the tokens it gets alone."""

import pytest
from histories import History, some_groups

from callboard.scheduler import BlockPool, RunningTable
from callboard.scheduler.draft import newly_passed
from callboard.scheduler.errors import BooksError
from callboard.scheduler.fences import Fences
from callboard.scheduler.kv_groups import ONE_GROUP, GroupSizes

MORE = (pytest.mark.slow, pytest.mark.soak)
CAUGHT = (AssertionError, BooksError, IndexError, KeyError)


@pytest.mark.parametrize("first", [0, 100, 200, *(pytest.param(n, marks=MORE) for n in range(300, 1000, 100))])
def test_every_request_of_a_random_history_gets_the_tokens_it_gets_alone(first: int):
    for seed in range(first, first + 100):
        History(seed).play()


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_every_request_gets_its_tokens_with_several_groups_of_layers(first: int):
    for seed in range(first, first + 100):
        History(seed, some_groups(seed)).play()


def _some_history_fails(grouped: bool = False) -> None:
    for seed in range(200):
        History(seed, some_groups(seed) if grouped else ONE_GROUP).play()


def test_a_block_that_is_given_back_twice_is_caught(monkeypatch: pytest.MonkeyPatch):
    def give_back_twice(self: Fences, blocks: list[int], fence: int) -> None:
        self._pool.release(blocks)
        self._pool.release(blocks[:1])

    monkeypatch.setattr(Fences, "give_back", give_back_twice)
    with pytest.raises(CAUGHT):
        _some_history_fails()


def test_a_late_result_that_is_applied_to_the_rows_next_holder_is_caught(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(RunningTable, "live", lambda self, rows, epochs: self.epoch[rows] >= 0)
    with pytest.raises(CAUGHT):
        _some_history_fails()


def test_a_block_that_is_handed_out_while_another_request_holds_it_is_caught(monkeypatch: pytest.MonkeyPatch):
    def share_without_counting(self: BlockPool, blocks: list[int]) -> None:
        """A hit that stays in the free order."""

    monkeypatch.setattr(BlockPool, "share", share_without_counting)
    with pytest.raises(CAUGHT):
        _some_history_fails()


def test_a_block_that_is_given_back_before_its_window_has_passed_it_is_caught(monkeypatch: pytest.MonkeyPatch):
    passed = GroupSizes.passed
    monkeypatch.setattr(GroupSizes, "passed", lambda self, group, num_tokens: passed(self, group, num_tokens + 1))
    with pytest.raises(CAUGHT):
        _some_history_fails(grouped=True)


def test_a_window_that_is_taken_to_have_passed_what_is_only_planned_is_caught(monkeypatch: pytest.MonkeyPatch):
    def by_plan(table: RunningTable, sizes: GroupSizes) -> dict[str, int]:
        table.settled[:] = table.computed
        return newly_passed(table, sizes)

    monkeypatch.setattr("callboard.scheduler.scheduler.newly_passed", by_plan)
    with pytest.raises(CAUGHT):
        _some_history_fails(grouped=True)


def test_a_hit_that_lacks_a_block_in_sight_is_caught(monkeypatch: pytest.MonkeyPatch):
    seen = GroupSizes.seen

    def one_less(self: GroupSizes, group: int, num_blocks: int) -> int:
        return seen(self, group, num_blocks) - (num_blocks > 0 and self.windows[group] not in (None, 1))

    monkeypatch.setattr(GroupSizes, "seen", one_less)
    with pytest.raises(CAUGHT):
        _some_history_fails(grouped=True)


def test_groups_that_find_each_others_blocks_are_caught(monkeypatch: pytest.MonkeyPatch):
    publish, find = BlockPool.publish, BlockPool.find
    monkeypatch.setattr(BlockPool, "publish", lambda self, blocks, keys, places, _: publish(self, blocks, keys, places))
    monkeypatch.setattr(BlockPool, "find", lambda self, key, group=0: find(self, key))
    with pytest.raises(CAUGHT):
        _some_history_fails(grouped=True)
