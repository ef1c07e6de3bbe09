"""Recomputes a sharding's seconds and bytes from its graph, cluster, specs and conversions alone.

It shares nothing with the search: no tables, no converter, no live ranges of `memory`. Prices come
from shardspec's plans and costmodel, one operator and one conversion at a time; memory is followed
from operator to operator. Equal operators and conversions are priced once.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from costmodel import Device, MeshLinks, Product, collective_time, operator_time, reshard_time
from shardspec import Layout, Mesh, ReshardPlan, Spec, reshard, reshard_whole_axes

from autoshard.answer.sharding_fields import ShardingFields
from autoshard.graph.graph import Graph
from autoshard.graph.graph_fields import Accesses, Operator, Value
from autoshard.graph.rule import Rule
from autoshard.space.strategy import Strategy

if TYPE_CHECKING:
    from autoshard.space.conversion import Conversion

Span = tuple[int, int, int]
"""Bytes, and the first and the last operator during which they are held."""


@dataclass(frozen=True, slots=True)
class ValueRead:
    """One read of a value, as an operand or as an output."""

    time: int
    """The index of the operator; for an output, that of the last operator of its phase."""
    phase: int
    value: str
    spec: Spec
    in_place: bool = False
    """Whether it is an output that is stored back into an input."""


def made_specs(sharding: ShardingFields) -> dict[str, Spec]:
    """The spec in which each value is stored or computed."""
    made = dict(sharding.input_specs)
    for operator, strategy in zip(sharding.graph.operators, sharding.strategies, strict=True):
        made.update(zip(operator.outputs, strategy.result_specs, strict=True))
    return made


def reads(sharding: ShardingFields) -> list[ValueRead]:
    """All reads by operators, then those of all outputs."""
    graph = sharding.graph
    every = [
        ValueRead(time, operator.phase, name, spec)
        for time, (operator, strategy) in enumerate(
            zip(graph.operators, sharding.strategies, strict=True)
        )
        for name, spec in zip(operator.inputs, strategy.operand_specs, strict=True)
    ]
    phase_of = [operator.phase for operator in graph.operators]
    for output, spec in zip(graph.outputs, sharding.output_specs, strict=True):
        phase = graph.phase_of_output(output)
        last = bisect_right(phase_of, phase) - 1
        in_place = output.alias is not None
        every.append(ValueRead(max(last, 0), phase, output.value, spec, in_place))
    return every


def conversion_misfits(sharding: ShardingFields) -> Iterator[str]:
    """Yield a sentence for each conversion or output that is wrong.

    Every conversion has to be needed, has to start from a spec that is available, and may occur
    only once; every read needs its spec; outputs need specs that the graph allows.
    """
    graph, made = sharding.graph, made_specs(sharding)
    needed = {(read.phase, read.value, read.spec) for read in reads(sharding)}
    sources = {(c.phase, c.value, c.src) for c in sharding.conversions}
    available: dict[tuple[int, str], set[Spec]] = {}
    for c in sharding.conversions:
        copies = available.setdefault((c.phase, c.value), {made[c.value]})
        if c.src not in copies:
            yield f"a conversion of {c.value!r} starts from {c.src}, which is not available"
        if c.dst in copies:
            yield f"a conversion makes {c.value!r} as {c.dst}, which is already available"
        if (c.phase, c.value, c.dst) not in needed | sources:
            yield f"a conversion makes {c.value!r} as {c.dst}, which nothing reads"
        copies.add(c.dst)
    missing = [
        (phase, name, str(spec))
        for phase, name, spec in needed
        if spec not in available.get((phase, name), {made[name]})
    ]
    for phase, name, text in sorted(missing):
        yield f"{name!r} is read as {text} in phase {phase}, which no conversion makes"
    for output, spec in zip(graph.outputs, sharding.output_specs, strict=True):
        if spec.is_partial or (output.whole and spec.axes):
            yield f"output {output.value!r} leaves as {spec}, which the graph does not allow"
        if output.alias is not None and spec != made[output.alias]:
            yield f"output {output.value!r} is stored back as {spec}, not as {made[output.alias]}"


def recompute_seconds(sharding: ShardingFields) -> tuple[list[float], list[float]]:
    """Seconds of compute and of communication in each phase, all repeats together."""
    graph, mesh, cluster = sharding.graph, sharding.mesh, sharding.cluster
    links, device = cluster.links(mesh), cluster.slowest(mesh)
    compute, communication = ([0.0] * len(graph.phases) for _ in range(2))
    known: dict[Hashable, float] = {}
    for operator, strategy in zip(graph.operators, sharding.strategies, strict=True):
        values = [graph.value(name) for name in operator.inputs + operator.outputs]
        dtypes = tuple(value.dtype for value in values)
        work: Hashable = (
            *(id(operator.rule), operator.flops, operator.accesses, id(strategy), dtypes),
        )
        repeats = graph.phases[operator.phase].repeats
        if work not in known:
            known[work] = operator_seconds(graph, operator, strategy, mesh, device)
        compute[operator.phase] += known[work] * repeats
        communication[operator.phase] += repeats * sent_seconds(
            graph, operator, strategy, mesh, links
        )
    for c in sharding.conversions:
        value = graph.value(c.value)
        move: Hashable = (value.shape, value.itemsize, c.src, c.dst)
        if move not in known:
            plan = padded_plan(value.shape, mesh, c.src, c.dst)
            known[move] = float(reshard_time(plan, value.itemsize, links))
        communication[c.phase] += known[move] * graph.phases[c.phase].repeats
    return compute, communication


def padded_plan(shape: tuple[int, ...], mesh: Mesh, src: Spec, dst: Spec) -> ReshardPlan:
    """The conversion of a tensor that is padded until both specs split it evenly."""
    whole = list(shape)
    for dim in range(len(shape)):
        while any(whole[dim] % mesh.axis_size(s.sharding_of(dim)) for s in (src, dst)):
            whole[dim] += 1
    layouts = [Layout(tuple(whole), mesh, spec) for spec in (src, dst)]
    return reshard_whole_axes(*layouts) if src.is_plain and dst.is_plain else reshard(*layouts)


def operator_seconds(
    graph: Graph, operator: Operator, strategy: Strategy, mesh: Mesh, device: Device
) -> float:
    """Seconds of one run of an operator on the busiest of equal devices."""
    part, is_balanced = 1.0, _halved(operator.rule, strategy, mesh) is not None
    for index, factor in enumerate(operator.rule.factors):
        n = 1 if factor.kind == "whole" else _parts(operator.rule, strategy, mesh, index)
        indices = range(factor.size - math.ceil(factor.size / n), factor.size)
        if factor.rises and not is_balanced:
            part *= (sum(indices) + len(indices)) / (sum(range(factor.size)) + factor.size)
        else:
            part *= len(indices) / max(factor.size, 1)
    values = [graph.value(name) for name in operator.inputs + operator.outputs]
    specs = strategy.operand_specs + strategy.result_specs
    accesses = operator.accesses or Accesses((1.0,) * len(values))
    n_bytes = sum(
        times * _bytes(value, mesh, spec)
        for times, value, spec in zip(accesses.times, values, specs, strict=True)
    )
    dtype = _dtype(operator, values)
    product = _product(operator, operator.flops * part, strategy, mesh, values[-1].itemsize)
    how = dtype, accesses.launches, product
    return float(operator_time(operator.flops * part, n_bytes, device, *how))


def sent_seconds(
    graph: Graph, operator: Operator, strategy: Strategy, mesh: Mesh, links: MeshLinks
) -> float:
    """Seconds of all messages between devices in one run of an operator."""
    return sum(
        float(collective_time("permute", n_bytes, links.group(axes)))
        for n_bytes, axes in _sent(graph, operator, strategy, mesh)
    )


def _parts(rule: Rule, strategy: Strategy, mesh: Mesh, factor: int) -> int:
    """Into how many parts a factor is split, by itself or by a ring."""
    return math.prod(
        size
        for size, target in zip(mesh.shape, strategy.mapping, strict=True)
        if target == factor
        or (isinstance(target, tuple) and target[0] == "ring" and factor in rule.rings[target[1]])
    )


def _halved(rule: Rule, strategy: Strategy, mesh: Mesh) -> int | None:
    """The factor of which a half belongs to the opposite device's part of the one that rises."""
    specs = strategy.operand_specs + strategy.result_specs
    if not rule.sends or not all(spec.is_plain for spec in specs):
        return None
    size = [
        factor.size / _parts(rule, strategy, mesh, index)
        for index, factor in enumerate(rule.factors)
    ]
    rising = {i for i, factor in enumerate(rule.factors) if factor.rises and size[i] < factor.size}
    moved = [dims for dims in rule.operands + rule.results if any(rising & {*d} for d in dims)]
    for index, factor in enumerate(rule.factors):
        places = [dim for dims in moved for dim in dims if index in dim]
        if (
            factor.halves
            and len(rising) == 1
            and len(places) == len(moved)
            and size[index] > 0
            and size[index] % 2 == 0
            and all(size[outer] == 1 for dim in places for outer in dim[: dim.index(index)])
        ):
            return index
    return None


