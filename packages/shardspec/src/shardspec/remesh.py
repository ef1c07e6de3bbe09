"""`on_mesh`: a layout written with the axes of another mesh over the same devices.

Which part of a dim a device takes is a number, and so is the place where the device stands in the
other mesh. The mesh can say the layout if the first number is a mixed-radix rearrangement of the
second: if the place has *digits* (parts of the mesh's axes) of which some, in some order, are the
digits of the part. With 8 devices in the order 0 4 1 5 2 6 3 7 on an axis `a`, the layout `S0` of
the same devices in rising order is `S(0:(4)2)(0:(1)4)` on `a`:

    place in `a`    0  1  2  3  4  5  6  7        part = place % 2 * 4 + place // 2
    part            0  4  1  5  2  6  3  7
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shardspec.base.axis import Axis, Entry, Split, SubAxis
from shardspec.base.chunking import Chunking, all_sizes
from shardspec.base.partial import Partial
from shardspec.errors import LayoutError
from shardspec.layout.layout import Layout
from shardspec.layout.mesh import Mesh
from shardspec.layout.spec import Spec

Ints = NDArray[np.int64]

Digit = tuple[int, int]
"""Of a mixed radix number: how many values it takes, and the weight of its value."""


def on_mesh(layout: Layout, mesh: Mesh) -> Layout:
    """The same placement, written with axes and parts of axes of another mesh.

    Every device holds what it held. Dims that are uneven and cut level by level get explicit sizes
    where the levels change and the sizes would. Takes time linear in the number of devices, unless
    the meshes differ in their names only.

    Args:
        layout: What to write anew.
        mesh: The same devices in any order and shape.

    Raises:
        LayoutError: the mesh has other devices, or no axes that say where the shards are.

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
        found = _entries(layout.mesh, entries, places, mesh)
        if found is None:
            raise LayoutError(
                "the mesh has no parts of axes that say how "
                f"dim {dim} is sharded; got {layout} for {mesh}"
            )
        dims.append(found)
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
    """Digits of the index, minor to major, that weigh up to `numbers`.

    `numbers[i]` is the sum of each digit of `i` times its weight. None if there are no such digits;
    there is one such list at most with no digit that continues the one before it.

    Examples:
        >>> digits(np.array([0, 4, 1, 5, 2, 6, 3, 7]))
        [(2, 4), (4, 1)]
        >>> digits(np.array([0, 0, 0, 1, 1, 1]))
        [(3, 0), (2, 1)]
        >>> digits(np.array([0, 2, 1])) is None
        True
    """
    found: list[Digit] = []
    rebuilt = np.zeros(1, np.int64)
    while len(rebuilt) < len(numbers):
        leading = numbers[:: len(rebuilt)]
        weight = int(leading[1])
        differs = np.flatnonzero(leading != np.arange(len(leading)) * weight)
        size = int(differs[0]) if len(differs) else len(leading)
        if not size or len(numbers) % (len(rebuilt) * size):
            return None
        rebuilt = (np.arange(size)[:, None] * weight + rebuilt).reshape(-1)
        found.append((size, weight))
    return found if np.array_equal(rebuilt, numbers) else None


