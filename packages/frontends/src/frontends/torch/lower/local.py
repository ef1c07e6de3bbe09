"""Run one aten call on the shards of a device.

Most calls take shards as they are. Arguments that hold shapes become those of the shard; what
counts along a dim starts where the shard starts; lookups do what falls into the shard; a summand of
a sum that is split over devices counts once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from shardspec import Mesh, Spec

from frontends.torch.base.calls import Call, Operand, Tensor
from frontends.torch.base.described import Shapes
from frontends.torch.lower.masks import MASKED, Part, indexed_dims
from frontends.torch.rules.rules import call_of_part

Shape = tuple[int, ...]
Coordinates = tuple[int, ...]
"""Of a device in its mesh."""

Function = Callable[[Sequence[Tensor], Coordinates], list[Tensor]]

_COUNTING = frozenset({"arange", "linspace", "eye", "tril_indices", "triu_indices"})
"""Operators of no operands whose elements follow from their places."""

_SUMMAND = {
    "addmm": "self",
    "baddbmm": "self",
    "convolution": "bias",
    "scatter_add": "self",
    "index_add": "self",
    "index_put": "self",
    "_unsafe_index_put": "self",
}
"""The argument that is added to a sum, by operator."""


class LocalCall:
    """A call on the shards of any device of a mesh.

    Args:
        call: On whole tensors.
        shapes: Of its whole operands and results.
        operand_specs: How the operands lie.
        result_specs: How the results shall; they follow from the same strategy, so no device needs
            to send anything.
        mesh: Of the specs.
    """

    def __init__(
        self,
        call: Call,
        shapes: tuple[Shapes, Shapes],
        operand_specs: Sequence[Spec],
        result_specs: Sequence[Spec],
        mesh: Mesh,
    ) -> None:
        parts = [
            [local_shape(shape, spec, mesh) for shape, spec in zip(whole, specs, strict=True)]
            for whole, specs in zip(shapes, (operand_specs, result_specs), strict=True)
        ]
        self._call = call_of_part(call, parts[0], parts[1])
        self._mesh = mesh
        plain = alike(self._call)
        self._function: Function = plain
        axes: set[int] = set()
        if call.name in _COUNTING:
            axes = {axis for dim in result_specs[0].plain_dims for axis in dim}
            self._call = call
            if axes:
                self._function = self._cut(result_specs[0], parts[1][0])
        elif call.name in MASKED:
            axes = self._mask(shapes, operand_specs, result_specs)
        once = self._added_axes(operand_specs, result_specs)
        if once:
            self._count_once(once)
        self.axes = tuple(sorted(axes | once))
        """Mesh axes along which devices do something different with equal operands."""

        self.plain = self._call if self._function is plain else None
        """The call, if that is all that any device does."""

    def __call__(self, operands: Sequence[Tensor], coordinates: Coordinates) -> list[Tensor]:
        """The results' shards on one device.

        Args:
            operands: Their shards there.
            coordinates: Where the device stands in the mesh.
        """
        return self._function(operands, coordinates)

    def _cut(self, spec: Spec, shape: Shape) -> Function:
        def run(operands: Sequence[Tensor], coordinates: Coordinates) -> list[Tensor]:
            (whole,) = self._call(operands)
            for dim, (axes, size) in enumerate(zip(spec.plain_dims, shape, strict=True)):
                if axes:
                    whole = whole.narrow(
                        dim, size * place_along(self._mesh, axes, coordinates), size
                    )
            return [whole]

        return run

    def _mask(
        self,
        shapes: tuple[Shapes, Shapes],
        operand_specs: Sequence[Spec],
        result_specs: Sequence[Spec],
    ) -> set[int]:
        """Do what falls into the part of what is indexed; returns the axes that split it."""
        is_gradient = self._call.name == "embedding_dense_backward"
        whole = shapes[1 if is_gradient else 0][0]
        indexed = (result_specs if is_gradient else operand_specs)[0].plain_dims
        split = {d: indexed[d] for d in indexed_dims(self._call, len(whole)) if indexed[d]}
        sizes = {dim: whole[dim] // self._mesh.axis_size(axes) for dim, axes in split.items()}
        if split:
            masked = MASKED[self._call.name]

            def run(operands: Sequence[Tensor], coordinates: Coordinates) -> list[Tensor]:
                parts = {
                    d: Part(
                        sizes[d] * place_along(self._mesh, axes, coordinates), sizes[d], whole[d]
                    )
                    for d, axes in split.items()
                }
                return masked(self._call, operands, parts)

            self._function = run
        return {axis for axes in split.values() for axis in axes}

    def _added_axes(
        self, operand_specs: Sequence[Spec], result_specs: Sequence[Spec]
    ) -> frozenset[int]:
        """The axes over which results are sums, but the summand is whole."""
        name = _SUMMAND.get(self._call.name)
        summand = None if name is None else self._call.argument(name)
        if not isinstance(summand, Operand):
            return frozenset()
        carried = operand_specs[summand.place].partial_axes
        return frozenset(a for a in result_specs[0].partial_axes if a not in carried)

    def _count_once(self, axes: frozenset[int]) -> None:
        """Zero the summand on all but the first device of some axes."""
        inner, place = self._function, self._call.argument(_SUMMAND[self._call.name]).place

        def run(operands: Sequence[Tensor], coordinates: Coordinates) -> list[Tensor]:
            if any(coordinates[axis] for axis in axes):
                operands = list(operands)
                operands[place] = torch.zeros_like(operands[place])
            return inner(operands, coordinates)

        self._function = run


def add_copies(result: Spec) -> Function:
    """The sum of what copies of a stage have; all but the first count once in a partial sum."""

    def run(operands: Sequence[Tensor], coordinates: Coordinates) -> list[Tensor]:
        own, *others = operands
        counts = not any(coordinates[axis] for axis in result.partial_axes)
        return [sum((other if counts else torch.zeros_like(other) for other in others), own)]

    return run


def alike(call: Call) -> Function:
    """A call that is the same on all devices."""
    bound = call.bound()
    return lambda operands, coordinates: bound(operands)


def place_along(mesh: Mesh, axes: Sequence[int], coordinates: Coordinates) -> int:
    """A device's place along some axes, the first being major."""
    place = 0
    for axis in axes:
        place = place * mesh.shape[axis] + coordinates[axis]
    return place


def local_shape(shape: Shape, spec: Spec, mesh: Mesh) -> Shape:
    """The shape of every device's shard."""
    return tuple(n // mesh.axis_size(axes) for n, axes in zip(shape, spec.plain_dims, strict=True))


def differing_axes(specs: Sequence[Spec], own: Sequence[int] = ()) -> tuple[int, ...]:
    """Axes along which devices hold different shards of any of these, or have some of their own."""
    found = {axis for spec in specs for dim in spec.plain_dims for axis in dim}
    found.update(axis for spec in specs for axis in spec.partial_axes)
    return tuple(sorted(found.union(own)))


def like(coordinates: Sequence[Coordinates], axes: Sequence[int]) -> Mapping[int, int]:
    """For each device the first one with the same coordinates along some axes."""
    first: dict[Coordinates, int] = {}
    return {
        position: first.setdefault(tuple(place[axis] for axis in axes), position)
        for position, place in enumerate(coordinates)
    }
