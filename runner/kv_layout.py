"""Which layer of a model keeps its keys and values in which group, and where inside a block."""

from __future__ import annotations

import msgspec

from ..scheduler.errors import BooksError
from ..scheduler.kv_groups import KVGroup

_WASTE = 1.25  # a kind with up to so many times the layers of the smallest makes longer groups, not one group more


class Place(msgspec.Struct, frozen=True):
    """Where a layer's keys and values are: layer ``slot`` of the blocks in the tables of ``group``."""

    group: int
    slot: int


class KVLayout(msgspec.Struct, frozen=True):
    """The groups of a model, and the place of each of its layers."""

    groups: tuple[KVGroup, ...]
    places: tuple[Place, ...]

    @property
    def num_slots(self) -> int:
        """Layers that a block has room for."""
        return max(group.num_layers for group in self.groups)


def layout_of(windows: tuple[int | None, ...], groups: tuple[KVGroup, ...]) -> KVLayout:
    """The layout with these groups: with a single one all layers share its table, whatever they see.

    Raises:
        BooksError: the groups are others than those of ``group_layers``.
    """
    if len(groups) == 1:
        return one_table(len(windows))
    layout = group_layers(windows)
    if groups != layout.groups:
        raise BooksError(f"{len(groups)} groups of layers are planned for, the model has {len(layout.groups)}")
    return layout


def one_table(num_layers: int) -> KVLayout:
    """All layers in one group, which keeps all tokens."""
    return KVLayout((KVGroup(num_layers=num_layers),), tuple(Place(0, layer) for layer in range(num_layers)))


def group_layers(windows: tuple[int | None, ...]) -> KVLayout:
    """Groups of layers with the same window, all of the same size but for the last of a kind.

    The blocks of all groups come from one pool, so they have one size: as many layers as the
    kind with the fewest has. Layers without a window come first.

    Args:
        windows: for each layer.
    """
    kinds = sorted(dict.fromkeys(windows), key=lambda window: window is not None)
    layers = {kind: [i for i, window in enumerate(windows) if window == kind] for kind in kinds}
    counts = [len(members) for members in layers.values()]
    size = max(counts) if max(counts) < _WASTE * min(counts) else min(counts)
    groups: list[KVGroup] = []
    places: dict[int, Place] = {}
    for kind, members in layers.items():
        for at in range(0, len(members), size):
            part = members[at : at + size]
            places |= {layer: Place(len(groups), slot) for slot, layer in enumerate(part)}
            groups.append(KVGroup(window=kind, num_layers=len(part)))
    return KVLayout(tuple(groups), tuple(places[layer] for layer in range(len(windows))))
