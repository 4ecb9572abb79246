"""Keys and values of all tokens, in blocks that block tables point to (Kwon et al. 2023, arXiv 2309.06180)."""

from __future__ import annotations

import numpy as np
import torch

from .model_config import ModelConfig


def bytes_per_block(config: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """Memory that one block takes over all layers."""
    return 2 * config.num_layers * config.num_kv_heads * block_size * config.head_dim * dtype.itemsize


class PagedKV:
    """The KV cache: for each layer [blocks, K and V, kv heads, block size, head_dim].

    A block's tokens of one head lie together, so that a look-up through block tables copies
    4 KiB pieces (16 tokens, head_dim 64, float32) straight into the layout that attention
    multiplies. Block 0 is the null block, which pads block tables. Everything starts as zeros,
    since what a mask hides must still be finite; memory is taken when it is first written.

    Args:
        num_blocks: usable blocks, the null block not counted.
    """

    def __init__(self, config: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype) -> None:
        self.block_size = block_size
        self.kv_heads, self.head_dim = config.num_kv_heads, config.head_dim
        shape = (num_blocks + 1, 2 * self.kv_heads, block_size, self.head_dim)
        layers = [_zeros(shape, dtype) for _ in range(config.num_layers)]
        self._slots = [layer.view(-1, self.head_dim) for layer in layers]
        self._pieces = [layer.view(-1, block_size * self.head_dim) for layer in layers]
        self._heads = torch.arange(2 * self.kv_heads)

    def slots(self, blocks: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """Where tokens' keys and values go: int64 [tokens, 2 * kv_heads], keys first.

        Args:
            blocks, offsets: int64 [tokens], block id and place inside the block.
        """
        pieces = blocks.unsqueeze(1) * len(self._heads) + self._heads
        return pieces * self.block_size + offsets.unsqueeze(1)

    def write(self, layer: int, slots: torch.Tensor, heads: torch.Tensor) -> None:
        """Store keys and values, [tokens, 2 * kv_heads, head_dim], keys first."""
        self._slots[layer].index_put_((slots,), heads)

    def pieces(self, tables: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What ``read`` wants for the keys and for the values of block tables.

        Args:
            tables: int64 [sequences, blocks].

        Returns:
            two int64 [sequences * kv_heads * blocks].
        """
        first = tables.unsqueeze(1) * len(self._heads)
        keys = first + self._heads[: self.kv_heads].unsqueeze(1)
        return keys.flatten(), (keys + self.kv_heads).flatten()

    def read(self, layer: int, pieces: torch.Tensor, out: torch.Tensor) -> None:
        """Copy pieces together, into [pieces, block_size * head_dim]."""
        torch.index_select(self._pieces[layer], 0, pieces, out=out)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Zeros that take no memory until they are written: torch's own would touch every page at once."""
    return torch.from_numpy(np.zeros((*shape[:-1], shape[-1] * dtype.itemsize), np.uint8)).view(dtype)
