"""`on_mesh`: a layout written with the axes of another mesh over the same devices.

Each device has two numbers: the index of the part of a dim that it holds, and its place in the
device list of the other mesh. The other mesh can express the layout if the part index is a
mixed-radix rearrangement of the place: if the place has *digits* (parts of the mesh's axes) some of
which, in some order, are the digits of the part index. With 8 devices in the order 0 4 1 5 2 6 3 7
on an axis `a`, the layout `S0` of the same devices in rising order is `S(0:(4)2)(0:(1)4)` on `a`:

    place in `a`    0  1  2  3  4  5  6  7        part = place % 2 * 4 + place // 2
    part            0  4  1  5  2  6  3  7
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shardspec.base.axis import Axis, Entry, Split, SubAxis, index, pre_size
from shardspec.base.chunking import Chunking, all_sizes
from shardspec.base.partial import Partial
from shardspec.errors import LayoutError
from shardspec.layout.layout import Layout
from shardspec.layout.mesh import Mesh
from shardspec.layout.spec import Spec, sharding_axes

Ints = NDArray[np.int64]

Digit = tuple[int, int]
"""Of a mixed-radix number: how many values the digit takes, and the weight of its value."""


def on_mesh(layout: Layout, mesh: Mesh) -> Layout:
    """The same layout, written with axes and parts of axes of another mesh.

    Every device holds what it held before. An uneven dim that is cut level by level gets explicit
    sizes if the new levels would cut it differently. Takes time linear in the number of devices,
    unless the meshes differ only in the names of their axes.

    Args:
        layout: The layout to rewrite.
        mesh: A mesh of the same devices, in any order and shape.

    Raises:
        LayoutError: the mesh has other devices, or no parts of its axes can express the layout.

    Examples:
        >>> layout = Layout((16, 4), Mesh((2, 4), ("x", "y")), Spec.parse("S10R"))
        >>> str(on_mesh(layout, Mesh((8,), ("a",))).spec)
        'S(0:(2)4)(0:(1)2)R'
        >>> str(on_mesh(layout, Mesh((4, 2), ("y", "x"), (0, 4, 1, 5, 2, 6, 3, 7))).spec)
        'S01R'
        >>> layout = Layout((6,), Mesh((2, 3), ("x", "y")), Spec.parse("S1"))
        >>> on_mesh(layout, Mesh((3, 2), ("y", "x")))
        Traceback (most recent call last):
        shardspec.errors.LayoutError: the mesh has no parts of axes that say how dim 0 is \
sharded; got (6,) as S1 on (2, 3) for Mesh((3, 2), ('y', 'x'))
    """
    if (layout.mesh.shape, layout.mesh.device_ids) == (mesh.shape, mesh.device_ids):
        return Layout(layout.shape, mesh, layout.spec, layout.chunking)
    places = _places(layout, mesh)
    dims = []
    for dim, entries in enumerate(layout.spec.dims):
        rewritten = _entries(layout.mesh, entries, places, mesh)
        if rewritten is None:
            raise LayoutError(
                "the mesh has no parts of axes that say how "
                f"dim {dim} is sharded; got {layout} for {mesh}"
            )
        dims.append(rewritten)
    sharding = [entry for entries in dims for entry in entries if not isinstance(entry, Split)]
    partial = _partial(layout, places, sharding, mesh)
    if partial is None:
        raise LayoutError(
            "the mesh has no parts of axes that say which partial results combine, in their "
            f"order; got {layout} for {mesh}"
        )
    spec = Spec(tuple(dims), tuple(partial))
    cuts = zip(
        layout.shape, layout.rules, layout.cuts, Layout(layout.shape, mesh, spec).cuts, strict=True
    )
    return Layout(layout.shape, mesh, spec, tuple(itertools.starmap(_chunking, cuts)))


def digits(numbers: Ints) -> list[Digit] | None:
    """Mixed-radix digits of the index `i`, minor to major, whose weighted sum is `numbers[i]`.

    None if there are no such digits. There is at most one such list in which no digit continues the
    one before it.

    Examples:
        >>> digits(np.array([0, 4, 1, 5, 2, 6, 3, 7]))
        [(2, 4), (4, 1)]
        >>> digits(np.array([0, 0, 0, 1, 1, 1]))
        [(3, 0), (2, 1)]
        >>> digits(np.array([0, 2, 1])) is None
        True
    """
    of_index: list[Digit] = []
    rebuilt = np.zeros(1, np.int64)
    while len(rebuilt) < len(numbers):
        leading = numbers[:: len(rebuilt)]
        weight = int(leading[1])
        differs = np.flatnonzero(leading != np.arange(len(leading)) * weight)
        size = int(differs[0]) if len(differs) else len(leading)
        if not size or len(numbers) % (len(rebuilt) * size):
            return None
        rebuilt = (np.arange(size)[:, None] * weight + rebuilt).reshape(-1)
        of_index.append((size, weight))
    return of_index if np.array_equal(rebuilt, numbers) else None


def axes_at(mesh: Mesh, minor: int, size: int) -> list[Axis] | None:
    """The parts of axes that make up one digit of a device's place, major to minor.

    Args:
        mesh: The place of a device is its index in this mesh's list of devices.
        minor: Number of consecutive places with the same value of the digit.
        size: Number of values of the digit.

    Returns:
        None if the digit begins or ends where no part of an axis can.

    Examples:
        >>> axes_at(Mesh((2, 6), ("x", "y")), 3, 4)
        [0, SubAxis(axis=1, pre=1, size=2)]
        >>> axes_at(Mesh((2, 6), ("x", "y")), 1, 4) is None
        True
    """
    parts: list[Axis] = []
    end = mesh.size
    for axis, length in enumerate(mesh.shape):
        start = end // length
        low, high = max(minor, start), min(minor * size, end)
        if low < high:
            if low % start or high % low or end % high or low % minor or minor * size % high:
                return None
            parts.append(axis if high // low == length else SubAxis(axis, end // high, high // low))
        end = start
    return parts


def _places(layout: Layout, mesh: Mesh) -> Ints:
    """For each device of `mesh`, its index in the device list of the layout's mesh."""
    if layout.mesh.device_ids == mesh.device_ids:
        return np.arange(mesh.size)
    old, new = (np.array(m.device_ids, np.int64) for m in (layout.mesh, mesh))
    order = np.argsort(old)
    if len(old) != len(new) or not np.array_equal(old[order], np.sort(new)):
        raise LayoutError(
            f"a layout is written on another mesh of the same devices; got {layout.mesh} for {mesh}"
        )
    places: Ints = order[np.searchsorted(old, new, sorter=order)]
    return places