def _sent(
    graph: Graph, operator: Operator, strategy: Strategy, mesh: Mesh
) -> Iterator[tuple[float, tuple[int, ...]]]:
    """The bytes of each message that a device sends while an operator runs, and over which axes."""
    if not operator.rule.sends:
        return
    rule, names = operator.rule, operator.inputs + operator.outputs
    half = _halved(rule, strategy, mesh)
    specs = strategy.operand_specs + strategy.result_specs
    every = list(zip(rule.operands + rule.results, names, specs, strict=True))
    for number, (dims, name, spec) in enumerate(every):
        value, is_result = graph.value(name), number >= len(rule.operands)
        if (is_result and name in graph.unread) or every[number] in every[:number]:
            continue
        n_bytes = _bytes(value, mesh, spec)
        for ring, (_, turning) in enumerate(rule.rings):
            axes = tuple(a for a, target in enumerate(strategy.mapping) if target == ("ring", ring))
            if axes and (turning,) in dims:
                wide = max(4 / value.itemsize, 1.0) if is_result else 1.0
                for _ in range(mesh.axis_size(axes) - (not is_result)):
                    yield n_bytes * wide, axes
        for dim, factors in enumerate(dims) if half is not None else ():
            if spec.plain_dims[dim] and any(rule.factors[factor].rises for factor in factors):
                yield n_bytes / 2, spec.plain_dims[dim]


