"""The pool of blocks and the KV cache's ledger: who holds a block and which is reused next."""

import pytest
from play import Ledger, some

from callboard.scheduler import BlockPool, KVCacheManager
from callboard.scheduler.errors import BooksError, ConfigError
from callboard.scheduler.messages import Admit


def test_a_fresh_pool_hands_out_blocks_in_order_and_never_the_null_block():
    ledger = Ledger(10)
    assert ledger.take("a", some(55)) == [1, 2, 3, 4]
    assert ledger.kv.statistics().num_cached_blocks == 3  # the fourth is not full
    assert ledger.rest() == [5, 6, 7, 8, 9, 10]


def _two_with_one_beginning() -> Ledger:
    ledger = Ledger(10)
    ledger.take("a", some(55))
    admitted = ledger.admit("b", some(48) + some(5, start=900))
    assert admitted is not None
    assert (admitted.block_ids, admitted.num_cached_tokens) == ([1, 2, 3, 5], 48)
    return ledger


def test_a_shared_beginning_is_held_twice_and_costs_nothing():
    ledger = _two_with_one_beginning()
    assert ledger.kv.statistics().num_free_blocks == 5
    ledger.free("a")
    assert ledger.kv.statistics().num_free_blocks == 6  # blocks 1 to 3 are still held by b
    assert ledger.kv.block_ids("b") == [1, 2, 3, 5]


def test_a_free_block_is_found_again_and_held():
    ledger = _two_with_one_beginning()
    ledger.free("a")
    ledger.free("b")
    assert ledger.take("c", some(48) + some(5, start=700)) == [1, 2, 3, 5]
    assert ledger.kv.statistics().num_free_blocks == 6


def test_what_cannot_be_found_is_reused_first_then_the_oldest_and_ends_before_beginnings():
    ledger = _two_with_one_beginning()
    for name in "ab":
        ledger.free(name)
    ledger.take("c", some(48) + some(5, start=700))
    ledger.free("c")
    assert ledger.rest() == [5, 4, 6, 7, 8, 9, 10, 3, 2, 1]


def _two_of_nine_blocks() -> Ledger:
    ledger = Ledger(10)
    assert ledger.take("X", some(87)) == [1, 2, 3, 4, 5, 6]
    assert ledger.take("Y", some(48, start=500)) == [7, 8, 9]
    ledger.free("X")
    return ledger


def test_a_freed_request_joins_the_free_order_with_its_end_first():
    assert _two_of_nine_blocks().rest() == [6, 10, 5, 4, 3, 2, 1]


def test_a_request_freed_later_is_reused_later():
    ledger = _two_of_nine_blocks()
    ledger.free("Y")
    assert ledger.rest() == [6, 10, 5, 4, 3, 2, 1, 9, 8, 7]


def test_a_beginning_is_taken_from_the_middle_of_the_free_order():
    ledger = _two_of_nine_blocks()
    ledger.free("Y")
    assert ledger.take("Z", some(35)) == [1, 2, 6]
    assert ledger.kv.statistics().num_free_blocks == 7


def test_without_caching_the_last_used_block_is_reused_first():
    ledger = Ledger(10, caching=False)
    ledger.take("a", some(55))
    ledger.free("a")
    assert ledger.rest() == [4, 3, 2, 1, 5, 6, 7, 8, 9, 10]


def test_a_block_that_is_handed_out_anew_is_no_longer_found():
    ledger = Ledger(1)
    ledger.take("a", some(16))
    ledger.free("a")
    ledger.take("b", some(15, start=500))
    assert ledger.kv.statistics().num_cached_blocks == 0
    assert ledger.kv.statistics().evictions == 1


def test_a_hit_is_kept_and_the_other_free_block_is_given_up():
    ledger = Ledger(2)
    ledger.take("a", some(32))
    ledger.free("a")
    assert ledger.take("b", some(16) + some(16, start=500)) == [1, 2]
    assert ledger.kv.statistics().evictions == 1


