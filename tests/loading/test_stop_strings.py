"""Stop strings are found however the text is cut, and nothing else is held back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.pipeline.stop_strings import StopStrings, StopTrie
from callboard.scheduler.errors import InvalidRequestError

LETTERS = st.text("ab\n", max_size=30)
STOPS = st.lists(st.text("ab\n", min_size=1, max_size=4), min_size=1, max_size=4)


def reference(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """Cut at the stop string whose end comes first; of several, the one named first."""
    for end in range(1, len(text) + 1):
        for stop in stops:
            if text[:end].endswith(stop):
                return text[: end if include else end - len(stop)], stop
    return text, None


def cut(pieces: list[str], stops: list[str], include: bool = False) -> tuple[str, str | None]:
    search = StopStrings(stops, include)
    given_out = ""
    for piece in pieces:
        new, matched = search.feed(piece)
        given_out += new
        if matched is not None:
            return given_out, matched
    return given_out + search.finish(), None


@given(pieces=st.lists(LETTERS, max_size=8), stops=STOPS, include=st.booleans())
def test_any_cutting_of_a_text_gives_the_cut_of_the_whole(pieces: list[str], stops: list[str], include: bool) -> None:
    assert cut(pieces, stops, include) == reference("".join(pieces), stops, include)


@given(pieces=st.lists(LETTERS, max_size=8), stops=STOPS)
def test_only_the_longest_possible_beginning_of_a_stop_string_is_held(pieces: list[str], stops: list[str]) -> None:
    search, given_out, text = StopStrings(stops), "", ""
    for piece in pieces:
        new, matched = search.feed(piece)
        if matched is not None:
            return
        given_out, text = given_out + new, text + piece
        held = max(n for n in range(len(text) + 1) if any(stop.startswith(text[len(text) - n :]) for stop in stops))
        assert given_out == text[: len(text) - held]


@given(pieces=st.lists(st.tuples(LETTERS, st.booleans()), max_size=8), stops=STOPS)
def test_what_completes_while_inactive_is_text(pieces: list[tuple[str, bool]], stops: list[str]) -> None:
    search, given_out, text = StopStrings(stops), "", ""
    for piece, active in pieces:
        new, matched = search.feed(piece, active)
        given_out += new
        ends = range(len(text) + 1, len(text) + len(piece) + 1) if active else range(0)
        text += piece
        expected = next(((stop, end) for end in ends for stop in stops if text[:end].endswith(stop)), None)
        assert matched == (expected and expected[0])
        if expected:
            assert given_out == text[: expected[1] - len(expected[0])]
            return
    assert given_out + search.finish() == text


def test_a_stop_string_over_three_pieces_is_cut_out_or_kept() -> None:
    assert cut(["He", "llo <", "st", "op> more"], ["<stop>"]) == ("Hello ", "<stop>")
    assert cut(["He", "llo <", "st", "op> more"], ["<stop>"], include=True) == ("Hello <stop>", "<stop>")


def test_the_first_to_be_complete_wins_and_then_the_first_named() -> None:
    assert cut(["abcd"], ["abcd", "bc"]) == ("a", "bc")
    assert cut(["abc"], ["c", "bc", "abc"]) == ("ab", "c")
    assert cut(["abc"], ["abc", "bc", "c"]) == ("", "abc")


def test_text_that_began_like_a_stop_string_is_given_out_at_the_end() -> None:
    search = StopStrings(["\n\nUser"])
    assert search.feed("Hi\n\nUs") == ("Hi", None)
    assert search.finish() == "\n\nUs"
    assert search.finish() == ""


def test_after_a_match_nothing_more_is_given_out() -> None:
    search = StopStrings(["x"])
    assert search.feed("axb") == ("a", "x")
    assert search.feed("more") == ("", "x")
    assert search.finish() == ""


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="a stop string is empty"):
        StopStrings(["a", ""])


@pytest.mark.parametrize(("include", "length"), [(False, 10), (True, 12)])
def test_a_text_searched_in_one_go_is_cut_at_the_first_match(include: bool, length: int):
    text, matched = StopStrings(["is"], include).feed(" The user is a")
    assert (len(text), matched) == (length, "is")


@pytest.mark.parametrize(("stops", "matched", "length"), [(["ab", "b"], "ab", 0), (["b", "ab"], "b", 1)])
def test_of_two_that_are_complete_at_once_the_first_named_is_cut(stops: list[str], matched: str, length: int):
    text, found = StopStrings(stops).feed("abc")
    assert (len(text), found) == (length, matched)


def test_no_more_is_held_than_a_stop_string_of_five_may_begin_with():
    stops = StopStrings(["12345"])
    # The reference holds back 4 characters of any text.
    assert [stops.feed(piece)[0] for piece in ("word", "1234", "x")] == ["word", "", "1234x"]


def test_a_long_stop_string_costs_what_a_text_has_of_it():
    trie = StopTrie(["ab" * 30_000])
    assert len(trie) == 1
    search = StopStrings(trie)
    assert search.feed("x" * 1000 + "ababa") == ("x" * 1000, None)
    assert len(trie) == 6  # the empty beginning, and the five that the text has


def test_searches_that_share_an_automaton_make_each_state_once():
    trie = StopTrie(["stop here", "stop there"])
    first, second = StopStrings(trie), StopStrings(trie, include=True)
    assert first.feed("now stop th") == ("now ", None)
    made = len(trie)
    assert second.feed("stop th") == ("", None)
    assert len(trie) == made
    assert second.feed("ere") == ("stop there", "stop there")
    assert first.feed("at") == ("stop that", None)


@pytest.mark.slow
def test_many_stop_strings_that_are_ends_of_one_another_need_no_deep_recursion():
    whole = "".join(map(chr, range(1000, 2000)))
    stops = [whole[start:] + "!" for start in range(1000)]
    assert cut([whole, "?"], stops) == (whole + "?", None)
    assert cut([whole, "!"], stops) == ("", stops[0])
    assert cut([whole, "!"], stops[::-1]) == (whole[:-1], stops[-1])
