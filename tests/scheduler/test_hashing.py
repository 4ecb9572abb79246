"""Keys of cached blocks: equal for equal content, different for everything else."""

from hashlib import sha256
from itertools import combinations, product

import numpy as np
import pytest
from play import Play, some

from callboard import ConfigError, EngineConfig
from callboard.scheduler import SchedulerConfig
from callboard.scheduler.hashing import MediaItem, digest_of, extend_keys, root_key


def _keys(tokens: list[int], root: bytes = b"root", size: int = 2) -> list[bytes]:
    keys: list[bytes] = []
    extend_keys(keys, root, tokens, size)
    return keys


def test_everything_that_a_block_depends_on_makes_another_root():
    roots = [
        root_key(block_size=16),
        root_key(block_size=17),
        root_key(block_size=16, weights_id="x"),
        root_key(block_size=16, adapter="x"),
        root_key(block_size=16, salt="x"),
        root_key(block_size=16, adapter=""),
        root_key(block_size=16, salt=""),
        root_key(block_size=16, adapter="x", salt="x"),
        root_key(block_size=16, adapter="xx"),
    ]
    assert all(a != b for a, b in combinations(roots, 2))


def test_parts_do_not_run_together():
    assert root_key(block_size=1, adapter="ab", salt="c") != root_key(block_size=1, adapter="a", salt="bc")
    assert root_key(block_size=1, adapter="a+s", salt=None) != root_key(block_size=1, adapter="a", salt="s")


def test_only_full_blocks_have_keys():
    assert [len(_keys(some(count))) for count in (0, 1, 2, 3, 4, 5)] == [0, 0, 1, 1, 2, 2]


def test_a_key_covers_all_that_stands_before_its_block():
    first, second = _keys([1, 2, 3, 4]), _keys([9, 2, 3, 4])
    assert not set(first) & set(second)


def test_equal_blocks_at_different_places_have_different_keys():
    keys = _keys([1, 2, 1, 2, 1, 2])
    assert len(set(keys)) == 3


def test_digits_do_not_run_together():
    assert _keys([1, 23]) != _keys([12, 3])
    assert _keys([1, 2, 3, 4], size=4) != _keys([1, 2, 3, 4], size=2)[1:]


@pytest.mark.parametrize("cut", range(0, 12, 2))
def test_keys_made_in_parts_are_those_made_at_once(cut: int):
    tokens = some(12)
    keys = _keys(tokens[:cut])
    extend_keys(keys, b"root", tokens[cut:], 2)
    assert keys == _keys(tokens)


def test_a_column_of_any_integer_type_gives_the_keys_of_the_list():
    keys: list[bytes] = []
    extend_keys(keys, b"root", np.array(some(7), np.int32), 2)
    assert keys == _keys(some(7))


def test_salt_stands_in_the_root_only_and_later_keys_follow_from_their_parents():
    salted = _keys(some(6), root_key(block_size=2, salt="s"))
    continued = [salted[0]]
    extend_keys(continued, root_key(block_size=2), some(4, start=2), 2)
    assert continued == salted


def test_a_key_is_the_digest_of_its_parent_and_four_bytes_for_each_token():
    parent = sha256(b"root" + bytes([1, 0, 0, 0, 0, 1, 0, 0])).digest()
    assert _keys([1, 256]) == [parent]


def test_the_root_is_the_same_on_every_machine():
    parts = b"callboard.kv.2" + b"w+" + bytes([1] + [0] * 7) + b"m" + b"b+" + bytes([2] + [0] * 7) + b"16" + b"a-s-"
    assert root_key(weights_id="m", block_size=16) == sha256(parts).digest()


def _with(*items: tuple[str, int, int], tokens: int = 12, size: int = 4) -> list[bytes]:
    """Keys of a prompt with media items: identifier, offset, length."""
    keys: list[bytes] = []
    media = [MediaItem(identifier=name, offset=offset, length=length) for name, offset, length in items]
    extend_keys(keys, b"root", some(tokens), size, items=media)
    return keys


def test_an_item_changes_the_keys_from_the_first_block_that_it_reaches_into():
    plain, pictured = _with(), _with(("cat", 5, 3))
    assert [a == b for a, b in zip(plain, pictured, strict=True)] == [True, False, False]


def test_two_pictures_behind_the_same_placeholders_share_nothing_from_there_on():
    cat, dog = _with(("cat", 5, 3)), _with(("dog", 5, 3))
    assert [a == b for a, b in zip(cat, dog, strict=True)] == [True, False, False]