def test_a_request_that_may_not_read_the_cache_gets_fresh_blocks_and_is_not_counted():
    ledger = Ledger(10)
    ledger.take("a", some(40))
    assert ledger.take("b", some(40), read_cache=False) == [4, 5, 6]
    assert ledger.kv.statistics().prefix_queries == 40


def test_of_equal_blocks_the_first_stays_the_one_that_is_found():
    ledger = Ledger(10)
    ledger.take("a", some(40))
    ledger.take("b", some(40), read_cache=False)
    ledger.free("a")
    assert ledger.kv.statistics().num_cached_blocks == 2
    assert ledger.take("c", some(33)) == [1, 2, 3]


def test_free_hits_count_as_room_that_is_needed():
    ledger = Ledger(11)
    ledger.take("a", some(48))
    ledger.take("b", some(96))  # three of its blocks are a's
    ledger.free("b")
    ledger.take("c", some(48, start=500))
    assert ledger.kv.statistics().num_free_blocks == 5
    before = ledger.kv.statistics()
    assert ledger.admit("d", some(144)) is None  # three free hits and three new ones: 6 > 5
    assert ledger.kv.statistics() == before
    assert ledger.take("d", some(128))[:6] == [1, 2, 3, 4, 5, 6]


def test_hits_at_the_end_that_is_reused_first_are_not_given_up_for_the_requests_own_blocks():
    ledger = Ledger(5, block_size=4)
    ledger.take("a", some(12))
    ledger.take("b", some(8, start=500))
    ledger.free("a")
    ledger.free("b")
    assert ledger.take("c", some(20)) == [1, 2, 3, 5, 4]


def test_a_refused_reservation_leaves_the_order_of_reuse_as_it_was():
    ledger = Ledger(5, block_size=4)
    ledger.take("a", some(12))
    ledger.free("a")
    before = ledger.kv.statistics()
    granted = ledger.admit("b", some(24))
    assert granted is None
    assert ledger.kv.statistics() == before
    assert ledger.rest() == [4, 5, 3, 2, 1]


def test_behind_a_request_that_finds_no_room_nobody_is_served():
    ledger = Ledger(4)
    ledger.take("a", some(32))
    large = Admit(req_id="large", num_tokens=40, digests=[])
    small = Admit(req_id="small", num_tokens=10, digests=[])
    granted = ledger.ask(admit=[large, small])
    assert (granted.admitted, granted.refused, granted.num_free_blocks) == ([], True, 2)
    assert [one.req_id for one in ledger.ask(admit=[small, large]).admitted] == ["small"]


def test_a_request_grows_by_whole_grants():
    ledger = Ledger(4)
    ledger.take("a", some(20))
    assert ledger.grow("a", 2).grown == {"a": [3, 4]}
    granted = ledger.grow("a", 1)
    assert (granted.grown, granted.stalled, granted.num_free_blocks) == ({}, {"a"}, 0)
    assert ledger.kv.block_ids("a") == [1, 2, 3, 4]


def test_a_victim_makes_room_at_once_if_no_step_touches_its_blocks():
    ledger = Ledger(4)
    ledger.take("a", some(32))
    ledger.take("b", some(32, start=500))
    granted = ledger.grow("a", 1, victims={"b": 0})
    assert (granted.preempted, granted.grown, granted.num_free_blocks) == (["b"], {"a": [4]}, 0)
    assert ledger.kv.statistics().num_kept_blocks == 1


def test_blocks_on_their_way_count_when_victims_are_chosen():
    ledger = Ledger(6)
    for index, name in enumerate("abc"):
        ledger.take(name, some(32, start=500 * index))
    granted = ledger.grow("a", 1, victims={"c": 3, "b": 3})
    assert (granted.preempted, granted.stalled) == (["c"], {"a"})
    assert ledger.grow("a", 1, victims={"b": 3}, completed=2).preempted == []
    assert ledger.grow("a", 1, victims={"b": 4}, completed=3).grown == {"a": [6]}


def test_a_shared_block_of_a_victim_does_not_count_as_on_its_way():
    ledger = Ledger(4)
    ledger.take("a", some(32))
    ledger.take("b", some(17))  # one block is a's
    ledger.take("c", some(16, start=500))
    granted = ledger.grow("a", 2, victims={"b": 1, "c": 1})
    assert (granted.preempted, granted.stalled) == (["b", "c"], {"a"})


