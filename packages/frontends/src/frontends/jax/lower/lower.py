"""Lower a chunk to the program that one device runs, with explicit collectives.

The chunk becomes a `shard_map` over the stage's mesh: conversions are the steps that shardspec
plans, as `jax.lax` collectives, and operators are their own primitives on local shards. Nothing is
left for a partitioner to decide, so the compiled program communicates exactly what the plan says.

A value that is a partial sum cannot leave a `shard_map` as such. It leaves with its parts stacked
along a new leading dim that is sharded over the partial axes, which costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import shardspec
from autoshard import Graph
from jax import lax
from jax.sharding import PartitionSpec
from shardspec import Layout, Mesh, Spec

from frontends.base.boundary import doing
from frontends.errors import DeviceError, InternalError
from frontends.jax.base import _compat
from frontends.jax.trace.local import add_copies, run_locally
from frontends.jax.trace.trace import Trace
from frontends.plan.plan_fields import Conversion, Placement, Stored
from frontends.program.chunks import Chunk
from frontends.step.step import SUM

Array = Any
"""A traced local shard."""


def jax_mesh(mesh: Mesh, devices: Sequence[Any] | None = None) -> jax.sharding.Mesh:
    """The same mesh over JAX's devices, by their position in `jax.devices()`.

    Raises:
        DeviceError: JAX has fewer devices.
    """
    available = jax.devices() if devices is None else devices
    if max(mesh.device_ids) >= len(available):
        raise DeviceError(
            f"the plan uses device {max(mesh.device_ids)}, but JAX has {len(available)} "
            f"{available[0].platform} devices: call frontends.jax.init("
            f"{max(mesh.device_ids) + 1}) before anything else uses JAX, or plan for fewer"
        )
    chosen = np.array([available[i] for i in mesh.device_ids], dtype=object)
    return jax.sharding.Mesh(chosen.reshape(mesh.shape), mesh.axis_names)


def partition_spec(spec: Spec, mesh: Mesh) -> PartitionSpec:
    """The layout of an array as JAX sees it; partial sums are stacked along a leading dim."""
    dims = [tuple(mesh.axis_names[a] for a in axes) or None for axes in spec.plain_dims]
    if spec.partial:
        dims.insert(0, tuple(mesh.axis_names[axis] for axis in spec.partial_axes))
    return PartitionSpec(*dims)


def lower_chunk(
    chunk: Chunk,
    trace: Trace,
    graph: Graph,
    mesh: Mesh,
    jmesh: jax.sharding.Mesh,
    *,
    watched: str | None = None,
) -> Callable[..., tuple[jax.Array, ...]]:
    """A function on global arrays, not yet jitted: of totals and reads, to totals and writes.

    Args:
        chunk: What to run, from `build_chunks`.
        trace: Where the operators' equations are.
        graph: The layered graph that the chunk was cut from.
        mesh: The stage's mesh.
        jmesh: The same over JAX's devices.
        watched: `nan`, `inf` or `nan or inf`, to look for such numbers: the result is then alone
            for each device whether it has some in each of the reads, and in each value that
            actions make.
    """
    operators = {op.name: op for op in graph.operators}
    n_totals = len(chunk.totals)
    taken, given = (*chunk.totals, *chunk.reads), (*chunk.totals, *chunk.writes)

    def run(placement: Placement, environment: dict[Stored, Array]) -> None:
        operator = operators[placement.operator]
        slots = map(Stored, operator.inputs, placement.operands)
        local = [environment[slot] for slot in slots]
        equation = trace.equations.get(operator.name)
        if equation is not None:
            places = trace.operands[operator.name]
            each = iter(zip(local, placement.operands, strict=True))
            operands, specs = (
                zip(*(next(each) if isinstance(p, str) else (p, None) for p in places), strict=True)
                if places
                else ((), ())
            )
            where = f"at {_compat.line_of(equation)}, in stage {chunk.stage}"
            with doing(f"compiling operator {operator.name} (written {where}) as {placement}"):
                local = run_locally(equation, operands, specs, placement.results, mesh)
        elif operator.kind == SUM:
            local = [add_copies(local, placement.operands, placement.results[0], mesh)]
        made = map(Stored, operator.outputs, placement.results)
        environment.update(zip(made, local, strict=True))

    def reads(action: Conversion | Placement) -> list[Stored]:
        if isinstance(action, Conversion):
            return [Stored(action.value, action.src)]
        return [*map(Stored, operators[action.operator].inputs, action.operands)]

    def does(action: Conversion | Placement) -> tuple[object, ...]:
        """Equal for actions that may do the same."""
        if isinstance(action, Conversion):
            return action.value, action.src, action.dst
        operator = operators[action.operator]
        return operator.kind, operator.inputs, action.operands, action.results

    def local_program(*operands: Array) -> tuple[Array, ...]:
        local = [
            operand[0] if slot.spec.partial else operand
            for slot, operand in zip(taken, operands, strict=True)
        ]
        environment = dict(zip(chunk.reads, local[n_totals:], strict=True))
        found = [_has(watched, array) for array in environment.values()] if watched else []
        phase, there, done = chunk.phase, set[Stored](), set[tuple[object, ...]]()
        for index, action in enumerate(chunk.actions):
            if action.phase != phase:
                phase, there = action.phase, {*environment}
                done = {does(action) for action in chunk.actions[:index]}
                later = (a for a in chunk.actions[index:] if isinstance(a, Conversion))
                again = {slot for a in later if does(a) in done for slot in reads(a)}
                _not_before(environment, again)  # all at once, so that XLA may gather ahead
            if isinstance(action, Placement) and does(action) in done:  # rematerialised
                _not_before(environment, there.intersection(reads(action)))
            if isinstance(action, Conversion):
                source = environment[Stored(action.value, action.src)]
                shape = graph.value(action.value).shape
                what = f"reshard {action.value} {action.src} to {action.dst}"
                with doing(f"{what} in {chunk}"), jax.named_scope(what):
                    converted = convert(source, shape, mesh, action.src, action.dst)
                environment[Stored(action.value, action.dst)] = converted
            else:
                run(action, environment)
            if watched:
                found += [_has(watched, environment[slot]) for slot in made_by(action, graph)]
        if watched:
            return (jnp.stack(found)[None],)
        totals = zip(local[:n_totals], chunk.totals, strict=True)
        made = [
            *(total + environment[slot] for total, slot in totals),
            *(environment[slot] for slot in chunk.writes),
        ]
        return tuple(
            array[None] if slot.spec.partial else array
            for slot, array in zip(given, made, strict=True)
        )

    return jax.shard_map(
        local_program,
        mesh=jmesh,
        in_specs=tuple(partition_spec(slot.spec, mesh) for slot in taken),
        out_specs=(PartitionSpec(mesh.axis_names),)
        if watched
        else tuple(partition_spec(slot.spec, mesh) for slot in given),
        check_vma=False,
    )


def made_by(action: Conversion | Placement, graph: Graph) -> list[Stored]:
    """The values that an action makes, each in its layout."""
    if isinstance(action, Conversion):
        return [Stored(action.value, action.dst)]
    operator = next(op for op in graph.operators if op.name == action.operator)
    return [*map(Stored, operator.outputs, action.results)]


def _has(kinds: str, array: Array) -> Array:
    """Whether a shard has numbers of some kinds."""
    if not jnp.issubdtype(array.dtype, jnp.inexact):
        return jnp.array(False)
    is_bad = jnp.isnan(array) if "nan" in kinds else jnp.zeros(array.shape, bool)
    return jnp.any(is_bad | jnp.isinf(array) if "inf" in kinds else is_bad)


def _not_before(environment: dict[Stored, Array], slots: Collection[Stored]) -> None:
    """Let nothing be computed of some values until the last is there.

    Else XLA sees that a phase gathers what the one before it has gathered, or computes anew what
    was not to be kept, and holds it from one to the other, against the plan.
    """
    kept = [slot for slot in environment if slot in slots]
    if kept:
        kept += {*[*environment][-1:]}.difference(kept)
        values = lax.optimization_barrier([environment[slot] for slot in kept])
        environment.update(zip(kept, values, strict=True))


def convert(x: Array, shape: tuple[int, ...], mesh: Mesh, src: Spec, dst: Spec) -> Array:
    """A device's shard in another layout, in a `shard_map` over the mesh.

    Args:
        x: The shard.
        shape: Of the whole value.
        mesh: Of the specs.
        src: The layout that it has.
        dst: The layout that it gets.

    Raises:
        InternalError: No collective of JAX does a step of the conversion.
    """
    plan = shardspec.reshard_whole_axes(Layout(shape, mesh, src), Layout(shape, mesh, dst))
    for step in plan.steps:
        x = _collective(x, step, mesh)
    return x


_REDUCTIONS: dict[str | None, Callable[..., Array]] = {
    "sum": lax.psum,
    "max": lax.pmax,
    "min": lax.pmin,
}


def _collective(x: Array, step: shardspec.Step, mesh: Mesh) -> Array:
    """One step of a conversion on one device's shard."""
    names = tuple(mesh.axis_names[axis] for axis in step.mesh_axes)
    match step.kind:
        case "all_reduce" if step.reduction in _REDUCTIONS:
            return _REDUCTIONS[step.reduction](x, names)
        case "all_gather" if step.dim is not None:
            return lax.all_gather(x, names, axis=step.dim, tiled=True)
        case "reduce_scatter" if step.dim is not None and step.reduction == "sum":
            return lax.psum_scatter(x, names, scatter_dimension=step.dim, tiled=True)
        case "all_to_all" if step.dim is not None and step.to_dim is not None:
            return lax.all_to_all(
                x, names, split_axis=step.to_dim, concat_axis=step.dim, tiled=True
            )
        case "slice" if step.dim is not None:
            size = x.shape[step.dim] // step.group_size
            return lax.dynamic_slice_in_dim(x, lax.axis_index(names) * size, size, step.dim)
    raise InternalError(
        "a conversion is made of reductions to a sum, maximum or minimum, of gathers, slices, "
        f"exchanges and scattered sums along whole dims; got {step}"
    )