def _product(
    operator: Operator, flops: float, strategy: Strategy, mesh: Mesh, itemsize: int
) -> Product | None:
    """The sizes of the matrices that a device multiplies; see `matrix_sizes` for what they are."""
    rule, split = operator.rule, dict[int, int]()
    multiplies = sorted(group for group in rule.linear if len(group) == 1) == [(0,), (1,)]
    sums = any(factor.kind == "reduce" for factor in rule.factors)
    if not (multiplies and sums and len(rule.operands) == 2 and len(rule.results) == 1):
        return None
    for factor in range(len(rule.factors)):
        split[factor] = _parts(rule, strategy, mesh, factor)
    has = [{f for dim in dims for f in dim} for dims in (*rule.operands, rule.results[0])]
    if has[0].isdisjoint(has[1]):
        return None
    sizes = {"m": 1.0, "n": 1.0, "batch": 1.0}
    for factor in has[2]:
        name = "m" if factor not in has[1] else "batch" if factor in has[0] else "n"
        sizes[name] *= math.ceil(rule.factors[factor].size / split.get(factor, 1))
    k = flops / max(2 * math.prod(sizes.values()), 1.0)
    return Product(sizes["m"], sizes["n"], k, sizes["batch"], itemsize)


def _dtype(operator: Operator, values: list[Value]) -> str:
    """The dtype of the multiplied operands, as `arithmetic`, which the search uses, explains it."""
    operands = values[: len(operator.inputs)] or values
    widest_first = sorted(operands, key=lambda value: -value.itemsize)
    of_numbers = [v for v in widest_first if "float" in v.dtype or "complex" in v.dtype]
    if not of_numbers:
        return widest_first[0].dtype
    alone = {group[0] for group in operator.rule.linear if len(group) == 1}
    if operator.inputs and alone == set(range(len(operator.inputs))):
        return of_numbers[0].dtype
    rank = max(len(value.shape) for value in of_numbers)
    return next(value.dtype for value in of_numbers if len(value.shape) == rank)


def _bytes(value: Value, mesh: Mesh, spec: Spec) -> int:
    return Layout(value.shape, mesh, spec, "padded").local_bytes(value.itemsize)


