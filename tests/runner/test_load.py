"""Made-up traffic has the moments it was asked for, and the same seed gives the same load."""

import math
from collections import Counter
from itertools import groupby, islice, pairwise
from typing import Any

import pytest

from callboard import ConfigError
from callboard.runner import Load, LoadRequest
from callboard.runner.load import SHAREGPT_OUTPUTS, SHAREGPT_PROMPTS, Lengths

SHORT = Lengths(mean=4, std=0)


def first(load: Load, count: int) -> list[LoadRequest]:
    return list(islice(load, count))


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def gaps(load: Load, count: int) -> list[float]:
    times = [request.arrival for request in first(load, count)]
    return [after - before for before, after in pairwise(times)]


def test_the_same_seed_gives_the_same_load_and_another_seed_another():
    load = Load(rate=5.0, burst=3.0, num_prefixes=2, prefix_len=8)
    assert first(load, 50) == first(load, 50)
    assert first(load, 50) != first(Load(rate=5.0, burst=3.0, num_prefixes=2, prefix_len=8, seed=1), 50)


def test_poisson_arrivals_have_the_mean_and_the_spread_of_an_exponential():
    waits = gaps(Load(rate=20.0, prompts=SHORT, outputs=SHORT), 20_000)
    spread = math.sqrt(mean([(wait - 0.05) ** 2 for wait in waits]))
    assert mean(waits) == pytest.approx(0.05, rel=0.05)
    assert spread == pytest.approx(0.05, rel=0.05)


def test_bursts_arrive_together_and_keep_the_rate():
    requests = first(Load(rate=20.0, burst=8.0, prompts=SHORT, outputs=SHORT), 20_000)
    groups = [len(list(group)) for _, group in groupby(requests, key=lambda request: request.arrival)]
    assert mean([float(size) for size in groups]) == pytest.approx(8.0, rel=0.1)
    assert len(requests) / requests[-1].arrival == pytest.approx(20.0, rel=0.1)


def test_without_a_rate_all_requests_arrive_at_once():
    assert {request.arrival for request in first(Load(prompts=SHORT, outputs=SHORT), 10)} == {0.0}


def test_requests_share_prefixes_the_first_most_often():
    load = Load(num_prefixes=4, prefix_len=16, prompts=SHORT, outputs=SHORT)
    counts = Counter(tuple(request.prompt_token_ids[:16]) for request in first(load, 4000))
    assert len(counts) == 4
    most, *_, least = sorted(counts.values(), reverse=True)
    assert most / least == pytest.approx(4.0, rel=0.3)  # weights 1, 1/2, 1/3, 1/4


@pytest.mark.parametrize("lengths", [SHAREGPT_PROMPTS, SHAREGPT_OUTPUTS])
def test_the_conversation_mix_has_its_published_mean_but_for_the_cut_tail(lengths: Lengths):
    requests = first(Load(prompts=lengths, outputs=lengths), 8000)
    drawn = [float(request.max_tokens) for request in requests]
    assert 0.85 * lengths.mean < mean(drawn) < 1.02 * lengths.mean
    assert max(drawn) == lengths.most  # the tail is heavy enough to meet the cut


def test_token_ids_are_below_the_vocabulary():
    requests = first(Load(vocab_size=7, num_prefixes=1, prefix_len=3), 50)
    assert {token for request in requests for token in request.prompt_token_ids} == set(range(7))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rate": 0.0}, r"rate is 0\.0, needed is a number above 0"),
        ({"burst": 0.5}, r"burst is 0\.5, needed is a finite number of at least 1"),
        ({"prefix_skew": math.nan}, "prefix_skew is nan"),
        ({"num_prefixes": -1}, "num_prefixes is -1, the least is 0"),
        ({"vocab_size": 0}, "vocab_size is 0, the least is 1"),
    ],
)
def test_a_load_that_cannot_be_is_refused_by_name(wrong: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=f"^{message}"):
        Load(**wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"mean": 0.0, "std": 1.0}, r"mean is 0\.0, needed is a finite number above 0"),
        ({"mean": 5.0, "std": -1.0}, r"std is -1\.0"),
        ({"mean": 5.0, "std": 1.0, "least": 9, "most": 8}, "most is 8, the least is 9"),
    ],
)
def test_lengths_that_cannot_be_are_refused_by_name(wrong: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=f"^{message}"):
        Lengths(**wrong)