def axes_at(mesh: Mesh, minor: int, size: int) -> list[Axis] | None:
    """The parts of axes that make up one digit of a device's place, major to minor.

    Args:
        mesh: The place is that in its list of devices.
        minor: Number of places that the digit's value stays the same for.
        size: The digit's number of values.

    Returns:
        None if the digit begins or ends within what no part of an axis can cut.

    Examples:
        >>> axes_at(Mesh((2, 6), ("x", "y")), 3, 4)
        [0, SubAxis(axis=1, pre=1, size=2)]
        >>> axes_at(Mesh((2, 6), ("x", "y")), 1, 4) is None
        True
    """
    found: list[Axis] = []
    end = mesh.size
    for axis, length in enumerate(mesh.shape):
        start = end // length
        low, high = max(minor, start), min(minor * size, end)
        if low < high:
            if low % start or high % low or end % high or low % minor or minor * size % high:
                return None
            found.append(axis if high // low == length else SubAxis(axis, end // high, high // low))
        end = start
    return found


def _places(layout: Layout, mesh: Mesh) -> Ints:
    """For each device of `mesh` its place in the mesh of `layout`."""
    if layout.mesh.device_ids == mesh.device_ids:
        return np.arange(mesh.size)
    old, new = (np.array(m.device_ids, np.int64) for m in (layout.mesh, mesh))
    order = np.argsort(old)
    if len(old) != len(new) or not np.array_equal(old[order], np.sort(new)):
        raise LayoutError(
            f"a layout is written on another mesh of the same devices; got {layout.mesh} for {mesh}"
        )
    found: Ints = order[np.searchsorted(old, new, sorter=order)]
    return found


def _entries(
    old: Mesh, entries: Sequence[Entry], places: Ints, mesh: Mesh
) -> tuple[Entry, ...] | None:
    """What shards a dim, anew: each run of axes between splits for itself."""
    found: list[Entry] = []
    run: list[Axis] = []
    for entry in (*entries, Split(1)):
        if not isinstance(entry, Split):
            run.append(entry)
            continue
        axes = _axes(old, run, places, mesh)
        if axes is None:
            return None
        found += [*axes, entry]
        run = []
    return tuple(found)


def _coordinates(mesh: Mesh, axes: Sequence[Axis], places: Ints) -> Ints:
    """Of the devices at these places of `mesh` their coordinates along `axes`, the first major."""
    found = np.zeros_like(places)
    for axis in axes:
        of, pre = (axis.axis, axis.pre) if isinstance(axis, SubAxis) else (axis, 1)
        size = mesh.length(axis)
        minor = math.prod(mesh.shape[of:]) // (pre * size)
        found = found * size + places // minor % size
    return found


def _axes(old: Mesh, axes: Sequence[Axis], places: Ints, mesh: Mesh) -> list[Axis] | None:
    """Axes of `mesh` along which devices have the coordinate that they have along `axes`."""
    found = []
    minor = 1
    for size, weight in digits(_coordinates(old, axes, places)) or ():
        if weight:
            found.append((weight, size, minor))
        minor *= size
    rest = old.axis_size(axes)
    parts: list[Axis] = []
    for weight, size, minor in sorted(found, reverse=True):
        of_digit = axes_at(mesh, minor, size)
        if weight * size != rest or of_digit is None:
            return None
        rest = weight
        parts += of_digit
    return parts if rest == 1 else None


def _partial(
    layout: Layout, places: Ints, sharding: list[Axis], mesh: Mesh
) -> list[Partial] | None:
    """What holds partial results, anew, where the axes `sharding` of `mesh` shard the dims.

    From the outermost kind (combined last) to the innermost, devices with the same shard fall into
    finer classes: those of a class hold the same once the kinds further in are combined. The axes
    of a kind lead from one class to the next; from which of its devices does not matter.
    """
    old, spec = layout.mesh, layout.spec
    axes = [axis for dim in range(spec.ndim) for axis in spec.sharding_of(dim)]
    classes = _coordinates(old, axes, places)
    found: list[Partial] = []
    for kind, of_kind in itertools.groupby(spec.partial, key=lambda partial: partial.kind):
        axes += [partial.axis for partial in of_kind]
        finer = _coordinates(old, axes, places)
        together = np.flatnonzero(classes == classes[0])
        _, first = np.unique(finer[together], return_index=True)
        for size, minor in digits(np.sort(together[first])) or ():
            found += [Partial(axis, kind) for axis in axes_at(mesh, minor, size) or ()]
        written = [*sharding, *(partial.axis for partial in found)]
        if not _same_classes(finer, _coordinates(mesh, written, np.arange(mesh.size))):
            return None
        classes = finer
    swapped = (
        not outer.commutes_with(inner)
        for outer, inner in itertools.combinations(found, 2)
        if _order(outer.axis) > _order(inner.axis)
    )
    return None if any(swapped) else found


def _same_classes(first: Ints, second: Ints) -> bool:
    """Whether the same devices have equal numbers in both."""
    pairs = np.unique(np.stack([first, second]), axis=1).shape[1]
    return bool(pairs == len(np.unique(first)) == len(np.unique(second)))


def _order(axis: Axis) -> tuple[int, int]:
    """Partial results combine from the last axis to the first."""
    return (axis.axis, axis.pre) if isinstance(axis, SubAxis) else (axis, 1)


def _chunking(n: int, rule: Chunking, old: tuple[int, ...], new: tuple[int, ...]) -> Chunking:
    """How to cut a dim into the same pieces, given the parts that its levels cut it into.

    Splits before axes of length 1 only are not written anew: what they cut is joined.
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
