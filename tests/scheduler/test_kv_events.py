"""What followers are told of cached blocks."""

from typing import Any

import pytest
from histories import History, some_groups
from play import Play, some

from callboard.scheduler import EngineCoreOutputs
from callboard.scheduler.hashing import extend_keys, root_key
from callboard.scheduler.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVEvent,
    KVEventBatch,
    ReplayBuffer,
)
from callboard.scheduler.kv_groups import ONE_GROUP, KVGroup
from callboard.scheduler.messages import Follow


class Followed(Play):
    """A play whose cache is followed; ``told`` is all that came."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(caching=True, **settings)
        self.scheduler.follow(Follow(kv_events=True))
        self.told: list[KVEventBatch] = []
        self._num_read = 0

    def news(self) -> list[KVEvent]:
        """What came since the last call."""
        self.scheduler.release(self.kv)
        self.take_notices()
        batches = self.told[self._num_read :]
        self._num_read = len(self.told)
        return [event for batch in batches for event in batch.events]

    def _take(self, outputs: EngineCoreOutputs) -> None:
        self.told += outputs.kv_events
        super()._take(outputs)


def keys(tokens: list[int], salt: str | None = None) -> list[bytes]:
    made: list[bytes] = []
    extend_keys(made, root_key(block_size=16, salt=salt), tokens, 16)
    return made


@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_a_request_of_full_blocks_is_one_event_with_all_keys_and_tokens(blocks: int):
    play, tokens = Followed(), some(16 * blocks)
    play.add("a", tokens, max_tokens=1)
    play.step()
    assert play.news() == [
        BlockStored(block_hashes=keys(tokens), parent_block_hash=None, token_ids=tokens, block_size=16)
    ]


@pytest.mark.parametrize("blocks", [1, 3])
def test_blocks_that_are_reused_are_removed_one_by_one_and_then_stored(blocks: int):
    play, old, new = Followed(blocks=blocks), some(16 * blocks), some(16 * blocks, start=500)
    play.add("a", old, max_tokens=1)
    play.step()
    play.news()
    play.add("b", new, max_tokens=1)
    play.step()
    *removed, stored = play.news()
    assert removed == [BlockRemoved(block_hashes=[key]) for key in reversed(keys(old))]
    assert stored == BlockStored(block_hashes=keys(new), parent_block_hash=None, token_ids=new, block_size=16)


def test_what_is_found_in_the_cache_is_not_stored_again_and_what_follows_names_its_parent():
    play, tokens = Followed(), some(64)
    play.add("a", tokens[:40], max_tokens=1)
    play.step()
    play.news()
    play.add("b", tokens, max_tokens=1)
    play.step()
    assert play.news() == [
        BlockStored(
            block_hashes=keys(tokens)[2:], parent_block_hash=keys(tokens)[1], token_ids=tokens[32:], block_size=16
        )
    ]


def test_generated_tokens_fill_blocks_too():
    play, prompt = Followed(), some(30)
    play.add("a", prompt, max_tokens=4)
    for token in (201, 202, 203, 204):
        play.step(token)
    text = [*prompt, 201, 202]
    stored = [event for event in play.news() if isinstance(event, BlockStored)]
    assert stored[-1] == BlockStored(
        block_hashes=keys(text)[1:], parent_block_hash=keys(text)[0], token_ids=text[16:], block_size=16
    )


def test_a_block_that_an_ended_request_filled_is_told_although_its_id_is_used_again():
    play, prompt = Followed(), some(31)
    play.add("a", prompt, max_tokens=2)
    play.step(201)
    play.news()
    play.step(202)
    play.add("a", some(16, start=700), max_tokens=1)
    del play.ends["a"]
    play.step()
    first, second = play.news()
    assert first == BlockStored(
        block_hashes=keys([*prompt, 201])[1:],
        parent_block_hash=keys(prompt)[0],
        token_ids=[*prompt, 201][16:],
        block_size=16,
    )
    assert isinstance(second, BlockStored)
    assert second.token_ids == some(16, start=700)


def test_each_group_of_layers_tells_of_its_own_blocks():
    play, old, new = Followed(blocks=6, kv_groups=(KVGroup(), KVGroup(window=20))), some(48), some(48, start=500)
    play.add("a", old, max_tokens=1)
    play.step()
    assert play.news() == [
        BlockStored(block_hashes=keys(old), parent_block_hash=None, token_ids=old, block_size=16, group=group)
        for group in (0, 1)
    ]
    play.add("b", new, max_tokens=1)
    play.step()
    *removed, _, _ = play.news()
    assert removed == [BlockRemoved(block_hashes=[key], group=group) for group in (0, 1) for key in reversed(keys(old))]


def test_a_salt_is_not_told_and_an_adapter_is():
    play = Followed()
    play.add("a", some(16), cache_salt="secret", adapter="tuned", max_tokens=1)
    play.step()
    (stored,) = play.news()
    assert isinstance(stored, BlockStored)
    assert stored.adapter == "tuned"
    assert "secret" not in repr(stored)


def test_an_emptied_cache_is_told():
    play = Followed()
    play.add("a", some(16), max_tokens=1)
    play.step()
    play.news()
    assert play.kv.reset_prefix_cache()
    play.scheduler.prefix_cache_was_reset(0.0)
    assert play.news() == [AllBlocksCleared()]


def test_batches_are_numbered_from_zero_and_name_their_step():
    play = Followed()
    for number in range(3):
        play.add(f"r{number}", some(16, start=100 * number), max_tokens=1)
        play.step()
        play.news()
    assert [(batch.number, batch.step) for batch in play.told] == [(0, 1), (1, 2), (2, 3)]


def test_a_picture_made_of_events_alone_is_the_cache():
    play = Followed(blocks=12, max_num_running_reqs=4)
    picture: set[bytes] = set()
    for number in range(40):
        play.add(f"r{number}", some(17 + 13 * (number % 5), start=50 * (number % 7)), max_tokens=20)
        for _ in range(6):
            play.step()
            for event in play.news():
                if isinstance(event, BlockStored):
                    assert not picture & set(event.block_hashes)
                    picture |= set(event.block_hashes)
                elif isinstance(event, BlockRemoved):
                    assert set(event.block_hashes) <= picture
                    picture -= set(event.block_hashes)
    assert len(picture) == play.kv.statistics().num_cached_blocks > 0
    assert play.scheduler.statistics().num_preemptions > 0


def test_without_a_follower_nothing_is_reported():
    play = Play(caching=True)
    play.add("a", some(40), max_tokens=1)
    wants = play.scheduler.propose(0.0)
    assert wants is not None
    assert not wants.report
    assert play.kv.reserve(wants).changes == []


def batches(count: int) -> list[KVEventBatch]:
    return [KVEventBatch(number=number, step=number, time=0.0, events=[]) for number in range(count)]


def test_what_was_told_is_replayed_from_a_number_on():
    buffer = ReplayBuffer()
    buffer.add(batches(19))
    assert [batch.number for batch in buffer.since(10)] == list(range(10, 19))


@pytest.mark.parametrize("size", [1, 10, 100])
def test_a_full_buffer_replays_the_newest(size: int):
    buffer = ReplayBuffer(size)
    buffer.add(batches(size + 10))
    assert [batch.number for batch in buffer.since(0)] == list(range(10, size + 10))


class FollowedHistory(History):
    """A random history from whose events a picture of the cache is made."""

    def __init__(self, seed: int, groups: tuple[KVGroup, ...] = ONE_GROUP) -> None:
        super().__init__(seed, groups)
        self.scheduler.follow(Follow(kv_events=True))
        self.picture: set[tuple[int, bytes]] = set()
        self.root = root_key(block_size=self.block_size)

    def _plan(self) -> None:
        super()._plan()
        self.look()

    def look(self) -> None:
        for batch in self.scheduler.books.reports.take_batches():
            for event in batch.events:
                self._see(event)

    def _see(self, event: KVEvent) -> None:
        if isinstance(event, BlockRemoved):
            gone = {(event.group, key) for key in event.block_hashes}
            assert gone <= self.picture
            self.picture -= gone
        elif isinstance(event, BlockStored):
            told: list[bytes] = []
            extend_keys(told, event.parent_block_hash or self.root, event.token_ids, self.block_size)
            assert told == event.block_hashes
            self.picture |= {(event.group, key) for key in told}


@pytest.mark.parametrize("grouped", [False, True])
def test_in_any_history_keys_are_those_of_the_tokens_told_and_the_picture_is_the_cache(grouped: bool):
    stored = 0
    for seed in range(300):
        history = FollowedHistory(seed, some_groups(seed) if grouped else ONE_GROUP)
        history.play()
        history.look()
        assert len(history.picture) == history.kv.statistics().num_cached_blocks, seed
        stored += len(history.picture)
    assert stored > 300
