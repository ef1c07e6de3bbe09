"""Runs one aten call on the shards of a device.

Most calls take shards as they are. Arguments that hold shapes are adapted to the shard; a call that
counts along a dim starts at the shard's offset; a lookup handles the indices inside the shard; a
summand of a partial sum is added on one device only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

import torch
from shardspec import Mesh, Spec, Step

from frontends.base.present import present
from frontends.torch.base.calls import Call, Operand, Tensor
from frontends.torch.base.described import Shapes
from frontends.torch.lower.attention_rows import BY_ROW, is_by_row
from frontends.torch.lower.masks import MASKED, DimRange, indexed_dims
from frontends.torch.rules.rules import call_of_part

Shape = tuple[int, ...]
Coordinates = tuple[int, ...]
"""Coordinates of a device in its mesh."""

Function = Callable[[Sequence[Tensor], Coordinates], list[Tensor]]

_COUNTING = frozenset({"arange", "linspace", "eye", "tril_indices", "triu_indices"})
"""Operators without operands whose elements depend on their indices."""

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
        call: The call on whole tensors.
        shapes: Shapes of its whole operands, and of its results.
        operand_specs: Specs of the operands.
        result_specs: Specs of the results; they belong to the same strategy, so that no
            communication is needed.
        mesh: The mesh of the specs.
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
        elif is_by_row(call):
            axes = self._number_rows(operand_specs, parts[0])
        once = self._added_axes(operand_specs, result_specs)
        if once:
            self._count_once(once)
        self.axes = tuple(sorted(axes | once))
        """Mesh axes along which devices compute different results from equal operands."""

        self.plain = self._call if self._function is plain else None
        """The call that every device makes; None if more than a call is needed."""

        self.key: Hashable = self._call.key
        """Equal for calls that compute the same from equal operands at equal coordinates."""

        if self.plain is None:
            specs = tuple(operand_specs), tuple(result_specs)
            whole = tuple(map(tuple, shapes[0])), tuple(map(tuple, shapes[1]))
            self.key = call.key, whole, specs, mesh.shape

    def __call__(self, operands: Sequence[Tensor], coordinates: Coordinates) -> list[Tensor]:
        """Return the shards of the results on one device.

        Args:
            operands: The device's shards of the operands.
            coordinates: The device's coordinates in the mesh.
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
        """Restrict the call to indices in the shard; return the axes that split indexed dims."""
        is_gradient = self._call.name == "embedding_dense_backward"
        whole = shapes[1 if is_gradient else 0][0]
        indexed = (result_specs if is_gradient else operand_specs)[0].plain_dims
        split = {d: indexed[d] for d in indexed_dims(self._call, len(whole)) if indexed[d]}
        sizes = {dim: whole[dim] // self._mesh.axis_size(axes) for dim, axes in split.items()}
        if split:
            masked = MASKED[self._call.name]

            def run(operands: Sequence[Tensor], coordinates: Coordinates) -> list[Tensor]:
                parts = {
                    d: DimRange(
                        sizes[d] * place_along(self._mesh, axes, coordinates), sizes[d], whole[d]
                    )
                    for d, axes in split.items()
                }
                return masked(self._call, operands, parts)

            self._function = run
        return {axis for axes in split.values() for axis in axes}

    def _number_rows(self, operand_specs: Sequence[Spec], parts: Sequence[Shape]) -> set[int]:
        """Let causal attention count rows of the whole; return the axes that split them."""
        place = self._call.argument("query").place
        axes = operand_specs[place].plain_dims[2]
        if axes:
            call, run_rows, n_rows = self._call, BY_ROW[self._call.name], parts[place][2]

            def run(operands: Sequence[Tensor], coordinates: Coordinates) -> list[Tensor]:
                first = n_rows * place_along(self._mesh, axes, coordinates)
                return run_rows(call, operands, first)

            self._function = run
        return {*axes}

    def _added_axes(
        self, operand_specs: Sequence[Spec], result_specs: Sequence[Spec]
    ) -> frozenset[int]:
        """Return the axes over which the result is a partial sum but the summand is not."""
        name = _SUMMAND.get(self._call.name)
        summand = None if name is None else self._call.argument(name)
        if not isinstance(summand, Operand):
            return frozenset()
        carried = operand_specs[summand.place].partial_axes
        return frozenset(a for a in result_specs[0].partial_axes if a not in carried)

    def _count_once(self, axes: frozenset[int]) -> None:
        """Replace the summand by zeros on all but the first device along some axes."""
        inner, place = self._function, self._call.argument(_SUMMAND[self._call.name]).place

        def run(operands: Sequence[Tensor], coordinates: Coordinates) -> list[Tensor]:
            if any(coordinates[axis] for axis in axes):
                operands = list(operands)
                operands[place] = torch.zeros_like(operands[place])
            return inner(operands, coordinates)

        self._function = run


def add_copies(result: Spec) -> Function:
    """Return a function that adds up the values of a stage's replicas.

    If the result is a partial sum, all but the first value are added on one device only.

    Args:
        result: The spec of the result.
    """

    def run(operands: Sequence[Tensor], coordinates: Coordinates) -> list[Tensor]:
        first, *others = operands
        counts = not any(coordinates[axis] for axis in result.partial_axes)
        return [sum((other if counts else torch.zeros_like(other) for other in others), first)]

    return run


def local_slice(step: Step, mesh: Mesh) -> Function:
    """Return a function that keeps a device's part of what its group has in common.

    Args:
        step: A slice along a dim.
        mesh: The mesh of its axes.
    """
    dim, n = present(step.dim, "a slice is along a dim"), mesh.axis_size(step.mesh_axes)

    def run(operands: Sequence[Tensor], coordinates: Coordinates) -> list[Tensor]:
        part = part_of(operands[0], dim, place_along(mesh, step.mesh_axes, coordinates), n)
        # contiguous, as aten's norms ignore the strides of their saved statistics
        return [part.contiguous()]

    return run


def part_of(tensor: Tensor, dim: int, place: int, n: int) -> Tensor:
    """Return one of `n` equal parts of a tensor along a dim."""
    size = tensor.shape[dim] // n
    return tensor.narrow(dim, place * size, size)


def alike(call: Call) -> Function:
    """Return a function that makes the same call on all devices."""
    bound = call.bound()
    return lambda operands, coordinates: bound(operands)


def place_along(mesh: Mesh, axes: Sequence[int], coordinates: Coordinates) -> int:
    """Return a device's index along some axes, the first of which is major."""
    place = 0
    for axis in axes:
        place = place * mesh.shape[axis] + coordinates[axis]
    return place


def local_shape(shape: Shape, spec: Spec, mesh: Mesh) -> Shape:
    """Return the shape of a shard, which is the same on every device."""
    return tuple(n // mesh.axis_size(axes) for n, axes in zip(shape, spec.plain_dims, strict=True))


def differing_axes(specs: Sequence[Spec], own: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the axes along which devices differ.

    Args:
        specs: Specs of tensors, of which devices hold different shards or addends.
        own: Further axes.
    """
    axes = {axis for spec in specs for dim in spec.plain_dims for axis in dim}
    axes.update(axis for spec in specs for axis in spec.partial_axes)
    return tuple(sorted(axes.union(own)))


def like(coordinates: Sequence[Coordinates], axes: Sequence[int]) -> Mapping[int, int]:
    """Return for each device the first one with the same coordinates along some axes."""
    first: dict[Coordinates, int] = {}
    return {
        position: first.setdefault(tuple(place[axis] for axis in axes), position)
        for position, place in enumerate(coordinates)
    }
