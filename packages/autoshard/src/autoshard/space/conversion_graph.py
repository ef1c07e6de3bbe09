"""The graph of specs that a value can have, the collectives between them, and its shortest paths.

Nodes are specs of whole axes. Edges are single collectives over axes that are the minor-most of
their dim (one call each in `jax.lax`, see `shardspec.WHOLE_AXES`). The price of a conversion is the
length of the shortest path, so it is that of the fastest sequence of collectives at the prices of
the actual links: a sum over a slow and a fast axis is scattered inside a host first, whatever the
order of the axes.

The paths of all pairs are computed at once (Floyd, "Algorithm 97: Shortest Path", CACM 5(6), 1962),
since tables of thousands of pairs are needed: on a mesh of three axes, a tensor of four dims has
296 specs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import permutations

import numpy as np
from costmodel import CollectiveKind, MeshLinks, collective_time
from numpy.typing import NDArray
from shardspec import Partial, Spec

from autoshard.base.arrays import Array
from autoshard.space.strategy import can_split

Dims = tuple[tuple[int, ...], ...]
State = tuple[Dims, tuple[Partial, ...]]
Move = tuple[CollectiveKind | None, tuple[int, ...], State]
"""A collective (`None`: a slice, which sends nothing), its axes, and the state that it leads to."""


class SpecGraph:
    """All specs that can be reached from one spec of a canonical shape, and the moves between them.

    For canonical shapes see `Converter`. The graph, including the order of its specs, depends on
    nothing but its arguments. So the length of a path, whose last bits depend on that order, and
    the choice among equally long paths do not depend on earlier queries.
    """

    def __init__(
        self,
        sizes: tuple[int, ...],
        mesh_shape: tuple[int, ...],
        start: Spec | None = None,
        *,
        uneven: bool = False,
    ) -> None:
        """Find all specs that can be reached from a spec.

        Args:
            sizes: The sizes of the dims.
            mesh_shape: The lengths of the mesh's axes.
            start: The spec to start from. The default is partial sums over all axes, from which one
                can reach every even spec of whole axes without other partial results. A spec that
                is strided, of parts of axes, or uneven where that is not allowed has no moves.
            uneven: Whether splits may be uneven.
        """
        self.sizes = sizes
        self.mesh_shape = mesh_shape
        self.uneven = uneven
        self.axes = tuple(axis for axis, n in enumerate(mesh_shape) if n > 1)
        self.specs: list[Spec] = []
        self.number: dict[Spec, int] = {}
        self._moves: dict[tuple[CollectiveKind | None, tuple[int, ...]], list[tuple[int, int]]] = {}
        if start is None:
            start = Spec(((),) * len(sizes), tuple(Partial(axis) for axis in self.axes))
        if start.is_plain and self._is_even(start.plain_dims):
            self._close((start.plain_dims, start.partial))
        else:
            self._name(start)

    def weights(self, n_bytes: float, links: MeshLinks) -> Array:
        """Seconds of the fastest single collective, shape (specs, specs); infinite without one.

        Args:
            n_bytes: Bytes of the whole tensor.
            links: The links of the mesh.
        """
        parts = np.array([self._parts(spec) for spec in self.specs]).reshape(len(self.specs), -1)
        local = n_bytes * parts.prod(axis=1)
        weights = np.full((len(self.specs),) * 2, math.inf)
        for (kind, axes), pairs in self._moves.items():
            sources, targets = np.array(pairs, dtype=np.intp).T
            if kind is None:
                weights[sources, targets] = 0.0
                continue
            # costmodel's price is a function of the input's bytes for a reduce-scatter, and of the
            # output's for the others; for uneven splits these include the padding to equal parts.
            n = self._length(axes)
            if kind == "all_gather":
                priced = np.maximum(local[targets], n * local[sources])
            elif kind == "reduce_scatter":
                priced = np.maximum(local[sources], n * local[targets])
            else:  # an all-to-all also pads the dim that it splits; others leave the parts as is
                cut = np.where(parts[targets] < parts[sources], n * parts[targets], parts[sources])
                priced = n_bytes * cut.prod(axis=1)
            seconds = collective_time(kind, priced, links.group(axes))
            np.minimum.at(weights, (sources, targets), seconds)
        return weights

    def _parts(self, spec: Spec) -> list[float]:
        """For each dim, the largest part that a device holds, as a fraction of the dim."""
        if not spec.is_plain:
            return [1.0] * len(self.sizes)
        lengths = map(self._length, spec.plain_dims)
        return [-(-size // n) / max(size, 1) for size, n in zip(self.sizes, lengths, strict=True)]

    def _length(self, axes: tuple[int, ...]) -> int:
        return math.prod(self.mesh_shape[axis] for axis in axes)

    def _is_even(self, dims: Dims) -> bool:
        return all(
            can_split(size, self._length(on), self.uneven)
            for size, on in zip(self.sizes, dims, strict=True)
        )

    def _name(self, spec: Spec) -> int:
        """Add a spec as a node; returns its number."""
        self.number[spec] = len(self.specs)
        self.specs.append(spec)
        return self.number[spec]

    def _close(self, start: State) -> None:
        """Add a state, everything that can be reached from it, and all moves between these."""
        known = {start: self._name(Spec(*start))}
        waiting = [start]
        while waiting:
            state = waiting.pop()
            for kind, axes, end in self._moves_from(state):
                if end not in known:
                    known[end] = self._name(Spec(*end))
                    waiting.append(end)
                pair = (known[state], known[end])
                self._moves.setdefault((kind, tuple(sorted(axes))), []).append(pair)

    def _moves_from(self, state: State) -> Iterator[Move]:
        dims, partial = state
        for dim, held in enumerate(dims):
            for cut in range(len(held)):
                axes = held[cut:]
                rest = (*dims[:dim], held[:cut], *dims[dim + 1 :])
                yield "all_gather", axes, (rest, partial)
                for to in range(len(dims)):
                    if to != dim and (end := self._appended(rest, to, axes)):
                        yield "all_to_all", axes, (end, partial)
        taken = {axis for held in dims for axis in held}.union(p.axis for p in partial)
        for axes in _arrangements([axis for axis in self.axes if axis not in taken]):
            for dim in range(len(dims)):
                if end := self._appended(dims, dim, axes):
                    yield None, axes, (end, partial)
        for axes in _arrangements(_reducible(partial)):
            reduced = tuple(p for p in partial if p.axis not in axes)
            if axes == tuple(sorted(axes)):
                yield "all_reduce", axes, (dims, reduced)
            if partial[-1].kind == "sum":
                for dim in range(len(dims)):
                    if end := self._appended(dims, dim, axes):
                        yield "reduce_scatter", axes, (end, reduced)

    def _appended(self, dims: Dims, dim: int, axes: tuple[int, ...]) -> Dims | None:
        """The dims after more axes split one of them; `None` if they cannot."""
        split = dims[dim] + axes
        if not can_split(self.sizes[dim], self._length(split), self.uneven):
            return None
        return (*dims[:dim], split, *dims[dim + 1 :])


def _arrangements(axes: list[int]) -> Iterator[tuple[int, ...]]:
    for count in range(1, len(axes) + 1):
        yield from permutations(axes, count)


def _reducible(partial: tuple[Partial, ...]) -> list[int]:
    """The axes whose partial results can be combined next, in order.

    If there are several reductions, that of the last axes comes first.
    """
    axes = []
    for one in reversed(partial):
        if one.kind != partial[-1].kind:
            break
        axes.append(one.axis)
    return [axis for axis in reversed(axes) if isinstance(axis, int)]


def shortest(weights: Array) -> Array:
    """The length of the shortest path between any two nodes, 0 from a node to itself.

    Examples:
        >>> shortest(np.array([[np.inf, 1.0, 5.0], [np.inf, np.inf, 2.0], [np.inf] * 3]))
        array([[ 0.,  1.,  3.],
               [inf,  0.,  2.],
               [inf, inf,  0.]])
    """
    lengths = weights.copy()
    np.fill_diagonal(lengths, 0.0)
    through = np.empty_like(lengths)
    for middle in range(len(lengths)):
        np.add(lengths[:, middle, None], lengths[None, middle, :], out=through)
        np.minimum(lengths, through, out=lengths)
    return lengths


def fewest_steps(weights: Array, lengths: Array, start: int, goal: int) -> list[int]:
    """The nodes after `start` on a shortest path to `goal`, one of those with the fewest steps.

    Args:
        weights: The lengths of the edges, shape (nodes, nodes).
        lengths: `shortest(weights)`.
        start: The first node.
        goal: The last node, which can be reached from `start`.
    """
    came: dict[int, int] = {start: start}
    frontier = [start]
    while goal not in came:
        ahead: list[int] = []
        for node in frontier:
            # with a tolerance, since sums in a different order differ in their last bits
            tight = weights[node] + lengths[:, goal] <= lengths[node, goal] * (1 + 1e-12)
            after: NDArray[np.intp] = np.flatnonzero(tight)
            for other in after.tolist():
                if other not in came:
                    came[other] = node
                    ahead.append(other)
        frontier = ahead
    path = [goal]
    while came[path[-1]] != start:
        path.append(came[path[-1]])
    return path[::-1] if start != goal else []
