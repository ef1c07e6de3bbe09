"""Pallas kernels are split along their grid, where the grid says that this is the same.

A kernel runs once for each point of its grid, on one block of each array, and index maps say on
which. Along a grid dim that moves through an array's dim block by block, the kernel may run on some
of the blocks, if nothing else depends on the number of the point: not the kernel's body, no other
index map, and no result that several points write. Heads of keys may be shared by several points in
a row, as in grouped-query attention. On TPUs the points of a core run in order and may hand on what
is in scratch memory, so that a grid dim is split only if the kernel declares it parallel.

All of this is read from the kernel itself: index maps are evaluated at every point of the grid.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np
from autoshard import Rule
from autoshard import whole as whole_rule
from autoshard.rules import Factors
from numpy.typing import NDArray

from frontends.jax.base import _compat
from frontends.jax.base._compat import ClosedJaxpr, Jaxpr, JaxprEqn, aval
from frontends.jax.base.described import Described
from frontends.jax.base.loops import bodies_of

_MOST_POINTS = 1 << 20
"""The largest grid whose index maps are evaluated."""

Index = NDArray[Any] | None
"""The number of a block at each point of the grid; None if it depends on what an operand holds."""

Dim = tuple[int, int]
"""An array, by number among the kernel's operands and results, and one of its dims."""


class GridDim(NamedTuple):
    """A dim of the grid that may be split."""

    number: int
    size: int
    shared: int
    """How many points in a row have the same block of arrays in `groups`."""
    points: tuple[Dim, ...]
    """The dims that have one block for each point."""
    groups: tuple[Dim, ...]
    """The dims that have one block for `shared` points."""

    def after(self, n: int) -> GridDim:
        """The same dim, if the kernel has `n` more operands before all others."""
        moved = (tuple((array + n, dim) for array, dim in of) for of in (self.points, self.groups))
        return GridDim(self.number, self.size, self.shared, *moved)


