"""Chosen tokens follow the distribution asked for, and nothing but the request's own key."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch

from callboard.runner.draws import BLOCK, LOOKS, look_up
from callboard.runner.random_numbers import keys_of, uniform
from callboard.runner.row_tables import RowTables
from callboard.runner.sampler import sample
from callboard.scheduler import NewRequestData, SamplingParams

VOCABULARY = 12
CANDIDATES = LOOKS[-1]
DRAWS = 20_000
# the 99.99 % points of chi-square by degrees of freedom: a true distribution fails once in 10,000 seeds
CHI_SQUARE_LIMIT = {1: 15.14, 2: 18.42, 4: 23.51, 11: 37.37}


def tables(*params: SamplingParams, vocabulary: int = VOCABULARY, random_base: int = 1) -> RowTables:
    rows = RowTables(
        rows=max(len(params), 1),
        max_model_len=8,
        block_size=4,
        vocab_size=vocabulary,
        eos_token_ids=(2, 9),
        random_base=random_base,
    )
    for row, one in enumerate(params):
        rows.fill(request(f"r{row}", row, one))
    return rows


def request(req_id: str, row: int, params: SamplingParams) -> NewRequestData:
    return NewRequestData(
        req_id=req_id,
        row=row,
        token_ids=[1],
        num_prompt_tokens=1,
        block_ids=[1],
        num_computed_tokens=0,
        sampling_params=params,
    )


def draw(
    logits: torch.Tensor, params: SamplingParams, positions: range = range(DRAWS), req_id: str = "r0"
) -> np.ndarray:
    """The tokens of one request at many positions, each with these logits."""
    rows = tables(params, vocabulary=len(logits))
    rows.fill(request(req_id, 0, params))
    count = len(positions)
    return sample(logits.repeat(count, 1), rows, np.zeros(count, np.int64), np.array(positions, np.int64)).tokens


def assert_distributed(tokens: np.ndarray, expected: torch.Tensor) -> None:
    """Chi-square test of counts; what has no probability must not occur."""
    counts, wanted = np.bincount(tokens, minlength=len(expected)), expected.double().numpy() * len(tokens)
    assert not counts[wanted == 0].any()
    counts, wanted = counts[wanted > 0], wanted[wanted > 0]
    assert ((counts - wanted) ** 2 / wanted).sum() < CHI_SQUARE_LIMIT[len(wanted) - 1]


LOGITS = torch.tensor([0.3, -1.0, 2.0, 1.9, 0.0, -2.0, 1.0, 0.5, -0.5, 1.5, 0.1, -0.2])


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_tokens_are_drawn_by_their_probability(temperature: float) -> None:
    tokens = draw(LOGITS, SamplingParams(temperature=temperature, seed=7))
    assert_distributed(tokens, torch.softmax(LOGITS / temperature, -1))


def test_top_k_keeps_the_likeliest_tokens() -> None:
    tokens = draw(LOGITS, SamplingParams(top_k=3, seed=7))
    assert_distributed(tokens, torch.softmax(LOGITS.masked_fill(LOGITS < 1.5, -torch.inf), -1))


def test_top_p_keeps_the_fewest_tokens_that_hold_the_mass() -> None:
    logits = torch.tensor([0.1, 0.4, 0.05, 0.3, 0.15]).log()
    tokens = draw(logits, SamplingParams(top_p=0.75, seed=7))
    assert_distributed(tokens, torch.tensor([0.0, 0.4, 0.0, 0.3, 0.15]) / 0.85)


def test_min_p_keeps_tokens_by_their_share_of_the_likeliest() -> None:
    logits = torch.tensor([0.1, 0.4, 0.05, 0.3, 0.15]).log()
    tokens = draw(logits, SamplingParams(min_p=0.3, seed=7))
    assert_distributed(tokens, torch.tensor([0.0, 0.4, 0.0, 0.3, 0.15]) / 0.85)


def test_all_cuts_together_leave_the_distribution_that_their_order_says() -> None:
    logits = torch.tensor([0.1, 0.4, 0.05, 0.3, 0.15]).log()
    params = SamplingParams(temperature=0.5, min_p=0.05, top_k=3, top_p=0.9, seed=7)
    # Squares of 0.4, 0.3 and 0.15 are 16 : 9 : 2.25; the first two hold 0.917 of these.
    assert_distributed(draw(logits, params), torch.tensor([0.0, 16, 0.0, 9, 0.0]) / 25)


def test_top_k_comes_before_top_p() -> None:
    logits = torch.tensor([0.1, 0.4, 0.05, 0.3, 0.15]).log()
    # Of the two likeliest the first holds 4/7 of the mass: enough for 0.5, while 0.4 of all would not be.
    assert set(draw(logits, SamplingParams(top_k=2, top_p=0.5, seed=7), range(200)).tolist()) == {1}
    assert set(draw(logits, SamplingParams(top_p=0.5, seed=7), range(200)).tolist()) == {1, 3}


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"top_k": 1}, {"top_p": 1e-9}, {"temperature": 1e-6}])
def test_the_narrowest_settings_take_the_likeliest_token(params: dict[str, float]) -> None:
    assert set(draw(LOGITS, SamplingParams(seed=3, **params), range(100)).tolist()) == {2}


@pytest.mark.parametrize("params", [{"top_k": VOCABULARY}, {"top_k": 10**6}, {"top_k": -1}, {"top_p": 1.0}])
def test_the_widest_settings_cut_nothing(params: dict[str, float]) -> None:
    plain = draw(LOGITS, SamplingParams(seed=3), range(500))
    assert_distributed(draw(LOGITS, SamplingParams(seed=3, **params)), torch.softmax(LOGITS, -1))
    assert len(set(plain.tolist())) > 8


def nearly_flat(vocabulary: int) -> torch.Tensor:
    """The likeliest come first, by a difference of 1 % from the first to the last."""
    return torch.linspace(0.01, 0, vocabulary)


def test_a_flat_distribution_over_a_large_vocabulary_is_not_cut_short() -> None:
    tokens = draw(nearly_flat(4 * CANDIDATES), SamplingParams(top_p=0.9, seed=1), range(1000))
    assert CANDIDATES * 4 * 0.85 < tokens.max() < CANDIDATES * 4 * 0.9 + 1


def test_a_top_k_beyond_the_first_look_is_kept_to() -> None:
    logits = torch.zeros(4 * CANDIDATES)
    logits[: 2 * CANDIDATES] += 1
    tokens = draw(logits, SamplingParams(top_k=2 * CANDIDATES, seed=1), range(1000))
    assert CANDIDATES * 1.9 < tokens.max() < 2 * CANDIDATES
    halved = draw(logits, SamplingParams(top_k=2 * CANDIDATES, top_p=0.25, seed=1), range(1000))
    assert len(set(halved.tolist())) <= CANDIDATES // 2 + 1


def test_rows_with_and_without_cuts_are_drawn_side_by_side() -> None:
    settings = [SamplingParams(seed=5), SamplingParams(seed=5, top_k=2), SamplingParams(seed=5, top_p=0.3)]
    rows, alone = tables(*settings), [draw(LOGITS, one, range(200)).tolist() for one in settings]
    together = [sample(LOGITS.repeat(3, 1), rows, np.arange(3), np.full(3, i)).tokens.tolist() for i in range(200)]
    assert [list(tokens) for tokens in zip(*together, strict=True)] == alone


def test_a_peaked_distribution_over_a_large_vocabulary_needs_its_likeliest_tokens_only() -> None:
    logits = torch.full((4 * CANDIDATES,), -20.0)
    logits[[5, 4000, 17]] = torch.tensor([0.5, 0.3, 0.2]).log()
    tokens = draw(logits, SamplingParams(top_p=0.75, seed=1), range(2000))
    assert set(tokens.tolist()) == {5, 4000}
    assert_distributed((tokens == 4000).astype(np.int64), torch.tensor([0.625, 0.375]))


def test_of_equally_likely_tokens_greedy_takes_the_lowest_id() -> None:
    assert draw(torch.zeros(VOCABULARY), SamplingParams(temperature=0), range(1)).tolist() == [0]


def test_a_seeded_request_chooses_the_same_whatever_runs_beside_it() -> None:
    seeded = SamplingParams(seed=42, top_p=0.9)
    beside = [SamplingParams(), SamplingParams(temperature=0), SamplingParams(seed=42, top_k=5, temperature=2.0)]
    alone = draw(LOGITS, seeded, range(50))
    rows = tables(*beside, seeded)
    together = [
        sample(LOGITS.repeat(4, 1), rows, np.array([2, 0, 3, 1]), np.array([i + 5, i, i, 0])).tokens.tolist()
        for i in range(50)
    ]
    assert [tokens[2] for tokens in together] == alone.tolist()
    assert {tokens[3] for tokens in together} == {2}


def test_different_seeds_choose_differently() -> None:
    texts = {tuple(draw(LOGITS, SamplingParams(seed=seed), range(30))) for seed in (0, 1, -1, 2**62, -(2**63))}
    assert len(texts) == 5


def test_a_request_keeps_its_choices_over_a_preemption_into_another_row() -> None:
    rows, positions = tables(SamplingParams(), SamplingParams(seed=8), SamplingParams()), np.arange(2, 7)
    params = SamplingParams(seed=7, top_p=0.9)

    def choices(row: int) -> list[int]:
        return sample(LOGITS.repeat(5, 1), rows, np.full(5, row), positions).tokens.tolist()

    rows.fill(request("x", 0, params))
    first = choices(0)
    rows.fill(request("y", 0, SamplingParams(seed=9)))  # somebody else gets its row
    resumed = msgspec.structs.replace(request("x", 2, params), token_ids=[1, 4, 5], resumed=True)
    rows.fill(resumed)
    assert choices(2) == first
    assert choices(0) != first


def test_requests_without_a_seed_differ_from_each_other_and_from_run_to_run() -> None:
    seeds = [tables(SamplingParams(), SamplingParams(), random_base=base).sampling.seed.tolist() for base in (1, 2)]
    assert len({seed for pair in seeds for seed in pair}) == 4


def test_end_and_stop_tokens_wait_for_the_minimum() -> None:
    logits = torch.zeros(VOCABULARY)
    logits[[9, 5, 2, 7]] = torch.tensor([4.0, 3.0, 2.0, 1.0])
    params = SamplingParams(temperature=0, min_tokens=3, max_tokens=5, stop_token_ids=[5])
    assert draw(logits, params, range(5)).tolist() == [7, 7, 7, 9, 9]
    random = draw(logits, SamplingParams(min_tokens=3, stop_token_ids=[5], seed=1), range(3))
    assert not set(random.tolist()) & {2, 5, 9}


def test_ignored_ends_are_not_masked_and_neither_is_the_last_token() -> None:
    logits = torch.zeros(VOCABULARY)
    params = SamplingParams(temperature=0, min_tokens=4, ignore_eos=True)
    for best in (2, VOCABULARY - 1):
        logits[best] += 5 + best
        assert draw(logits, params, range(2)).tolist() == [best, best]


def test_stop_tokens_beyond_the_vocabulary_change_nothing() -> None:
    params = SamplingParams(temperature=0, min_tokens=4, stop_token_ids=[VOCABULARY, 2**30])
    assert draw(LOGITS, params, range(2)).tolist() == [3, 3]  # 2, the likeliest, ends a text


def test_random_numbers_are_even_over_positions_seeds_and_attempts() -> None:
    seeds, counter = np.arange(DRAWS, dtype=np.uint64), np.arange(DRAWS)
    one = keys_of(np.full(1, 7, np.uint64), [3])
    for numbers in (
        uniform(keys_of(seeds, np.zeros(DRAWS, np.int64))),
        uniform(keys_of(seeds * 0, counter)),
        np.concatenate([uniform(one, number) for number in range(DRAWS)]),
    ):
        assert_distributed((numbers * 12).astype(np.int64), torch.full((12,), 1 / 12))
        assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 0.03


def test_random_numbers_of_attempts_have_nothing_in_common() -> None:
    keys = keys_of(np.full(DRAWS, 3, np.uint64), np.arange(DRAWS))
    first, second = uniform(keys, 0), uniform(keys, 1)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03
    assert abs(np.corrcoef(first[1:], second[:-1])[0, 1]) < 0.03


@pytest.mark.parametrize("columns", [1, 5, 4 * BLOCK, 4 * BLOCK + 1, 5 * BLOCK, 20 * BLOCK + 77])
def test_a_number_is_looked_up_where_the_running_sum_passes_it(columns: int) -> None:
    weights = torch.rand(200, columns, generator=torch.Generator().manual_seed(columns)) + 0.01
    weights[:, 1::3] = 0
    weights[:50, columns // 2 + 1 :] = 0
    numbers = torch.linspace(0, 1 - 2**-53, 200, dtype=torch.float64)
    found = look_up(weights, numbers)
    sums = weights.double().cumsum(-1)
    own = found.unsqueeze(1)
    targets, after = numbers * sums[:, -1], sums.gather(1, own).squeeze(1)
    before = after - weights.double().gather(1, own).squeeze(1)
    assert (weights.gather(1, own) > 0).all()
    assert (before - 1e-5 * sums[:, -1] <= targets).all()
    assert (targets <= after + 1e-5 * sums[:, -1]).all()


@pytest.mark.parametrize("mass", [0.03, 0.2, 0.5, 0.9])
def test_of_a_flat_distribution_top_p_draws_each_kept_token_alike(mass: float) -> None:
    logits = nearly_flat(5 * CANDIDATES)
    shares = logits.double().softmax(-1)
    kept = int((shares.cumsum(-1) - shares < mass).sum())
    tokens = draw(logits, SamplingParams(top_p=mass, seed=7))
    assert tokens.max() <= kept  # one more than the last: the sums are of float32
    twelfth = torch.from_numpy(np.minimum(np.arange(kept) * 12 // kept, 11))
    expected = torch.zeros(12, dtype=torch.float64).scatter_add(0, twelfth, shares[:kept] / shares[:kept].sum())
    assert_distributed(np.minimum(tokens * 12 // kept, 11), expected)
