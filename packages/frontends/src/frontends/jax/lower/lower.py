"""Lower a chunk to the program that one device runs, with explicit collectives.

The chunk becomes a `shard_map` over the stage's mesh. A conversion becomes the steps that shardspec
plans for it, as `jax.lax` collectives; an operator becomes its primitive, run on local shards.
Nothing is left for a partitioner to decide, so the compiled program communicates exactly what the
plan says.

A `shard_map` cannot return a partial sum as such. It returns the addends stacked along a new
leading dim that is sharded over the partial axes, which costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import shardspec
from autoshard import Graph, Rule
from jax import lax
from jax.sharding import PartitionSpec
from shardspec import Layout, Mesh, Spec

from frontends.base.boundary import doing
from frontends.errors import DeviceError, InternalError
from frontends.jax.base import _compat
from frontends.jax.trace.local import add_copies, run_locally
from frontends.jax.trace.trace import Trace
from frontends.plan.plan_fields import Conversion, ShardedOperator, Stored
from frontends.program.chunks import Chunk
from frontends.step.step import BACKWARD, FORWARD, IDENTITY, SUM

Array = Any
"""A traced local shard."""


def jax_mesh(mesh: Mesh, devices: Sequence[Any] | None = None) -> jax.sharding.Mesh:
    """The same mesh over JAX's devices; device numbers are positions in `jax.devices()`.

    Raises:
        DeviceError: JAX has fewer devices than the mesh uses.
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
    """The spec in JAX's form; the addends of a partial sum are stacked along a leading dim."""
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
    """The chunk as a function on global arrays, not yet jitted.

    It takes totals and reads, and returns totals and writes.

    Args:
        chunk: What to run, from `build_chunks`.
        trace: Has the equations of the operators.
        graph: The layered graph that the chunk was cut from.
        mesh: The stage's mesh.
        jmesh: The same mesh over JAX's devices.
        watched: `nan`, `inf` or `nan or inf`, to look for such numbers. The function then returns
            only booleans, for each device: whether its shards have such numbers, first of each of
            the reads, then of each value that the actions make.
    """
    operators = {op.name: op for op in graph.operators}
    repeats = _starts_of_repeats(chunk, graph)
    n_totals = len(chunk.totals)
    inputs, outputs = (*chunk.totals, *chunk.reads), (*chunk.totals, *chunk.writes)

    def run(placement: ShardedOperator, environment: dict[Stored, Array]) -> None:
        operator = operators[placement.operator]
        slots = map(Stored, operator.inputs, placement.operands)
        local = [environment[slot] for slot in slots]
        equation = trace.equations.get(operator.name)
        if equation is not None:
            atoms = trace.operands[operator.name]
            shards = iter(zip(local, placement.operands, strict=True))
            pairs = [next(shards) if isinstance(a, str) else (a, None) for a in atoms]
            operands, specs = zip(*pairs, strict=True) if pairs else ((), ())
            where = f"at {_compat.line_of(equation)}, in stage {chunk.stage}"
            with doing(f"compiling operator {operator.name} (written {where}) as {placement}"):
                local = run_locally(equation, operands, specs, placement.results, mesh)
        elif operator.kind == SUM:
            local = [add_copies(local, placement.operands, placement.results[0], mesh)]
        slots = map(Stored, operator.outputs, placement.results)
        environment.update(zip(slots, local, strict=True))

    def reads(action: Conversion | ShardedOperator) -> list[Stored]:
        if isinstance(action, Conversion):
            return [Stored(action.value, action.src)]
        return [*map(Stored, operators[action.operator].inputs, action.operands)]

    read_last = {slot: i for i, action in enumerate(chunk.actions) for slot in reads(action)}
    leaving = dict.fromkeys((*chunk.writes, *chunk.totals), len(chunk.actions))
    read_last.update(leaving)

    def local_program(*operands: Array) -> tuple[Array, ...]:
        local = [
            operand[0] if slot.spec.partial else operand
            for slot, operand in zip(inputs, operands, strict=True)
        ]
        environment = dict(zip(chunk.reads, local[n_totals:], strict=True))
        flags = [_has(watched, array) for array in environment.values()] if watched else []
        phase, earlier = chunk.phase, {*environment}
        for index, action in enumerate(chunk.actions):
            if action.phase != phase:
                phase, earlier = action.phase, {*environment}
                done = {_ends(a) for a in chunk.actions[:index] if isinstance(a, Conversion)}
                later = (a for a in chunk.actions[index:] if isinstance(a, Conversion))
                again = {Stored(a.value, a.src) for a in later if _ends(a) in done}
                # All at once, so that XLA may gather ahead.
                _not_before(environment, again, [*environment][-1:])
            if index in repeats:
                begin = {slot for a in chunk.actions[index : repeats[index]] for slot in reads(a)}
                begin &= earlier
                live = [s for s in environment if read_last.get(s, -1) >= index]
                _not_before(environment, begin, [s for s in live if s not in earlier])
                earlier -= begin
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
                flags += [_has(watched, environment[slot]) for slot in made_by(action, graph)]
        if watched:
            return (jnp.stack(flags)[None],)
        totals = zip(local[:n_totals], chunk.totals, strict=True)
        results = [
            *(total + environment[slot] for total, slot in totals),
            *(environment[slot] for slot in chunk.writes),
        ]
        return tuple(
            array[None] if slot.spec.partial else array
            for slot, array in zip(outputs, results, strict=True)
        )

    return jax.shard_map(
        local_program,
        mesh=jmesh,
        in_specs=tuple(partition_spec(slot.spec, mesh) for slot in inputs),
        out_specs=(PartitionSpec(mesh.axis_names),)
        if watched
        else tuple(partition_spec(slot.spec, mesh) for slot in outputs),
        check_vma=False,
    )


