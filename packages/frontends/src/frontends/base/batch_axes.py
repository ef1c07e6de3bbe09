"""Which dim of each leaf of a batch holds the examples, as the user says it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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


def copied(axes: BatchAxes) -> BatchAxes:
    """A copy that later changes of a user's containers do not reach.

    Raises:
        BatchError: It holds something else than numbers, None and containers.
    """
    if isinstance(axes, tuple) and hasattr(axes, "_asdict"):
        axes = axes._asdict()
    if isinstance(axes, Mapping):
        return {key: copied(item) for key, item in axes.items()}
    if isinstance(axes, Sequence) and not isinstance(axes, str):
        return tuple(map(copied, axes))
    if axes is not None and (not isinstance(axes, int) or isinstance(axes, bool)):
        raise BatchError(
            "batch_axes has the number of a dim for each leaf of the batch, or None for one that "
            f"all examples share; got {axes!r}: give a number such as 1, or a dict of such numbers"
        )
    return axes


def axes_of(axes: BatchAxes, leaves: Sequence[BatchLeafShape]) -> list[int | None]:
    """For each leaf the dim that holds the examples; None for one that has no dims.

    Args:
        axes: What `copied` returned.
        leaves: The leaves of the batch.

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


def check_leading(axes: Mapping[str, int]) -> None:
    """Check that examples lie along the leading dim, where batches are made of them.

    Args:
        axes: By leaf of a batch with examples in another dim: which.

    Raises:
        BatchError: There is such a leaf.
    """
    for name, axis in axes.items():
        raise BatchError(
            "batches are made of examples along their leading dim; "
            f"{name} has them in dim {axis}: make the batches yourself, whole in every process"
        )


def _check_keys(axes: BatchAxes, at: tuple[Any, ...], known: set[tuple[Any, ...]]) -> None:
    if at not in known:
        raise BatchError(
            "batch_axes has the structure of the batch, or of its outer parts; it has an item at "
            f"{''.join(f'[{key!r}]' for key in at)}, where the batch has none: leave it out, or "
            "name it as the batch does"
        )
    items: Iterable[tuple[Any, BatchAxes]] = ()
    if isinstance(axes, Mapping):
        items = axes.items()
    elif isinstance(axes, Sequence):
        items = enumerate(axes)
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
            f"{leaf.shape}, and batch_axes {axes!r} for it: give one from {-rank} to {rank - 1}"
        )
    return axes % rank
