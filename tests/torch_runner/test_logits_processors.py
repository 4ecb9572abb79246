"""Logits change exactly as transformers' processors change them, and only for the rows that ask."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_tables import changed, enter, generate, table

from callboard.runner.bad_words import BadWords
from callboard.runner.draws import Draws, cut, in_mass
from callboard.runner.sampler import sample
from callboard.runner.token_counts import TokenCounts
from callboard.scheduler import SamplingParams

VOCABULARY = 200
PROMPT, OUTPUTS = [5, 7, 7, 150, 3], [7, 11, 11, 199, 11, 3]


def logits(rows: int = 1, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3


def after(params: dict[str, Any], given_logits: torch.Tensor) -> torch.Tensor:
    """One request's logits, with its outputs come one by one."""
    rows = table(VOCABULARY)
    enter(rows, 0, SamplingParams(**params), PROMPT)
    generate(rows, 0, OUTPUTS)
    return changed(given_logits, rows, [0])


@pytest.mark.parametrize("penalty", [1.3, 0.7, 5.0])
def test_repetition_is_what_transformers_does_over_prompt_and_output(penalty: float):
    from transformers import RepetitionPenaltyLogitsProcessor

    expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([PROMPT + OUTPUTS]), logits())
    assert torch.equal(after({"repetition_penalty": penalty}, logits()), expected)


def test_bias_is_what_transformers_does_for_sequences_of_one_token():
    from transformers import SequenceBiasLogitsProcessor

    bias = {0: 2.5, 7: -100.0, 199: 0.1}
    processor = SequenceBiasLogitsProcessor([[[token], value] for token, value in bias.items()])
    expected = processor(torch.tensor([PROMPT + OUTPUTS]), logits())
    assert torch.equal(after({"logit_bias": bias}, logits()), expected)


def test_bad_words_are_what_transformers_forbids():
    from transformers import NoBadWordsLogitsProcessor

    words = [[4], [3, 8], [11, 3, 9], [11, 4, 10], [199, 11, 3, 100]]
    processor = NoBadWordsLogitsProcessor(words, eos_token_id=[])
    expected = processor(torch.tensor([OUTPUTS]), logits())
    found = after({"bad_words_token_ids": words}, logits())
    assert torch.equal(found, expected)
    assert (found == -torch.inf).nonzero()[:, 1].tolist() == [4, 8, 9, 100]


def test_allowed_tokens_are_what_transformers_leaves():
    from transformers import PrefixConstrainedLogitsProcessor

    allowed = [3, 199, 0]
    processor = PrefixConstrainedLogitsProcessor(lambda _batch, _tokens: allowed, 1)
    expected = processor(torch.tensor([OUTPUTS]), logits())
    assert torch.equal(after({"allowed_token_ids": allowed}, logits()), expected)


def test_the_minimum_forbids_what_transformers_forbids():
    from transformers import MinNewTokensLengthLogitsProcessor

    processor = MinNewTokensLengthLogitsProcessor(len(PROMPT), 7, [2, 9, 5], device="cpu")
    expected = processor(torch.tensor([PROMPT + OUTPUTS]), logits())
    params = {"min_tokens": 7, "max_tokens": 9, "stop_token_ids": [5]}
    assert torch.equal(after(params, logits()), expected)
    assert torch.equal(after(params | {"min_tokens": 6}, logits()), logits())


def test_frequency_and_presence_are_over_the_output_alone():
    expected = logits()[0]
    for token in set(OUTPUTS):
        expected[token] -= 0.5 * OUTPUTS.count(token)
        expected[token] -= 1.25
    assert torch.equal(after({"frequency_penalty": 0.5, "presence_penalty": 1.25}, logits())[0], expected)


def test_the_order_is_masks_bias_penalties():
    params = SamplingParams(
        allowed_token_ids=[3, 7, 11], logit_bias={3: 4.0, 8: 9.0}, repetition_penalty=2.0, frequency_penalty=1.0
    )
    rows, before = table(VOCABULARY), logits()
    enter(rows, 0, params, PROMPT)
    generate(rows, 0, OUTPUTS)
    found = changed(before, rows, [0])[0]

    def repeated(value: float) -> float:
        return value * 2 if value < 0 else value / 2

    assert found[3] == pytest.approx(repeated(float(before[0, 3]) + 4) - 1)
    assert found[11] == pytest.approx(repeated(float(before[0, 11])) - 3)
    assert (found > -torch.inf).nonzero().flatten().tolist() == [3, 7, 11]