def test_identifiers_that_agree_at_their_ends_are_different():
    # Whole identifiers are in the key: no part of them is cut off.
    assert _with(("0" * 60 + "beef", 0, 4))[0] != _with(("1" + "0" * 59 + "beef", 0, 4))[0]
    assert _with(("beef" + "0" * 60, 0, 4))[0] != _with(("beef" + "0" * 59 + "1", 0, 4))[0]


def test_an_item_at_another_place_of_a_block_makes_another_key():
    assert _with(("cat", 4, 2))[1] != _with(("cat", 5, 2))[1]


def test_a_place_counts_from_the_blocks_start_and_is_negative_for_what_began_before():
    item = b"m" + bytes([3, 0, 0, 0, 0, 0, 0, 0]) + b"cat" + (-2).to_bytes(8, "little", signed=True)
    keys = _with(("cat", 2, 3), tokens=8)
    tokens = np.arange(4, 8, dtype="<i4").tobytes()
    assert keys[1] == sha256(keys[0] + tokens + item).digest()


def test_two_items_of_one_block_do_not_run_together():
    pairs = [("ab", "c"), ("a", "bc"), ("abc", ""), ("c", "ab")]
    keys = {_with((first, 0, 2), (second, 2, 2))[0] for first, second in pairs}
    assert len(keys) == len(pairs)


def test_two_halves_of_a_picture_are_not_the_picture():
    # The same pixels as one item of four tokens and as two of two (known from other engines).
    assert _with(("cat", 0, 4))[0] != _with(("cat", 0, 2), ("cat", 2, 2))[0]


def test_keys_of_items_made_in_parts_are_those_made_at_once():
    media = [MediaItem(identifier="cat", offset=3, length=6)]
    keys: list[bytes] = []
    for cut in range(0, 12, 4):
        extend_keys(keys, b"root", some(4, start=cut), 4, items=media)
    assert keys == _with(("cat", 3, 6))


def test_a_name_means_something_else_in_each_place_where_it_may_stand():
    names = (None, "", "lora1", "lora2")
    roots = [
        root_key(block_size=4, weights_id=weights or "", adapter=adapter, salt=salt)
        for weights, adapter, salt in product(("", "lora1"), names, names)
    ]
    assert len(set(roots)) == len(roots)
    pictured: list[bytes] = []
    extend_keys(pictured, roots[0], some(4), 4, items=[MediaItem(identifier="lora1", offset=0, length=4)])
    plain: list[list[bytes]] = [[] for _ in roots]
    for keys, root in zip(plain, roots, strict=True):
        extend_keys(keys, root, some(4), 4)
    assert pictured[0] not in {key for keys in plain for key in keys}


@pytest.mark.parametrize(
    ("name", "size"), [("sha256", 32), ("sha256-128", 16), ("blake2b", 32), ("blake2b-512", 64), ("blake2b-128", 16)]
)
def test_the_digest_may_be_chosen_and_all_finds_work_with_it(name: str, size: int):
    play = Play(caching=True, prefix_hash=name)
    play.add("first", some(40))
    play.step()
    play.add("second", some(40))
    assert play.step() == {"first": 1, "second": 8}
    assert len(digest_of(name)(b"")) == size


def test_no_two_digests_make_the_same_keys():
    names = ["sha256", "sha256-128", "blake2b", "blake2b-128", "blake2b-512"]
    assert len({root_key(block_size=16, digest=name)[:16] for name in names}) == len(names) - 1
    assert root_key(block_size=16, digest="sha256-128") == root_key(block_size=16)[:16]


@pytest.mark.parametrize("name", ["sha256-64", "sha256-120", "blake2b-64", "sha256-264", "sha256-130"])
def test_a_digest_that_might_collide_is_refused(name: str):
    with pytest.raises(ConfigError, match=f"prefix_hash is '{name}'.*whole bytes from 128"):
        SchedulerConfig(prefix_hash=name)
    with pytest.raises(ConfigError, match="a shorter digest may collide, and hits are not verified"):
        EngineConfig(prefix_hash=name)


@pytest.mark.parametrize("name", ["md5", "xxhash", "", "sha256-", "sha256-x"])
def test_a_digest_that_is_not_known_is_refused_with_those_that_are(name: str):
    with pytest.raises(ConfigError, match="known are"):
        SchedulerConfig(prefix_hash=name)