def _entries(
    old: Mesh, entries: Sequence[Entry], places: Ints, mesh: Mesh
) -> tuple[Entry, ...] | None:
    """The entries of a dim with axes of `mesh`; each run of axes between splits is rewritten alone.

    None if `mesh` cannot express them.
    """
    rewritten: list[Entry] = []
    run: list[Axis] = []
    for entry in (*entries, Split(1)):
        if not isinstance(entry, Split):
            run.append(entry)
            continue
        axes = _axes(old, run, places, mesh)
        if axes is None:
            return None
        rewritten += [*axes, entry]
        run = []
    return tuple(rewritten)


def _coordinates(mesh: Mesh, axes: Sequence[Axis], places: Ints) -> Ints:
    """The coordinates along `axes`, the first one major, of the devices at `places` of `mesh`."""
    coordinates = np.zeros_like(places)
    for axis in axes:
        size = mesh.length(axis)
        minor = math.prod(mesh.shape[index(axis) :]) // (pre_size(axis) * size)
        coordinates = coordinates * size + places // minor % size
    return coordinates


def _axes(old: Mesh, axes: Sequence[Axis], places: Ints, mesh: Mesh) -> list[Axis] | None:
    """Axes of `mesh` along which devices have the same coordinates as along `axes` of `old`."""
    weighted = []
    minor = 1
    for size, weight in digits(_coordinates(old, axes, places)) or ():
        if weight:
            weighted.append((weight, size, minor))
        minor *= size
    rest = old.axis_size(axes)
    parts: list[Axis] = []
    for weight, size, minor in sorted(weighted, reverse=True):
        of_digit = axes_at(mesh, minor, size)
        if weight * size != rest or of_digit is None:
            return None
        rest = weight
        parts += of_digit
    return parts if rest == 1 else None


def _partial(
    layout: Layout, places: Ints, sharding: list[Axis], mesh: Mesh
) -> list[Partial] | None:
    """The partial results with axes of `mesh`, given the axes `sharding` that shard its dims.

    None if `mesh` cannot express them. Kinds are visited from the outermost (combined last) to the
    innermost. Each one divides the devices with the same shard into finer classes: the devices of a
    class hold the same once all kinds further in are combined. The axes of a kind lead from one
    class to the next; it does not matter from which device of the class.
    """
    old, spec = layout.mesh, layout.spec
    axes = sharding_axes(spec)
    classes = _coordinates(old, axes, places)
    rewritten: list[Partial] = []
    for kind, of_kind in itertools.groupby(spec.partial, key=lambda partial: partial.kind):
        axes += [partial.axis for partial in of_kind]
        finer = _coordinates(old, axes, places)
        together = np.flatnonzero(classes == classes[0])
        _, first = np.unique(finer[together], return_index=True)
        for size, minor in digits(np.sort(together[first])) or ():
            rewritten += [Partial(axis, kind) for axis in axes_at(mesh, minor, size) or ()]
        new_axes = [*sharding, *(partial.axis for partial in rewritten)]
        if not _same_classes(finer, _coordinates(mesh, new_axes, np.arange(mesh.size))):
            return None
        classes = finer
    swapped = (
        not outer.commutes_with(inner)
        for outer, inner in itertools.combinations(rewritten, 2)
        if _order(outer.axis) > _order(inner.axis)
    )
    return None if any(swapped) else rewritten


def _same_classes(first: Ints, second: Ints) -> bool:
    """Whether any two devices have equal numbers in `first` if and only if they do in `second`."""
    pairs = np.unique(np.stack([first, second]), axis=1).shape[1]
    return bool(pairs == len(np.unique(first)) == len(np.unique(second)))


def _order(axis: Axis) -> tuple[int, int]:
    """Sort key of axes; partial results combine from the last axis to the first."""
    return (index(axis), pre_size(axis))


def _chunking(n: int, rule: Chunking, old: tuple[int, ...], new: tuple[int, ...]) -> Chunking:
    """The chunking that cuts a dim of `n` elements into the same pieces on the new mesh.

    `old` and `new` are the numbers of parts of each level. Splits with only axes of length 1 after
    them are not written again: the pieces that they cut are joined.
    """
    joined = math.prod(old) // math.prod(new)
    if joined == 1 and rule not in ("nested", "balanced"):
        return rule
    if rule == "padded":
        raise LayoutError(
            "padded pieces that a device keeps together have no shorter form; "
            f"got {n} elements cut into {old} parts, the last ones on axes of length 1"
        )
    sizes = all_sizes(n, rule, old)
    return tuple(sum(sizes[i : i + joined]) for i in range(0, len(sizes), joined))
