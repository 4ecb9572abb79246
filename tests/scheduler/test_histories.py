"""Whatever happens to whom in which order, each request gets the tokens it gets alone."""

import pytest
from histories import History

from callboard.scheduler import BlockPool, KVCacheManager, RunningTable
from callboard.scheduler.errors import BooksError

CAUGHT = (AssertionError, BooksError, IndexError, KeyError)


@pytest.mark.parametrize("first", range(0, 1000, 100))
def test_every_request_of_a_random_history_gets_the_tokens_it_gets_alone(first: int):
    for seed in range(first, first + 100):
        History(seed).play()


def _some_history_fails() -> None:
    for seed in range(200):
        History(seed).play()


def test_a_block_that_is_freed_before_its_fence_is_caught(monkeypatch: pytest.MonkeyPatch):
    def give_back_now(self: KVCacheManager, blocks: list[int], fence: int) -> None:
        self._pool.release(blocks)
        self._pool.release(blocks[:1])

    monkeypatch.setattr(KVCacheManager, "_give_back", give_back_now)
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