def rule(d: Described) -> Rule:
    """The rule of a kernel: its grid dims that may be split are parallel, all else is whole."""
    dims = _split_dims(d.equation)
    if not dims:
        return whole_rule(d.operands, d.results)
    factors = Factors()
    made: dict[Dim, tuple[int, ...]] = {}
    arrays = (*d.operands, *d.results)
    for grid in dims:
        group = factors.parallel(grid.size // grid.shared)
        points = group + factors.parallel(grid.shared)
        for places, outer, n in ((grid.points, points, grid.size), (grid.groups, group, 0)):
            n = n or grid.size // grid.shared
            for array, dim in places:
                made[array, dim] = outer + factors.whole(arrays[array][dim] // n)
    tensors = [
        tuple(
            made[array, dim] if (array, dim) in made else factors.whole(n)
            for dim, n in enumerate(shape)
        )
        for array, shape in enumerate(arrays)
    ]
    n_operands = len(d.operands)
    return factors.rule(tensors[:n_operands], tensors[n_operands:])


def part(d: Described) -> Mapping[str, Any]:
    """The kernel's grid and arrays on parts of these."""
    mapping = d.attributes["grid_mapping"]
    arrays, whole = (*d.operands, *d.results), _arrays(d.equation)
    grid = [*mapping.grid]
    for dim in _split_dims(d.equation):
        array, place = dim.points[0]
        grid[dim.number] = dim.size * arrays[array][place] // whole[array][place]
    blocked = arrays[mapping.num_index_operands :]
    blocks = [
        block.replace(array_aval=block.array_aval.update(shape=shape))
        for block, shape in zip(mapping.block_mappings, blocked, strict=True)
    ]
    return {
        "grid_mapping": mapping.replace(grid=tuple(grid), block_mappings=tuple(blocks)),
        "out_avals": tuple(
            a.update(shape=shape)
            for a, shape in zip(d.attributes["out_avals"], d.results, strict=True)
        ),
    }


def flops(d: Described) -> float:
    """The kernel's own estimate, or else the operations of its body at every point of the grid.

    How often a loop in the body runs is not known before it does. One that reads a block slice by
    slice counts as often as slices fit the block.
    """
    estimate = d.attributes.get("cost_estimate")
    if estimate is not None:
        return float(estimate.flops)
    points = math.prod(n for n in d.attributes["grid_mapping"].grid if isinstance(n, int))
    return points * _flops_of_body(d.attributes["jaxpr"])


def _flops_of_body(body: Jaxpr) -> float:
    total = 0.0
    for equation in body.eqns:
        bodies = [inner.jaxpr for inner in bodies_of(equation)]
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            a = aval(equation.invars[0]).shape
            depth = math.prod(a[dim] for dim in contracted)
            total += 2.0 * math.prod(aval(equation.outvars[0]).shape) * depth
        elif bodies:
            times = equation.params.get("length") or _times(equation, bodies)
            each = [_flops_of_body(inner) for inner in bodies]
            total += times * (max(each) if equation.primitive.name == "cond" else sum(each))
        else:
            total += max((math.prod(aval(v).shape) for v in equation.outvars), default=0)
    return total


def _times(equation: JaxprEqn, bodies: list[Jaxpr]) -> int:
    """How often a loop runs if it reads all slices of a block; 1 if it reads none, or is none."""
    if equation.primitive.name != "while":
        return 1
    most = 1
    for read in (e for body in bodies for e in _equations(body)):
        if read.invars and len(read.outvars) == 1 and hasattr(read.invars[0].aval, "inner_aval"):
            of, size = (math.prod(aval(v).shape) for v in (read.invars[0], read.outvars[0]))
            most = max(most, of // max(size, 1))
    return most


def _split_dims(equation: JaxprEqn) -> list[GridDim]:
    """The dims of a kernel's grid that may be split; none if it is of a kind that is not known."""
    mapping = equation.params.get("grid_mapping")
    if mapping is None or not mapping.grid or not _is_plain(equation, mapping):
        return []
    body: Jaxpr = equation.params["jaxpr"]
    counted = [n for n in range(len(mapping.grid)) if n not in mapping.vmapped_dims]
    used = {
        counted[e.params["axis"]]
        for e in _equations(body)
        if e.primitive.name in ("program_id", "num_programs")
    }
    maps = [_index_map(block.index_map_jaxpr, mapping.grid) for block in mapping.block_mappings]
    used |= {number for of_block in maps for _, numbers in of_block for number in numbers}
    semantics = getattr(equation.params.get("compiler_params"), "dimension_semantics", None)
    names = dict(zip(counted, semantics or (), strict=False))
    if semantics is not None and len(semantics) == len(mapping.grid):
        names = dict(enumerate(semantics))
    indices = [[index for index, _ in of_block] for of_block in maps]
    shapes = _arrays(equation)[mapping.num_index_operands :]
    found = (
        _grid_dim(number, mapping, indices, shapes)
        for number in range(len(mapping.grid))
        if number not in used
        and (
            not mapping.scratch_avals
            or number in mapping.vmapped_dims
            or str(getattr(names.get(number), "value", names.get(number))).lower() == "parallel"
        )
    )
    first = mapping.num_index_operands
    return [dim.after(first) for dim in found if dim is not None]


def _is_plain(equation: JaxprEqn, mapping: Any) -> bool:
    """Whether all that a kernel reads and writes is by blocks of arrays at places known before."""
    n_arrays = len(equation.invars) + len(equation.outvars)
    return (
        not equation.params.get("input_output_aliases")
        and equation.params.get("mesh") is None
        and all(isinstance(n, int) for n in mapping.grid)
        and math.prod(mapping.grid) <= _MOST_POINTS
        and len(mapping.block_mappings) == n_arrays - mapping.num_index_operands
        and not any(block.transforms for block in mapping.block_mappings)
    )


def _grid_dim(
    number: int, mapping: Any, indices: list[list[Index]], shapes: list[tuple[int, ...]]
) -> GridDim | None:
    """A dim of the grid, if it may be split."""
    size = mapping.grid[number]
    if size <= 1:
        return None
    points: list[Dim] = []
    groups: list[Dim] = []
    shared = 1
    counts = np.arange(size).reshape([-1 if n == number else 1 for n in range(len(mapping.grid))])
    for array, block in enumerate(mapping.block_mappings):
        for dim, index in enumerate(indices[array]):
            if index is None or (index == index.take([0], number)).all():
                continue
            last = int(index.take([-1], number).max())
            each = size // (last + 1)
            n_blocks = last + 1
            width = getattr(block.block_shape[dim], "block_size", 1)
            kind = type(block.block_shape[dim]).__name__
            if (
                kind not in ("Blocked", "Squeezed")
                or n_blocks * each != size
                or n_blocks * width != shapes[array][dim]
                or not (index == counts // each).all()
                or (each > 1 and shared not in (1, each))
            ):
                return None
            shared = max(shared, each)
            (points if each == 1 else groups).append((array, dim))
    n_operands = len(shapes) - mapping.num_outputs
    moved = [array for array, _ in (*points, *groups)]
    written = {array for array, _ in points if array >= n_operands}
    if len({*moved}) != len(moved) or len(written) != mapping.num_outputs:
        return None  # blocks on a diagonal, or several points write the same block of a result
    return GridDim(number, size, shared, tuple(points), tuple(groups))


@lru_cache(maxsize=1024)  # by the program itself: layers share theirs
def _index_map(
    closed: ClosedJaxpr, grid: tuple[int, ...]
) -> tuple[tuple[Index, frozenset[int]], ...]:
    """For each dim of an array: the number of the block that each point of the grid has.

    Returns:
        The numbers, and none; or, if they depend on operands, None and the grid dims that they
        depend on, too.
    """
    points = np.indices(grid, dtype=np.int32).reshape(len(grid), -1)
    made: list[tuple[Index, frozenset[int]]] = []
    for place in range(len(closed.jaxpr.outvars)):
        one, reads = _compat.output(closed, place)
        if any(number >= len(grid) for number in reads):
            made.append((None, frozenset(n for n in reads if n < len(grid))))
            continue
        run = _compat.as_function(one)
        with jax.ensure_compile_time_eval():
            if reads:
                (numbers,) = jax.vmap(lambda *ids, run=run: tuple(run(*ids)))(*points[reads])
            else:
                (numbers,) = run()
        full = np.broadcast_to(np.asarray(numbers), points.shape[1:]).reshape(grid)
        full.flags.writeable = False
        made.append((full, frozenset()))
    return tuple(made)


def _arrays(equation: JaxprEqn) -> list[tuple[int, ...]]:
    return [aval(v).shape for v in (*equation.invars, *equation.outvars)]


def _equations(body: Jaxpr) -> Iterator[JaxprEqn]:
    for equation in body.eqns:
        yield equation
        for inner in bodies_of(equation):
            yield from _equations(inner.jaxpr)