def test_the_one_in_need_may_be_its_own_victim():
    ledger = Ledger(2)
    ledger.take("a", some(16))
    ledger.take("b", some(16, start=500))
    granted = ledger.grow("b", 1, victims={"b": 0, "a": 0})
    assert (granted.preempted, granted.grown, granted.stalled) == (["b"], {}, set())


def test_fenced_blocks_are_not_handed_out_before_their_step_has_ended():
    ledger = Ledger(2)
    ledger.take("a", some(32))
    ledger.free("a", fence=5)
    assert ledger.kv.statistics().num_fenced_blocks == 2
    assert ledger.admit("b", some(16, start=500)) is None
    ledger.ask(completed=5)
    assert ledger.kv.statistics().num_fenced_blocks == 0
    assert ledger.take("b", some(16, start=500)) == [2]


def test_fenced_blocks_can_be_shared_and_stay_held_when_the_fence_opens():
    ledger = Ledger(4)
    ledger.take("a", some(33))
    ledger.free("a", fence=5)
    assert ledger.take("b", some(33)) == [1, 2, 4]
    ledger.ask(completed=5)
    assert ledger.rest() == [3]


def test_an_audit_finds_blocks_whose_fence_should_have_opened():
    ledger = Ledger(2)
    ledger.take("a", some(32))
    ledger.free("a", fence=5)
    ledger.kv._ledger.fences._completed = 5
    with pytest.raises(BooksError, match="2 blocks wait for step 5, step 5 has ended"):
        ledger.kv.check()


def test_giving_back_what_is_not_held_changes_nothing():
    ledger = Ledger(4)
    ledger.take("a", some(33))
    ledger.free("a")
    ledger.free("a")
    ledger.free("nobody")
    assert ledger.kv.statistics().num_free_blocks == 4


def test_the_cache_is_not_forgotten_while_a_block_is_fenced():
    ledger = Ledger(4)
    ledger.take("a", some(33))
    ledger.free("a", fence=5)
    assert not ledger.kv.reset_prefix_cache()
    ledger.ask(completed=5)
    assert ledger.kv.reset_prefix_cache()
    assert ledger.kv.statistics().num_cached_blocks == 0


def test_usage_is_the_share_that_is_held():
    ledger = Ledger(10)
    assert ledger.kv.statistics().usage == 0.0
    ledger.take("a", some(48))
    assert ledger.kv.statistics().usage == pytest.approx(0.3)


def test_more_than_is_free_cannot_be_taken_and_nothing_is():
    pool = BlockPool(3)
    pool.take(2)
    with pytest.raises(BooksError, match="2 blocks were taken, 1 are free"):
        pool.take(2)
    assert pool.num_free == 1


def test_a_block_that_is_released_twice_is_an_error():
    pool = BlockPool(3)
    (block,) = pool.take(1)
    pool.release([block])
    with pytest.raises(BooksError, match="block 1 was released more often than it was held"):
        pool.release([block])


def test_an_audit_finds_a_block_with_one_holder_too_many():
    pool = BlockPool(2)
    blocks = pool.take(1)
    pool.share(blocks)
    pool.check([0, 2, 0])
    with pytest.raises(BooksError, match="block 1 has 2 references, 1 holders"):
        pool.check([0, 1, 0])


def test_an_audit_finds_a_block_that_a_table_names_without_holding_it():
    ledger = Ledger(2)
    ledger.take("a", some(16))
    ledger.kv._ledger.tables["a"].groups[0].append(2)
    with pytest.raises(BooksError, match="block 2 has 0 references, 1 holders"):
        ledger.kv.check()


@pytest.mark.parametrize(("blocks", "size"), [(0, 16), (10, 0), (-1, 16)])
def test_a_cache_without_room_is_refused(blocks: int, size: int):
    with pytest.raises(ConfigError, match=r"(num_blocks|block_size) is (0|-1), the least is 1"):
        KVCacheManager(blocks, size)