def test_other_rows_stay_as_they_are():
    rows = table(VOCABULARY)
    everything = SamplingParams(
        repetition_penalty=1.5,
        frequency_penalty=1.0,
        logit_bias={1: 1.0},
        allowed_token_ids=[1, 2],
        bad_words_token_ids=[[1]],
    )
    enter(rows, 0, SamplingParams(), PROMPT)
    enter(rows, 1, everything, PROMPT)
    enter(rows, 2, SamplingParams(presence_penalty=-1.0), PROMPT, OUTPUTS)
    found = changed(logits(3), rows, [0, 1, 2])
    assert torch.equal(found[0], logits(3)[0])
    assert not torch.equal(found[1], logits(3)[1])
    assert (found[2] != logits(3)[2]).nonzero().flatten().tolist() == sorted(set(OUTPUTS))


def test_a_row_that_is_given_on_keeps_nothing_of_its_last_holder():
    rows = table(VOCABULARY)
    enter(rows, 0, SamplingParams(repetition_penalty=2.0, logit_bias={1: 1.0}, allowed_token_ids=[1]), PROMPT, OUTPUTS)
    enter(rows, 0, SamplingParams(), PROMPT)
    generate(rows, 0, OUTPUTS)
    assert torch.equal(changed(logits(), rows, [0]), logits())
    enter(rows, 0, SamplingParams(frequency_penalty=1.0), [1], [4])
    assert (changed(logits(), rows, [0]) != logits()).nonzero()[:, 1].tolist() == [4]


def test_a_preempted_request_pays_the_same_penalties():
    params = SamplingParams(repetition_penalty=1.3, frequency_penalty=0.3, bad_words_token_ids=[[11, 3, 9]])
    rows = table(VOCABULARY)
    enter(rows, 0, params, PROMPT)
    generate(rows, 0, OUTPUTS)
    enter(rows, 3, params, PROMPT, OUTPUTS)
    both = changed(logits().repeat(2, 1), rows, [0, 3])
    assert torch.equal(both[0], both[1])


def test_where_masks_leave_nothing_the_first_allowed_token_is_taken():
    rows = table(VOCABULARY)
    both = {"allowed_token_ids": [8, 6], "bad_words_token_ids": [[6], [8]]}
    enter(rows, 0, SamplingParams(temperature=0, **both), [1])
    enter(rows, 1, SamplingParams(seed=1, **both), [1])
    enter(rows, 2, SamplingParams(seed=1, min_tokens=1, allowed_token_ids=[9, 2]), [1])
    assert sample(logits(3), rows, np.arange(3), np.zeros(3, np.int64)).tokens.tolist() == [6, 6, 2]


def test_many_bad_words_beside_a_long_one_take_memory_for_their_tokens_alone():
    many = [[token] for token in range(30_000)]
    words = BadWords([*many, [3] * 39_999 + [4], [5, 6], [7, 6]], 40_000, max_tokens=40_000)
    assert words.longest == 40_000
    assert set(words.forbidden(np.array([9, 5])).tolist()) == set(range(30_000))
    assert BadWords([[1, 2], [1] * 65], 200, max_tokens=64).longest == 2  # no text is as long


# --- cuts


def shares(given_logits: torch.Tensor, **params: Any) -> torch.Tensor:
    """What each token keeps, [rows, vocabulary]; a row adds up to 1."""
    rows = table(VOCABULARY, rows=len(given_logits))
    for row in range(len(given_logits)):
        enter(rows, row, SamplingParams(seed=0, **params), PROMPT)
    which, none = np.arange(len(given_logits)), np.zeros(len(given_logits), np.int64)
    ids, some, short = cut(Draws.of(given_logits.clone(), rows.sampling, which, none, which), VOCABULARY)
    assert not short.any()
    found = torch.zeros_like(given_logits).scatter(1, ids, some)
    return found / found.sum(-1, keepdim=True)


