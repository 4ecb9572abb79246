"""Rotary position embedding (Su et al. 2021, "RoFormer", arXiv 2104.09864), with the scalings of long-context models.

The rotation of a pair of elements is a multiplication by a complex number. The rows of Q and K are reordered once at
load, so that the elements of a pair are neighbours and a whole layer is rotated by one operation in place; scores
do not change, since Q and K are reordered alike.
"""

from __future__ import annotations

import math

import torch

from .model_config import ModelConfig, RopeScaling


def rotation_table(config: ModelConfig, length: int, *, local: bool = False) -> torch.Tensor:
    """Rotations of every position: complex64 [length, 1, head_dim / 2]."""
    angles = torch.outer(torch.arange(length).float(), inverse_frequencies(config, local=local))
    return torch.complex(angles.cos(), angles.sin()).unsqueeze(1)


def inverse_frequencies(config: ModelConfig, *, local: bool = False) -> torch.Tensor:
    """Radians per position of each pair, scaling applied: float32 [head_dim / 2].

    Args:
        local: of layers with a window, whose base may be their own; they are not scaled then.
    """
    exponents = torch.arange(0, config.head_dim, 2).float() / config.head_dim
    if local and config.rope_local_theta is not None:
        return 1.0 / config.rope_local_theta**exponents
    plain = 1.0 / config.rope_theta**exponents
    return plain if config.rope_scaling is None else _scaled(plain, config.rope_scaling)


def _scaled(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    # Share of the unscaled frequency: 1 for those that turn often over the trained length, 0 for those that hardly do.
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    keep = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - keep) * frequencies / scaling.factor + keep * frequencies


def pair_up(rows: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Reorder rows so that those of a rotated pair are neighbours.

    Args:
        rows: [heads * head_dim, ...]; element i of a head forms a pair with element i + head_dim / 2.
    """
    halves = rows.unflatten(0, (-1, 2, head_dim // 2))
    return halves.transpose(1, 2).reshape(rows.shape)


def rotate_(heads: torch.Tensor, rotations: torch.Tensor) -> None:
    """Rotate heads in place.

    Args:
        heads: float32 [tokens, heads, head_dim], pairs as neighbours.
        rotations: complex64 [tokens, 1, head_dim / 2].
    """
    torch.view_as_complex(heads.unflatten(-1, (-1, 2))).mul_(rotations)
