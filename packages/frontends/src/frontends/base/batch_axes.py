"""Which dim of each leaf of a batch holds the examples, as the user says it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from frontends.errors import BatchError

BatchAxes: TypeAlias = "int | Mapping[Any, BatchAxes] | Sequence[BatchAxes] | None"
"""For all leaves, or for those of each item of a container: the dim that holds the examples; None
if no dim does, so that all examples share the value. Items of a mapping that it lacks have 0."""


@dataclass(frozen=True, slots=True)
class BatchLeafShape:
    """A leaf of a batch, as far as it matters here."""

    name: str
    """As the user would write it."""

    keys: tuple[Any, ...]
    """Its place in the batch: keys of mappings, numbers in sequences, names of attributes."""

    shape: tuple[int, ...]


def axes_of(axes: BatchAxes, leaves: Sequence[BatchLeafShape]) -> list[int | None]:
    """For each leaf the dim that holds the examples; None for one that has no dims.

    Raises:
        BatchError: `axes` has another structure than the batch, or a leaf has no such dim.

    Examples:
        >>> leaf = BatchLeafShape("batch['x']", ("x",), (8, 4))
        >>> axes_of({"x": -1}, [leaf]), axes_of(None, [leaf])
        ([1], [None])
    """
    known = {()} | {leaf.keys[:n] for leaf in leaves for n in range(len(leaf.keys) + 1)}
    _check_keys(axes, (), known)
    return [_axis(axes, leaf) for leaf in leaves]


def _check_keys(axes: BatchAxes, at: tuple[Any, ...], known: set[tuple[Any, ...]]) -> None:
    if at not in known:
        raise BatchError(
            "batch_axes has the structure of the batch, or of its outer parts; it has an item at "
            f"{''.join(f'[{key!r}]' for key in at)}, where the batch has none"
        )
    items: Sequence[tuple[Any, BatchAxes]] = ()
    if isinstance(axes, Mapping):
        items = list(axes.items())
    elif isinstance(axes, Sequence) and not isinstance(axes, str):
        items = list(enumerate(axes))
    elif axes is not None and (not isinstance(axes, int) or isinstance(axes, bool)):
        raise BatchError(
            "batch_axes has the number of a dim for each leaf of the batch, or None for one that "
            f"all examples share; got {axes!r}"
        )
    for key, item in items:
        _check_keys(item, (*at, key), known)


def _axis(axes: BatchAxes, leaf: BatchLeafShape) -> int | None:
    for key in leaf.keys:
        if isinstance(axes, Mapping):
            axes = axes.get(key, 0)
        elif isinstance(axes, Sequence):
            axes = axes[key] if isinstance(key, int) and key < len(axes) else 0
    if axes is None or not leaf.shape:
        return None
    rank = len(leaf.shape)
    if not isinstance(axes, int) or not -rank <= axes < rank:
        raise BatchError(
            f"batch_axes names the dim of a leaf that holds the examples; {leaf.name} has shape "
            f"{leaf.shape}, and batch_axes {axes!r} for it"
        )
    return axes % rank