def by_transformers(given_logits: torch.Tensor, *warpers: Any) -> torch.Tensor:
    for warper in warpers:
        given_logits = warper(torch.zeros(len(given_logits), 1, dtype=torch.int64), given_logits)
    return given_logits.softmax(-1)


def assert_same_shares(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert torch.equal(found > 0, expected > 0)
    assert torch.allclose(found.float(), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("count", [1, 5, 64, 65, VOCABULARY])
def test_top_k_keeps_what_transformers_keeps(count: int):
    from transformers import TopKLogitsWarper

    assert_same_shares(shares(logits(50), top_k=count), by_transformers(logits(50), TopKLogitsWarper(count)))


@pytest.mark.parametrize("mass", [0.01, 0.3, 0.9, 0.999])
def test_top_p_keeps_what_transformers_keeps(mass: float):
    from transformers import TopPLogitsWarper

    assert_same_shares(shares(logits(50), top_p=mass), by_transformers(logits(50), TopPLogitsWarper(mass)))


@pytest.mark.parametrize("mass", [0.01, 0.3, 0.9, 0.999])
def test_a_token_is_known_to_be_kept_by_top_p_without_an_order(mass: float):
    from transformers import TopPLogitsWarper

    expected = by_transformers(logits(50), TopPLogitsWarper(mass)) > 0
    for token in range(VOCABULARY):
        found = in_mass(logits(50).softmax(-1), torch.full((50,), token), torch.full((50,), mass))
        assert torch.equal(found, expected[:, token])


@pytest.mark.parametrize("share", [0.001, 0.1, 0.9, 1.0])
def test_min_p_keeps_what_transformers_keeps(share: float):
    from transformers import MinPLogitsWarper

    assert_same_shares(shares(logits(50), min_p=share), by_transformers(logits(50), MinPLogitsWarper(share)))


def test_temperature_top_k_and_top_p_follow_each_other_as_in_transformers():
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    warpers = TemperatureLogitsWarper(0.7), TopKLogitsWarper(30), TopPLogitsWarper(0.8)
    found = shares(logits(50), temperature=0.7, top_k=30, top_p=0.8)
    assert_same_shares(found, by_transformers(logits(50), *warpers))


def test_min_p_comes_after_temperature_and_before_top_k_and_top_p():
    from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    warpers = TemperatureLogitsWarper(2.0), MinPLogitsWarper(0.1), TopKLogitsWarper(30), TopPLogitsWarper(0.8)
    found = shares(logits(50), temperature=2.0, min_p=0.1, top_k=30, top_p=0.8)
    assert_same_shares(found, by_transformers(logits(50), *warpers))


# --- parts


@settings(deadline=None)
@given(st.data())
def test_counts_are_those_of_the_tokens(data: st.DataObject):
    tokens = st.lists(st.integers(0, 9), max_size=12)
    counts, texts = TokenCounts(3, 40, 8), {}
    for row in range(3):
        prompt, outputs = data.draw(tokens), data.draw(tokens)
        counts.fill(row, np.array(prompt, np.int64), np.array(outputs, np.int64))
        texts[row] = prompt, outputs
    for _ in range(data.draw(st.integers(0, 5))):
        rows = np.array(sorted(data.draw(st.sets(st.integers(0, 2)))), np.int64)
        new = [data.draw(st.integers(0, 7)) for _ in rows]
        counts.append(rows, np.array(new, np.int64))
        for row, token in zip(rows.tolist(), new, strict=True):
            texts[row][1].append(token)
    found = counts.of(np.arange(3))
    columns = zip(found.owners.tolist(), found.token_ids.tolist(), found.generated.tolist(), strict=True)
    expected = [
        (row, token, outputs.count(token))
        for row, (prompt, outputs) in texts.items()
        for token in {*prompt, *outputs}
        if token < 8
    ]
    assert sorted(columns) == sorted(expected)


@given(
    sequences=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=6),
    outputs=st.lists(st.integers(0, 2), max_size=8),
)
def test_what_would_complete_a_bad_word_is_forbidden(sequences: list[list[int]], outputs: list[int]):
    words = BadWords(sequences, vocab_size=3)
    expected = {
        token for token in range(3) for sequence in sequences if [*outputs, token][-len(sequence) :] == sequence
    }
    assert set(words.forbidden(np.array(outputs, np.int64)).tolist()) == expected
