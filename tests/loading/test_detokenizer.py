"""Deltas hold whole characters, join to the text of all tokens, and never wait for what cannot come."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders
from vocabularies import byte_ids, smollm2, tiny

from callboard.pipeline.detokenizer import IncrementalDetokenizer

KINDS = pytest.mark.parametrize("kind", ["gpt-2", "spm"])


def deltas(kind: str, ids: list[int], step: int = 1, skip: bool = True) -> list[str]:
    stream = IncrementalDetokenizer(tiny(kind), skip_special_tokens=skip)
    found = [stream.feed(ids[at : at + step]) for at in range(0, len(ids), step)]
    return [*found, stream.finish()]


@KINDS
@pytest.mark.parametrize("text", ["😀", "你好", "e\u0301", "👩‍👩‍👧‍👦", "aéb", "ก็"])
@pytest.mark.parametrize("step", [1, 3])
def test_characters_split_over_tokens_come_whole(kind: str, text: str, step: int) -> None:
    found = deltas(kind, byte_ids(tiny(kind), text.encode()), step)
    assert "".join(found) == text
    assert "\ufffd" not in "".join(found)


@KINDS
@pytest.mark.parametrize(
    ("data", "parts"),
    [
        (b"a\xf0\x9f", ["a", "", "", "\ufffd"]),  # the stream ends inside a character: one at the end
        (b"a\x80b", ["a", "\ufffd", "b", ""]),  # what cannot begin a character: at once
        (b"\xf0\x9fa", ["", "", "\ufffda", ""]),  # what can no longer become one: when that is known
        (b"\xe4\xbd\xa0\xff", ["", "", "你", "\ufffd", ""]),
    ],
)
def test_invalid_bytes_follow_one_rule(kind: str, data: bytes, parts: list[str]) -> None:
    assert deltas(kind, byte_ids(tiny(kind), data)) == parts


@KINDS
def test_thousands_of_invalid_bytes_neither_stall_nor_pile_up(kind: str) -> None:
    found = deltas(kind, byte_ids(tiny(kind), b"\x80" * 4000))
    assert found == ["\ufffd"] * 4000 + [""]


@KINDS
@settings(deadline=None)
@given(data=st.binary(max_size=40), step=st.integers(1, 3))
def test_any_bytes_join_to_the_text_of_the_whole(kind: str, data: bytes, step: int) -> None:
    ids = byte_ids(tiny(kind), b"x" + data)
    assert "".join(deltas(kind, ids, step)) == tiny(kind).decode(ids) == (b"x" + data).decode("utf-8", "replace")


@KINDS
@settings(deadline=None)
@given(data=st.data(), step=st.integers(1, 3), skip=st.booleans())
def test_every_beginning_of_any_token_stream_joins_to_its_text(
    kind: str, data: st.DataObject, step: int, skip: bool
) -> None:
    tokenizer = tiny(kind)
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 5), max_size=12))
    for length in range(len(ids) + 1):
        joined = "".join(deltas(kind, ids[:length], step, skip))
        assert joined == tokenizer.decode(ids[:length], skip_special_tokens=skip)


@settings(deadline=None)
@given(st.lists(st.integers(17, 49151), max_size=20))
def test_decoding_by_bytes_is_what_the_library_does_for_byte_level_tokens(ids: list[int]) -> None:
    tokenizer = smollm2()
    texts = [str(tokenizer.token_text(i)) for i in ids]
    assert tokenizer.decode(ids) == decoders.ByteLevel().decode(texts)


@KINDS
def test_hidden_tokens_inside_a_character_do_not_break_it(kind: str) -> None:
    tokenizer = tiny(kind)
    first, *rest = byte_ids(tokenizer, "é".encode())
    control = tokenizer.encode("<|im_end|>", add_special_tokens=False)
    assert "".join(deltas(kind, [first, *control, *rest])) == "é"


def test_the_first_space_of_sentencepiece_is_dropped_once() -> None:
    tokenizer = tiny("spm")
    ids = tokenizer.encode("Hello  two", add_special_tokens=True)
    assert "".join(deltas("spm", ids)) == "Hello  two"
    shown = deltas("spm", ids, skip=False)
    assert "".join(shown) == tokenizer.decode(ids, skip_special_tokens=False) == "<s> Hello  two"
