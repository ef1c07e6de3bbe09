"""Run one primitive on the shards of one device.

Most primitives take shards as they are. Some hold shapes in their parameters, which become those
of the shards; an iota starts at the first index of its shard; a scatter-add whose updates are
sharded, or a loop that adds to a carry, counts what it adds to once; the gradient of a max-pool
becomes arithmetic (`base.pooling`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from shardspec import Mesh, Spec

from frontends.jax.base import _compat
from frontends.jax.base._compat import JaxprEqn, aval
from frontends.jax.base.masks import gather_part, scatter_part
from frontends.jax.base.pooling import can_unroll, unrolled
from frontends.jax.rules.rules import parameters_of_part, summands_of
from frontends.jax.trace.attention_parts import run_backward, run_forward

Array = Any
Shape = tuple[int, ...]


def run_locally(
    equation: JaxprEqn,
    operands: Sequence[Array],
    operand_specs: Sequence[Spec | None],
    result_specs: Sequence[Spec],
    mesh: Mesh,
) -> list[Array]:
    """This device's shards of the results of an equation.

    Args:
        equation: The equation on whole arrays.
        operands: This device's shards of the operands, or literal constants.
        operand_specs: The layout of each operand; None for a literal.
        result_specs: The layout of each result. It belongs to the same strategy as those of the
            operands, so no communication is needed.
        mesh: The mesh of the specs.
    """
    name = equation.primitive.name
    params = dict(equation.params)
    for sharding in ("sharding", "out_sharding"):
        if sharding in params:
            params[sharding] = None
    results = [
        _local_shape(aval(v).shape, spec, mesh)
        for v, spec in zip(equation.outvars, result_specs, strict=True)
    ]
    if name == "iota":
        return [_iota(params, results[0], result_specs[0], mesh)]
    if any(spec.is_partial for spec in result_specs):
        operands = list(operands)
        for place, total in summands_of(equation).items():
            one = [operands[place]], [operand_specs[place]]
            (operands[place],) = _count_once(*one, result_specs[total], mesh)
    shapes = [
        aval(v).shape if spec is None else _local_shape(aval(v).shape, spec, mesh)
        for v, spec in zip(equation.invars, operand_specs, strict=True)
    ]
    params.update(parameters_of_part(equation, shapes, results))
    if name == "pallas_call" and jax.default_backend() == "cpu":
        params["interpret"] = params["interpret"] or True  # no kernel can be compiled for CPUs
    if name == "gather":
        return gather_part(equation, operands, params, operand_specs[0], mesh)
    if name.startswith("scatter"):
        return scatter_part(equation, operands, params, operand_specs[0], mesh)
    if name in _ATTENTION:
        return _ATTENTION[name](operands, params["how"], operand_specs, mesh)
    if name == "select_and_scatter_add" and can_unroll(params):
        source, operand = operands
        return [unrolled(source, operand, params)]
    return _compat.bind(equation, operands, params)


_ATTENTION = {
    "meshwright_attention": run_forward,
    "meshwright_attention_gradient": run_backward,
}


def add_copies(
    operands: Sequence[Array], operand_specs: Sequence[Spec], result_spec: Spec, mesh: Mesh
) -> Array:
    """The sum of the totals that copies of a stage have.

    If the result is a partial sum, all operands but the first count on one device only.
    """
    total, *others = operands
    for other, spec in zip(others, operand_specs[1:], strict=True):
        total = total + _count_once([other], [spec], result_spec, mesh)[0]
    return total


def _local_shape(shape: Shape, spec: Spec | None, mesh: Mesh) -> Shape:
    if spec is None:
        return shape
    return tuple(n // mesh.axis_size(axes) for n, axes in zip(shape, spec.plain_dims, strict=True))


def _iota(params: dict[str, Any], shape: Shape, spec: Spec, mesh: Mesh) -> Array:
    dim = params["dimension"]
    counted = lax.broadcasted_iota(params["dtype"], shape, dim)
    axes = tuple(mesh.axis_names[axis] for axis in spec.plain_dims[dim])
    if not axes:
        return counted
    return counted + jnp.asarray(lax.axis_index(axes) * shape[dim], params["dtype"])


def _count_once(
    operands: Sequence[Array],
    operand_specs: Sequence[Spec | None],
    result_spec: Spec,
    mesh: Mesh,
) -> list[Array]:
    """The operands, but the first one is zero except on the first device of each summed axis.

    The result is a partial sum over these axes. All devices along them have the whole first
    operand, which would otherwise be added once for each device.
    """
    target, *others = operands
    spec = operand_specs[0]
    carried = spec.partial_axes if spec is not None else ()
    for axis in result_spec.partial_axes:
        if axis not in carried:
            first = lax.axis_index(mesh.axis_names[axis]) == 0
            target = jnp.where(first, target, jnp.zeros_like(target))
    return [target, *others]