def _sizes(sharding: ShardingFields) -> Callable[[str, Spec], int]:
    """A function from name and spec to the bytes of the largest shard of a value."""
    known: dict[Hashable, int] = {}

    def size(name: str, spec: Spec) -> int:
        value = sharding.graph.value(name)
        key = (value.shape, value.itemsize, spec)
        if key not in known:
            known[key] = _bytes(value, sharding.mesh, spec)
        return known[key]

    return size


def recompute_memory(sharding: ShardingFields) -> tuple[int, int]:
    """The most bytes that a device holds while any operator runs, and the bytes that forward saves.

    The latter are of one microbatch, even if several are in flight.
    """
    changes = [0] * (len(sharding.graph.operators) + 2)
    size = _sizes(sharding)
    for n_bytes, first, last in _spans(sharding, size):
        changes[first] += n_bytes
        changes[last + 1] -= n_bytes
    graph = sharding.graph
    stored_back = _stored_back(graph)
    saved = sum(
        size(name, spec)
        for name, spec in made_specs(sharding).items()
        if name not in stored_back and _is_saved(graph, name)
    )
    return max(list(accumulate(changes))[: max(len(graph.operators), 1)]), saved


def _stored_back(graph: Graph) -> set[str]:
    """The values that are stored back into inputs, and take their memory."""
    return {output.value for output in graph.outputs if output.alias is not None}


def _is_saved(graph: Graph, name: str) -> bool:
    """Whether a value is held once for each microbatch in flight.

    It is if forward computes or reads it and a later phase reads it, except for parameters and
    states, which all microbatches share.
    """
    phases = [graph.operators[time].phase for time in graph.readers[name]]
    if name in graph.producers:
        begins = graph.operators[graph.producers[name][0]].phase == 0
    else:
        begins = graph.value(name).role in ("batch", "activation") and 0 in phases
    return begins and any(phase > 0 for phase in phases)


def _spans(sharding: ShardingFields, size: Callable[[str, Spec], int]) -> Iterator[Span]:
    """Yield the span of each value and copy that is held."""
    graph, in_flight = sharding.graph, sharding.options.in_flight
    phase_of = [operator.phase for operator in graph.operators]
    stored_back = _stored_back(graph)
    every = reads(sharding)
    times_of: defaultdict[str, list[int]] = defaultdict(list)
    for read in every:
        times_of[read.value].append(read.time)
    for name, spec in made_specs(sharding).items():
        n_bytes = size(name, spec)
        copies = in_flight if _is_saved(graph, name) else 1
        if name not in graph.producers:
            yield n_bytes * copies, 0, len(phase_of)
            continue
        if name in stored_back:
            continue
        begin, times = graph.producers[name][0], graph.readers[name]
        end = max([begin, *times_of[name]])
        if copies > 1:
            yield n_bytes * copies, 0, max(end, bisect_right(phase_of, phase_of[times[-1]]) - 1)
            continue
        runs = [graph.phases[phase_of[time]].repeats for time in (begin, *times[-1:])]
        is_sum = runs[0] > runs[-1]
        yield n_bytes, 0 if is_sum else begin, end
    yield from _spans_of_copies(sharding, every, size)


def _spans_of_copies(
    sharding: ShardingFields, every: list[ValueRead], size: Callable[[str, Spec], int]
) -> Iterator[Span]:
    """Yield the spans of the results of conversions, while they are read or converted further."""
    direct: defaultdict[tuple[int, str, Spec], list[int]] = defaultdict(list)
    for read in every:
        if not read.in_place:
            direct[read.phase, read.value, read.spec].append(read.time)
    needed: dict[tuple[int, str, Spec], list[int]] = {}
    after: defaultdict[tuple[int, str, Spec], list[Conversion]] = defaultdict(list)
    for c in sharding.conversions:
        after[c.phase, c.value, c.src].append(c)
    for c in reversed(sharding.conversions):  # conversions that start from its result come later
        key = (c.phase, c.value, c.dst)
        # such a conversion runs when its own result is needed for the first time
        starts = [needed[c.phase, c.value, other.dst] for other in after[key]]
        needed[key] = direct[key] + [min(times) for times in starts if times]
    for c in sharding.conversions:
        key = (c.phase, c.value, c.dst)
        times = needed[key]
        if times and (direct[key] or min(times) < max(times)):
            yield size(c.value, c.dst), min(times), max(times)