def made_by(action: Conversion | ShardedOperator, graph: Graph) -> list[Stored]:
    """The values that an action makes, each in its layout."""
    if isinstance(action, Conversion):
        return [Stored(action.value, action.dst)]
    operator = next(op for op in graph.operators if op.name == action.operator)
    return [*map(Stored, operator.outputs, action.results)]


def _has(kinds: str, array: Array) -> Array:
    """Whether a shard has numbers of the kinds that are named, `nan` or `inf`."""
    if not jnp.issubdtype(array.dtype, jnp.inexact):
        return jnp.array(False)
    is_bad = jnp.isnan(array) if "nan" in kinds else jnp.zeros(array.shape, bool)
    return jnp.any(is_bad | jnp.isinf(array) if "inf" in kinds else is_bad)


def _ends(conversion: Conversion) -> tuple[str, Spec, Spec]:
    """A key that is equal for conversions that compute the same, in whatever phase."""
    return conversion.value, conversion.src, conversion.dst


def _starts_of_repeats(chunk: Chunk, graph: Graph) -> dict[int, int]:
    """Where the chunk begins to compute something again that forward has computed.

    Returns:
        By index of the first action of such a run: the index after its last one.
    """
    results: dict[tuple[str, Rule, tuple[str, ...]], tuple[str, ...]] = {}
    first: dict[str, str] = {}
    repeated = set[str]()
    for op in graph.operators:
        if op.phase == FORWARD and op.kind == IDENTITY:  # a value that is saved
            first[op.outputs[0]] = first.get(op.inputs[0], op.inputs[0])
        elif op.phase == FORWARD:
            results.setdefault((op.kind, op.rule, op.inputs), op.outputs)
        elif op.phase == BACKWARD:
            inputs = tuple(first.get(name, name) for name in op.inputs)
            found = results.get((op.kind, op.rule, inputs))
            if found is not None:
                repeated.add(op.name)
                first.update(zip(op.outputs, found, strict=True))
    starts: dict[int, int] = {}
    start = after = 0
    is_again = False
    for index, action in enumerate(chunk.actions):
        if isinstance(action, ShardedOperator):
            if action.operator in repeated:
                start = start if is_again else after
                starts[start] = index + 1
            is_again, after = action.operator in repeated, index + 1
    return starts


def _not_before(
    environment: dict[Stored, Array], slots: Collection[Stored], present: Sequence[Stored]
) -> None:
    """Let nothing be computed from the values of `slots` before those of `present` are there.

    Otherwise XLA finds that a phase repeats a gather or a rematerialised computation of the phase
    before, and holds the result in memory from one phase to the other, against the plan; or it
    computes all that is computed again at once, when backward begins.
    """
    barred = [slot for slot in environment if slot in slots]
    if barred:
        barred += {*present}.difference(barred)
        values = lax.optimization_barrier([environment[slot] for slot in barred])
        environment.update(zip(barred, values, strict=True))


def convert(x: Array, shape: tuple[int, ...], mesh: Mesh, src: Spec, dst: Spec) -> Array:
    """A device's shard of a value in another layout; call it in a `shard_map` over the mesh.

    Args:
        x: The device's shard.
        shape: The shape of the whole value.
        mesh: The mesh of the specs.
        src: The layout before.
        dst: The layout after.

    Raises:
        InternalError: JAX has no collective for a step of the conversion.
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
