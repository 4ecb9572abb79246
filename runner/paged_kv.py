"""Keys and values of all tokens, in blocks that block tables point to (Kwon et al. 2023, arXiv 2309.06180)."""

from __future__ import annotations

import numpy as np
import torch

from .kv_layout import KVLayout
from .model_config import ModelConfig


def bytes_per_block(config: ModelConfig, layout: KVLayout, block_size: int) -> int:
    """Memory that one block takes over all its layers; the KV cache is float32."""
    return 2 * layout.num_slots * config.num_kv_heads * block_size * config.head_dim * torch.float32.itemsize


class PagedKV:
    """The KV cache: for each layer of a block float32 [blocks, keys and values of the kv heads, block size, head_dim].

    Float32 whatever the weights are: the CPU attends in it, and a conversion a step costs more
    than the memory is worth. The tokens of a block lie together for each head ("a piece").
    Block 0 is the null block, which pads block tables. Everything starts as zeros, since what
    a mask hides must still be finite; memory is taken when it is first written.

    Args:
        layout: the place of each of the model's layers; "layer" below is a layer of a block.
        num_blocks: usable blocks, the null block not counted.

    Attributes:
        slots: for each layer float32 [slots, head_dim], the same memory.
    """

    def __init__(self, config: ModelConfig, layout: KVLayout, num_blocks: int, block_size: int) -> None:
        self.layout = layout
        self.block_size = block_size
        self.kv_heads, self.head_dim = config.num_kv_heads, config.head_dim
        shape = (num_blocks + 1, 2 * self.kv_heads, block_size, self.head_dim)
        # By numpy, whose zeros take no memory until they are written; torch's touch every page.
        layers = [torch.from_numpy(np.zeros(shape, np.float32)) for _ in range(layout.num_slots)]
        self.slots = [layer.view(-1, self.head_dim) for layer in layers]
        self._pieces = [layer.view(-1, block_size * self.head_dim) for layer in layers]
        self._heads = torch.arange(2 * self.kv_heads)

    def token_slots(self, blocks: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """Where tokens' keys and values are: int64 [..., 2 * kv_heads, tokens], keys first.

        Args:
            blocks, offsets: int64 [..., tokens], block id and place inside the block.
        """
        pieces = blocks.unsqueeze(-2) * len(self._heads) + self._heads.unsqueeze(-1)
        return pieces * self.block_size + offsets.unsqueeze(-2)

    def write(self, layer: int, slots: torch.Tensor, heads: torch.Tensor) -> None:
        """Store keys and values.

        Args:
            slots: int64 [tokens, 2 * kv_heads].
            heads: float32 [tokens, 2 * kv_heads, head_dim], keys first.
        """
        self.slots[layer].index_put_((slots,), heads)

    def table_pieces(self, table: torch.Tensor) -> torch.Tensor:
        """The pieces of one block table, int64 [blocks]: int64 [2 * kv_heads * blocks], head by head, keys first."""
        return (table * len(self._heads) + self._heads.unsqueeze(1)).flatten()

    def read(self, layer: int, pieces: torch.Tensor, out: torch.Tensor) -> None:
        """Copy pieces together, into float32 [pieces, block_size * head_dim]."""
        torch.index_select(self._pieces[layer], 0, pieces, out=out)
