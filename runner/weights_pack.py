"""Linear layers with their weights in the layout that multiplies fastest on this CPU."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.nn import functional

onednn: Any = torch.ops.mkldnn


class Linear:
    """``x @ weight.T + bias`` for x of [tokens, inputs].

    Where torch has oneDNN, the weight is kept in oneDNN's blocked layout only. These are the
    operators that torch's own compiler emits for frozen weights; a float32 product of 1 to 32
    rows takes half to two thirds of the time of ``torch.nn.functional.linear``.

    Args:
        weight: [outputs, inputs].
        bias: [outputs] or None.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.bias = bias
        self.packed = can_pack(weight.dtype)
        self.weight: torch.Tensor = onednn._reorder_linear_weight(weight) if self.packed else weight.contiguous()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The product, [tokens, outputs]. ``x`` must be contiguous."""
        if self.packed:
            return onednn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return functional.linear(x, self.weight, self.bias)


@cache
def can_pack(dtype: torch.dtype) -> bool:
    """Whether oneDNN is there and computes in this type; the operators are tried, for they are not public."""
    try:
        if dtype == torch.bfloat16 and not onednn._is_mkldnn_bf16_supported():
            return False
        if dtype == torch.float16 and not onednn._is_mkldnn_fp16_supported():
            return False
        x, weight = torch.ones(2, 16, dtype=dtype), torch.ones(32, 16, dtype=dtype)
        y = onednn._linear_pointwise(x, onednn._reorder_linear_weight(weight), None, "none", [], "")
        return bool((y == 16).all())
    except (RuntimeError, AttributeError, TypeError):
        return False
