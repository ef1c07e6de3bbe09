"""Short texts for devices, blocks, axes and amounts, however many there are."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice

import numpy as np
from numpy.typing import NDArray

from shardspec.amounts import bytes_text, count_text
from shardspec.base.axis import Axis, SubAxis
from shardspec.base.chunking import Run
from shardspec.base.partial import Reduction
from shardspec.layout.layout import Layout
from shardspec.layout.mesh import Mesh
from shardspec.report.block_owners import Blocks, Cuts


def devices_text(ids: Sequence[int], width: int = 40) -> str:
    """Device ids with runs as ranges, cut off at about `width` characters.

    Examples:
        >>> devices_text([0, 1, 2, 3, 7]), devices_text(range(0, 4096, 64))
        ('0-3,7', '0,64,...,4032')
        >>> devices_text([0, 1, 3, 7, 15, 31], width=8)
        '0,1,3,7 and 2 more'
    """
    shown: list[str] = []
    left, room = len(ids), width
    for text, count in _progressions(ids):
        room -= len(text) + 1
        if shown and room < 0:
            return f"{','.join(shown)} and {left:,} more"
        shown.append(text)
        left -= count
    return ",".join(shown)


def holders_text(
    devices: NDArray[np.int64], kinds: Sequence[Reduction] = (), width: int = 40
) -> str:
    """The devices that hold a block, and how their partial results combine to it.

    `0,1` hold copies. `0+2` means that the block is the sum of what 0 and 2 hold; other kinds are
    `max(0,2)` and so on. `{0,1}+{2,3}` is a sum of two terms, with two copies of each.

    Args:
        devices: As from `Blocks.devices`: shape (length of each partial axis ..., copies).
        kinds: How results combine along each partial axis; the last one combines first.
        width: Approximate limit on the number of characters.

    Examples:
        >>> holders_text(np.arange(8).reshape(2, 2, 2), ("sum", "max"))
        'max({0,1},{2,3})+max({4,5},{6,7})'
    """
    if not kinds:
        return devices_text(sorted(devices.tolist()), width)
    kind = kinds[0]
    while len(kinds) > 1 and kinds[1] == kind:  # a sum of sums is one sum
        devices, kinds = devices.reshape(-1, *devices.shape[2:]), kinds[1:]
    count = len(devices)
    if count == 1:
        return holders_text(devices[0], kinds[1:], width)
    terms = {}
    for i in range(count) if count <= 4 else (0, 1, count - 1):
        term = holders_text(devices[i], kinds[1:], max(width // 4, 12))
        is_plain = len(kinds) > 1 or devices[i].size == 1
        terms[i] = term if is_plain else f"{{{term}}}"
    shown = [terms[i] for i in sorted(terms)]
    if count > 4:
        shown.insert(2, "...")
    return "+".join(shown) if kind == "sum" else f"{kind}({','.join(shown)})"


def block_text(layout: Layout, device_id: int, name: str = "A") -> str:
    """The block that a device holds, in NumPy's syntax as in Alpa's Table 1.

    Raises:
        UnknownDeviceError: the device is not in the mesh.

    Examples:
        >>> from shardspec import Spec
        >>> mesh = Mesh((2, 2), ("x", "y"))
        >>> block_text(Layout((4, 4), mesh, Spec.parse("S0S1")), 1)
        'A[0:2, 2:4]'
        >>> block_text(Layout((4, 4), mesh, Spec.parse("S[2]0R")), 3)
        'A[r_[1:2, 3:4], 0:4]'
        >>> block_text(Layout((4, 1), mesh, Spec.parse("RS0")), 3)
        'nothing'
    """
    coordinates = layout.mesh.coordinates(device_id)
    parts = []
    for dim, cuts in enumerate(Blocks(layout).cuts):
        part = 0
        for axis in layout.spec.sharding_of(dim):
            part = part * layout.mesh.length(axis) + layout.mesh.coordinate(coordinates, axis)
        parts.append((cuts, part))
    return parts_text(parts, name)


def parts_text(parts: Iterable[tuple[Cuts, int]], name: str = "A") -> str:
    """A block, as a part of each dim, in NumPy's syntax."""
    dims = []
    for cuts, part in parts:
        runs = [f"{start}:{stop}" for start, stop in islice(cuts.runs(part), 5)]
        if not runs:
            return "nothing"
        more = ", ..." if len(runs) > 4 else ""
        dims.append(runs[0] if len(runs) == 1 else f"r_[{', '.join(runs[:4])}{more}]")
    return f"{name}[{', '.join(dims)}]" if dims else name


