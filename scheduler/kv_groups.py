"""Groups of layers that share a block table, since they keep the keys and values of the same tokens."""

from __future__ import annotations

import msgspec


class KVGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Layers with one block table.

    Args:
        window: how many tokens a token sees in these layers, itself included; None: all before it.
        num_layers: layers in the group; a block has room for as many as the largest group of the model has.
    """

    window: int | None = None
    num_layers: int = 1


ONE_GROUP = (KVGroup(),)
