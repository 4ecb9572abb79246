"""Keys of cached blocks: equal for equal content, different for everything else."""

from hashlib import sha256
from itertools import combinations

import numpy as np
import pytest
from play import some

from callboard.scheduler.hashing import extend_keys, root_key


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


def test_a_key_is_the_digest_of_its_parent_and_eight_bytes_for_each_token():
    parent = sha256(b"root" + bytes([1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0])).digest()
    assert _keys([1, 256]) == [parent]


def test_the_root_is_the_same_on_every_machine():
    parts = b"callboard.kv.1" + b"w+" + bytes([1] + [0] * 7) + b"m" + b"b+" + bytes([2] + [0] * 7) + b"16" + b"a-s-"
    assert root_key(weights_id="m", block_size=16) == sha256(parts).digest()