def axis_text(mesh: Mesh, axis: Axis) -> str:
    """The name of an axis; a part of an axis in Shardy's notation, `x:(1)2`."""
    if isinstance(axis, SubAxis):
        return f"{mesh.axis_names[axis.axis]}:({axis.pre}){axis.size}"
    return mesh.axis_names[axis]


def axes_text(mesh: Mesh, axes: Iterable[Axis]) -> str:
    """Several axes in their order: `x`, `x and y`, `x, y and z`."""
    names = [axis_text(mesh, axis) for axis in axes]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def mesh_text(mesh: Mesh) -> str:
    """Number of devices, and the axes with their lengths."""
    lengths = ", ".join(
        f"{name}={length}" for name, length in zip(mesh.axis_names, mesh.shape, strict=True)
    )
    return f"{count_text(mesh.size, 'device')}{f' ({lengths})' if lengths else ''}"


def layout_text(layout: Layout) -> str:
    """A layout in one line."""
    return f"A {layout.shape} as {layout.spec} on {mesh_text(layout.mesh)}"


def index_text(number: int) -> str:
    """An index, in units of a power of 1024 if it is a large multiple of one.

    Examples:
        >>> index_text(4096), index_text(1 << 34), index_text((1 << 34) + 1)
        ('4096', '16Gi', '17179869185')
    """
    power = 0
    while number >= 10_000 and number % 1024 == 0:
        number, power = number // 1024, power + 1
    return f"{number}{' KMGTPEZYRQ'[power]}i" if power else str(number)


def span_text(run: Run) -> str:
    """An interval, as a slice."""
    return ":".join(map(index_text, run))


def sizes_text(sizes: Iterable[int]) -> str:
    """Sizes in order; many are shortened by counting equal neighbours: `512 of 3, 1 of 2`."""
    runs = [(size, len(list(same))) for size, same in groupby(sizes)]
    if sum(count for _, count in runs) <= 8:
        return ", ".join(str(size) for size, count in runs for _ in range(count))
    shown = [f"{count} of {size}" for size, count in runs[:6]]
    return ", ".join(shown) + (", ..." if len(runs) > 6 else "")


def amount_text(elements: int, itemsize: int | None) -> str:
    """A number of elements or, with an itemsize, the bytes that they take.

    Examples:
        >>> amount_text(1, None), amount_text(6, 4), amount_text(1 << 30, 4)
        ('1 element', '24 B', '4 GiB')
    """
    return count_text(elements, "element") if itemsize is None else bytes_text(elements * itemsize)


def _progressions(ids: Sequence[int]) -> Iterator[tuple[str, int]]:
    """`ids` as texts of arithmetic progressions, from left to right, with the length of each."""
    start = 0
    while start < len(ids):
        stop = start + 1
        step = ids[stop] - ids[start] if stop < len(ids) else 0
        while stop < len(ids) and ids[stop] - ids[stop - 1] == step:
            stop += 1
        first, last, count = ids[start], ids[stop - 1], stop - start
        if step == 1 and count > 2:
            yield f"{first}-{last}", count
        elif count > 3:
            yield f"{first},{first + step},...,{last}", count
        else:
            count = 1
            yield str(first), count
        start += count
