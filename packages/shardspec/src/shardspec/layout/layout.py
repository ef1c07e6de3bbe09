"""`Layout`: a tensor's shape on a mesh under a spec, and the part of it that each device holds."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardspec.base import chunking as cut
from shardspec.base.axis import Axis, Entry, Split, SubAxis, index
from shardspec.base.chunking import Chunking, ChunkingRule, Level, Run
from shardspec.base.integers import items, natural, naturals, shown
from shardspec.base.partial import Partial, Reduction
from shardspec.errors import LayoutError, StridedLayoutError, UnknownAxisError
from shardspec.layout.mesh import Mesh, n_parts
from shardspec.layout.spec import Spec, sharding_axes


@dataclass(frozen=True, slots=True, repr=False)
class Layout:
    """Which part of a tensor each device of a mesh holds.

    A device keeps its elements in the tensor's order. Nothing is stored per device.

    A layout is canonical: a sub-axis as long as its axis is replaced by the axis, and a chunking
    by the first of `ceil`, `nested` and `balanced` that cuts the dim into the same pieces.

    Raises:
        LayoutError: spec and shape differ in rank, a size is negative, the spec uses an axis or a
            part of one that the mesh does not have, or the chunking does not fit.

    Examples:
        >>> layout = Layout((5, 4), Mesh((2, 2), ("x", "y")), Spec.parse("S0S1"))
        >>> layout.slices(3)
        (slice(3, 5, None), slice(2, 4, None))
        >>> layout.is_even
        False
        >>> Layout((8,), Mesh((2,), ("x",)), Spec.parse("S[2]0")).boxes(1)
        ((slice(2, 4, None),), (slice(6, 8, None),))
        >>> balanced = Layout((7,), Mesh((4,), ("x",)), Spec.parse("S0"), "balanced")
        >>> [balanced.local_shape(device) for device in range(4)]
        [(2,), (2,), (2,), (1,)]
    """

    shape: tuple[int, ...]
    """Size of each dim of the whole tensor."""
    mesh: Mesh
    """The devices."""
    spec: Spec
    """Which mesh axes shard each dim, and which ones hold partial results."""
    chunking: tuple[Chunking, ...] | ChunkingRule = "ceil"
    """How each dim is cut if its shards cannot be equal; a single rule applies to all dims."""

    def __post_init__(self) -> None:
        shape, spec, mesh = naturals(self.shape), self.spec, self.mesh
        if not isinstance(mesh, Mesh) or not isinstance(spec, Spec):
            raise LayoutError(
                f"a layout has a Mesh and a Spec; got mesh={shown(mesh)} and spec={shown(spec)}; "
                "Spec.parse reads text"
            )
        if shape and min(shape) < 0:
            raise LayoutError(f"a tensor's dims have sizes >= 0; got shape {shown(self.shape)}")
        object.__setattr__(self, "shape", shape)
        if len(shape) != len(spec.dims):
            raise LayoutError(
                f"a spec has one entry for each dim; got spec {spec} ({len(spec.dims)} dims) "
                f"for shape {shape} ({len(shape)} dims)"
            )
        try:
            plain = all([isinstance(a, int) for a in _checked(mesh, spec)])
        except UnknownAxisError as error:
            raise LayoutError(
                f"a spec uses axes of its mesh; got spec {spec} for a mesh of {mesh.ndim} "
                f"axes, shape {mesh.shape}: {error}"
            ) from None
        if not plain:
            object.__setattr__(self, "spec", _whole_axes(spec, mesh))
        object.__setattr__(self, "chunking", self._canonical_rules())

    def _canonical_rules(self) -> tuple[Chunking, ...]:
        chunking = self.chunking
        if isinstance(chunking, str):
            rule = cut.checked(chunking)
            if rule == "ceil":
                return (rule,) * len(self.shape)
            rules: tuple[Chunking, ...] | None = (rule,) * len(self.shape)
        else:
            rules = items(chunking)
        if rules is None or len(rules) != len(self.shape):
            raise LayoutError(
                "a layout has one chunking for each dim, or one rule for all; "
                f"got chunking={shown(chunking)} for shape {self.shape}"
            )
        return tuple(
            "ceil" if rule == "ceil" else cut.canonical(n, rule, parts)
            for n, rule, parts in zip(self.shape, map(cut.checked, rules), self.cuts, strict=True)
        )

    @property
    def rules(self) -> tuple[Chunking, ...]:
        """The chunking of each dim."""
        chunking = self.chunking  # a tuple, as the constructor left it
        return self._canonical_rules() if isinstance(chunking, str) else chunking

    @property
    def shards(self) -> tuple[int, ...]:
        """Number of shards of each dim: the product of the lengths of the axes that shard it."""
        return tuple(
            self.mesh.axis_size(self.spec.sharding_of(dim)) for dim in range(len(self.shape))
        )

    @property
    def cuts(self) -> tuple[tuple[int, ...], ...]:
        """For each dim, the number of parts of every level of cuts, major to minor, with splits."""
        return tuple(
            tuple(n_parts(self.mesh, entry) for entry in entries) for entries in self.spec.dims
        )

    @property
    def uneven_dims(self) -> tuple[int, ...]:
        """Dims whose pieces differ in size."""
        pieces = zip(self.shape, self.rules, self.cuts, strict=True)
        return tuple(
            dim
            for dim, (n, rule, parts) in enumerate(pieces)
            if n % math.prod(parts) or isinstance(rule, tuple)
        )

    @property
    def is_even(self) -> bool:
        """Whether all pieces of a dim have the same size."""
        return not self.uneven_dims

    @property
    def is_contiguous(self) -> bool:
        """Whether every shard is one block of the tensor: no dim has splits."""
        return not any(isinstance(e, Split) for entries in self.spec.dims for e in entries)

    def runs(self, device_id: int) -> tuple[tuple[Run, ...], ...]:
        """For each dim, the intervals that a device holds: none empty, in order, adjacent joined.

        The device holds the elements whose index along each dim is in one of its intervals.

        Raises:
            UnknownDeviceError: the device is not in the mesh.
        """
        coordinates = self.mesh.coordinates(device_id)
        return tuple(
            cut.runs(n, rule, self._levels(entries, coordinates))
            for n, rule, entries in zip(self.shape, self.rules, self.spec.dims, strict=True)
        )

    def slices(self, device_id: int) -> tuple[slice, ...]:
        """The part of each dim that a device holds, start and stop within the dim.

        Raises:
            UnknownDeviceError: the device is not in the mesh.
            StridedLayoutError: a dim is strided; `boxes` and `indices` work for strided dims, too.
        """
        coordinates = self.mesh.coordinates(device_id)
        if not self.is_contiguous:
            raise StridedLayoutError(
                f"slices describe shards of one block; got {self}, whose shards have several; "
                "use boxes, runs or indices"
            )
        return tuple(
            slice(*cut.interval(n, rule, self._levels(entries, coordinates)))
            for n, rule, entries in zip(self.shape, self.rules, self.spec.dims, strict=True)
        )

    def boxes(self, device_id: int) -> tuple[tuple[slice, ...], ...]:
        """The blocks that make up a device's shard, in the tensor's order; `()` if it is empty.

        Raises:
            UnknownDeviceError: the device is not in the mesh.
        """
        parts = [[slice(*run) for run in runs] for runs in self.runs(device_id)]
        return tuple(itertools.product(*parts))

    def indices(self, device_id: int) -> tuple[NDArray[np.intp], ...]:
        """For each dim, the indices that a device holds: `whole[np.ix_(*layout.indices(d))]`.

        Raises:
            UnknownDeviceError: the device is not in the mesh.
        """
        return tuple(
            np.concatenate([np.arange(*run, dtype=np.intp) for run in runs])
            if runs
            else np.empty(0, np.intp)
            for runs in self.runs(device_id)
        )

    def offsets(self, device_id: int) -> tuple[int, ...]:
        """Where a device's shard starts along each dim; if it is empty, where it would start.

        Raises:
            UnknownDeviceError: the device is not in the mesh.
        """
        coordinates = self.mesh.coordinates(device_id)
        return tuple(
            cut.first(n, rule, self._levels(entries, coordinates))
            for n, rule, entries in zip(self.shape, self.rules, self.spec.dims, strict=True)
        )

    def local_shape(self, device_id: int) -> tuple[int, ...]:
        """Shape of the array in which a device keeps its shard, including padding if there is any.

        Raises:
            UnknownDeviceError: the device is not in the mesh.
        """
        coordinates = self.mesh.coordinates(device_id)
        sizes = []
        for dim, (n, rule, parts) in enumerate(zip(self.shape, self.rules, self.cuts, strict=True)):
            if rule == "padded" or (rule == "ceil" and n % math.prod(parts) == 0):
                # All devices have equal room, so the pieces, which may be many, are not listed.
                sizes.append(self._largest(dim))
            else:
                levels = self._levels(self.spec.dims[dim], coordinates)
                sizes.append(sum(stop - start for start, stop in cut.runs(n, rule, levels)))
        return tuple(sizes)

    def local_bytes(self, itemsize: int, device_id: int | None = None) -> int:
        """Bytes of a device's shard, or of the largest one.

        Args:
            itemsize: Bytes per element.
            device_id: The device; None for the largest shard.

        Raises:
            UnknownDeviceError: the device is not in the mesh.
            LayoutError: an itemsize that is not an integer >= 0.
        """
        size = natural(itemsize)
        if size < 0:
            raise LayoutError(f"an element takes a number of bytes; got itemsize={shown(itemsize)}")
        if device_id is not None:
            return math.prod(self.local_shape(device_id)) * size
        return math.prod(map(self._largest, range(len(self.shape)))) * size

    def replica_groups(self) -> tuple[tuple[int, ...], ...]:
        """Groups of devices that hold the same; they differ only along axes that are not used."""
        return self.mesh.groups(tuple(replica_axes(self)))

    def is_equivalent(self, other: "Layout") -> bool:
        """Whether every device holds the same in both layouts, however their specs are written.

        Axes of length 1, device order, sub-axes and chunking may differ: `S0` on a mesh of 8 is
        equivalent to `S01` on the same devices as 2×4. Partial results are the same if they combine
        to the same tensor. So it does not matter in which order axes of the same kind combine, nor
        which of several devices that hold the same partial result is used.
        """
        if self == other:
            return True
        if self.shape != other.shape or set(self.mesh.device_ids) != set(other.mesh.device_ids):
            return False
        if self._combination() != other._combination():
            return False
        return all(
            self.runs(device) == other.runs(device)
            and self.local_shape(device) == other.local_shape(device)
            for device in self.mesh.device_ids
        )

    def _combination(self) -> tuple[list[Reduction], list[set[frozenset[int]]], int]:
        """How partial results combine, in a canonical form: equal only for the same function.

        Returns:
            The kinds in the order in which they combine, adjacent equal ones merged; the groups of
            devices that hold the same at first, and after each kind; and what ones combine to,
            which tells an average, listed as a sum, from a sum.
        """
        kinds, groups, ones = list[Reduction](), list[set[frozenset[int]]](), 1
        partial = [p for p in reversed(self.spec.partial) if self.mesh.length(p.axis) > 1]
        if not partial:
            return kinds, groups, ones
        combined = replica_axes(self)
        groups.append(set(map(frozenset, self.mesh.groups(tuple(combined)))))
        for p in partial:
            combined.append(p.axis)
            kind: Reduction = "sum" if p.kind == "avg" else p.kind
            if kinds and kinds[-1] == kind:
                kinds.pop()
                groups.pop()
            kinds.append(kind)
            groups.append(set(map(frozenset, self.mesh.groups(tuple(combined)))))
            if p.kind == "sum":
                ones *= self.mesh.length(p.axis)
            elif p.kind == "product":
                ones **= self.mesh.length(p.axis)
        return kinds, groups, ones

    def _levels(self, entries: Sequence[Entry], coordinates: tuple[int, ...]) -> list[Level]:
        mesh = self.mesh
        return [
            (entry.factor, None)
            if isinstance(entry, Split)
            else (mesh.length(entry), mesh.coordinate(coordinates, entry))
            for entry in entries
        ]

    def _largest(self, dim: int) -> int:
        """Size of the dim in the largest shard, with padding."""
        n, rule, entries = self.shape[dim], self.rules[dim], self.spec.dims[dim]
        parts = self.cuts[dim]
        if rule == "nested" or isinstance(rule, tuple):
            sizes = np.array(cut.all_sizes(n, rule, parts), np.int64).reshape(parts)
            kept = tuple(i for i, entry in enumerate(entries) if isinstance(entry, Split))
            return int(sizes.sum(axis=kept).max())
        if rule == "padded" or n % math.prod(parts) == 0:
            splits = math.prod(e.factor for e in entries if isinstance(e, Split))
            return -(-n // math.prod(parts)) * splits
        # The device at coordinate 0 of every axis has the largest pieces.
        coordinates = (None if isinstance(entry, Split) else 0 for entry in entries)
        runs = cut.runs(n, rule, list(zip(parts, coordinates, strict=True)))
        return sum(stop - start for start, stop in runs)

    def __str__(self) -> str:
        rules = "" if set(self.rules) <= {"ceil"} else f", chunks {', '.join(map(str, self.rules))}"
        return f"{self.shape} as {self.spec} on {self.mesh.shape}{rules}"

    def __repr__(self) -> str:
        rules = "" if set(self.rules) <= {"ceil"} else f", {self.chunking}"
        return f"Layout({self.shape}, {self.mesh}, {self.spec!r}{rules})"


def replica_axes(layout: Layout) -> list[Axis]:
    """The axes and parts of axes that the spec does not use: devices along them hold copies."""
    used = sharding_axes(layout.spec) + [partial.axis for partial in layout.spec.partial]
    return [part for part in layout.mesh.parts(used) if part not in used]


def _checked(mesh: Mesh, spec: Spec) -> list[Axis]:
    """All axes that a spec uses.

    Raises:
        UnknownAxisError: the mesh does not have one of them.
    """
    used = sharding_axes(spec) + [partial.axis for partial in spec.partial]
    for axis in used:
        if isinstance(axis, SubAxis) or axis >= mesh.ndim:
            mesh.length(axis)
    return used


def _whole_axes(spec: Spec, mesh: Mesh) -> Spec:
    """The spec with every sub-axis that is as long as its axis replaced by the axis."""

    def whole(entry: Entry) -> Entry:
        is_all = isinstance(entry, SubAxis) and entry.size == mesh.shape[entry.axis]
        return index(entry) if is_all else entry  # type: ignore[arg-type]  # it is a SubAxis

    return Spec(
        tuple(tuple(map(whole, entries)) for entries in spec.dims),
        tuple(Partial(whole(p.axis), p.kind) for p in spec.partial),  # type: ignore[arg-type]
    )
