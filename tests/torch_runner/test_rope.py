"""Rotations agree with the formulas of their papers."""

from __future__ import annotations

import pytest
import torch
from dense_reference import CONFIGS, frequency

from callboard.runner.model_config import ModelConfig
from callboard.runner.rope import inverse_frequencies, pair_up, rotation_table


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_frequencies_follow_the_formula(config: ModelConfig, local: bool) -> None:
    expected = torch.tensor([frequency(config, i, local) for i in range(config.head_dim // 2)])
    assert torch.allclose(inverse_frequencies(config, local=local), expected, rtol=1e-5)


def test_llama3_scaling_keeps_fast_pairs_and_slows_the_others_down() -> None:
    scaled, plain = inverse_frequencies(CONFIGS["llama3 scaling"]), inverse_frequencies(CONFIGS["llama"])
    shares = (scaled / plain).tolist()
    assert shares[0] < 1  # one turn in 6.28 tokens, between the two limits for a length of 16
    assert shares[-1] == pytest.approx(1 / 8)


def test_a_table_has_a_rotation_for_every_position() -> None:
    table = rotation_table(CONFIGS["llama"], 5)
    assert table.shape == (5, 1, 4)
    assert torch.allclose(table.abs(), torch.ones(5, 1, 4))
    assert (table[0] == 1).all()


def test_pairs_become_neighbours_within_their_head() -> None:
    assert pair_up(torch.arange(8), 4).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert pair_up(torch.arange(4).unsqueeze(1), 4).squeeze(1).tolist() == [0, 2, 1, 3]
