"""Bad words become the tokens that spell them, at the beginning of a text and inside it."""

from vocabularies import smollm2, tiny

from callboard import SamplingParams
from callboard.pipeline.bad_words import spellings, with_token_ids


def test_a_word_is_spelled_with_and_without_a_space():
    tokenizer = smollm2()
    plain, spaced = spellings("Paris", tokenizer)
    assert tokenizer.decode(plain) == "Paris"
    assert tokenizer.decode(spaced) == " Paris"
    assert spellings("  Paris", tokenizer) == [plain, spaced]


def test_a_word_of_several_tokens_is_one_sequence():
    tokenizer = smollm2()
    for spelling in spellings("Constantinople", tokenizer):
        assert len(spelling) > 1
        assert tokenizer.decode(spelling).strip() == "Constantinople"


def test_where_the_space_is_a_token_of_its_own_one_spelling_is_enough():
    tokenizer = tiny("gpt-2")
    space, word = tokenizer.encode(" ", add_special_tokens=False), tokenizer.encode("zq", add_special_tokens=False)
    assert tokenizer.encode(" zq", add_special_tokens=False) == space + word
    assert spellings("zq", tokenizer) == [tuple(word)]


def test_words_join_the_sequences_that_were_given():
    params = with_token_ids(SamplingParams(bad_words=["Paris", "Paris"], bad_words_token_ids=[[1, 2]]), smollm2())
    assert params.bad_words is None
    assert params.bad_words_token_ids == ((1, 2), *spellings("Paris", smollm2()))
    untouched = SamplingParams(bad_words_token_ids=[[1]])
    assert with_token_ids(untouched, smollm2()) is untouched
