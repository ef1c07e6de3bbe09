"""Expand the sharding of a step with repeated layers left out to one of all its layers.

Every layer has the strategies of the short layer that stands for it, and converts the corresponding
values. The price is the sum over the layers; memory follows from the live ranges.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import autoshard
from autoshard import Accesses, Conversion, Graph, Operator, Rule, Sharding, Strategy, Value
from costmodel import Device, Product, operator_time, step_time
from shardspec import Spec

from frontends.layers.collapse import Repeated
from frontends.layers.layers import LayeredStep
from frontends.step import stage_memory

MEMORY_BY = "frontends"
"""`Sharding.memory_by` of our shardings: their memory is that of programs; see `stage_memory`."""


class DifferentCopiesError(Exception):
    """Equal layers have different shardings, so that one cannot stand for the others."""


@dataclass(frozen=True, slots=True)
class LayerSeconds:
    """The time of one or several layers in a step, by phase; all repeats of a phase together."""

    compute_s: tuple[float, ...]
    communication_s: tuple[float, ...]

    @property
    def total_s(self) -> tuple[float, ...]:
        """Compute and communication together, by phase."""
        return tuple(c + k for c, k in zip(self.compute_s, self.communication_s, strict=True))

    @property
    def objective_s(self) -> float:
        """Compute and communication of all phases together."""
        return sum(self.compute_s) + sum(self.communication_s)

    @classmethod
    def of(cls, each: Sequence[LayerSeconds], layers: Sequence[int]) -> LayerSeconds:
        """The sum over `layers`, each as often as it occurs; `each` is indexed by layer."""
        compute = zip(*(each[k].compute_s for k in layers), strict=True)
        sent = zip(*(each[k].communication_s for k in layers), strict=True)
        return cls(tuple(map(sum, compute)), tuple(map(sum, sent)))


def layer_seconds(layered: LayeredStep, sharding: Sharding, first: int) -> list[LayerSeconds]:
    """By layer, its time in a stage. A collective counts for the layer that computes its value.

    Args:
        layered: The step.
        sharding: The sharding of a run of its layers.
        first: The first layer of the run; values that the stage receives count for it.
    """
    graph, cluster = sharding.graph, sharding.cluster
    device = cluster.slowest(sharding.mesh)
    n_phases, n_layers = len(graph.phases), layered.n_layers
    compute = [[0.0] * n_phases for _ in range(n_layers)]
    sent = [[0.0] * n_phases for _ in range(n_layers)]
    dtypes = {value.name: value.dtype for value in graph.values}
    known: dict[Hashable, float] = {}  # repeated layers share rules and strategies
    for op, strategy in zip(graph.operators, sharding.strategies, strict=True):
        key = (
            *(id(op.rule), op.flops, op.accesses, id(strategy)),
            *(dtypes[n] for n in (*op.inputs, *op.outputs)),
        )
        if key not in known:
            known[key] = operator_seconds(graph, op, strategy, sharding.mesh.shape, device)
        compute[layered.layer_of[op.name]][op.phase] += graph.phases[op.phase].repeats * known[key]
    links = cluster.links(sharding.mesh)
    source = {
        name: layered.layer_of[graph.operators[index].name]
        for name, (index, _) in graph.producers.items()
    }
    collectives = autoshard.collectives(graph, sharding)
    for c in collectives:
        layer = source.get(c.value, layered.home.get(c.value, first))
        key = (id(c.step), c.itemsize)
        if key not in known:
            known[key] = step_time(c.step, c.itemsize, links)
        sent[layer][c.phase] += c.repeats * known[key]
    return [LayerSeconds(tuple(c), tuple(k)) for c, k in zip(compute, sent, strict=True)]


def operator_seconds(
    graph: Graph, op: Operator, strategy: Strategy, mesh_shape: tuple[int, ...], device: Device
) -> float:
    """Time of one run of an operator, as autoshard prices it: the roofline of the largest shard."""
    values = [graph.value(name) for name in (*op.inputs, *op.outputs)]
    kinds = tuple((value.shape, value.dtype) for value in values)
    return _operator_seconds(op.rule, op.flops, op.accesses, strategy, kinds, mesh_shape, device)


@lru_cache(maxsize=1 << 14)
def _operator_seconds(
    rule: Rule,
    flops: float,
    accesses: Accesses | None,
    strategy: Strategy,
    kinds: tuple[tuple[tuple[int, ...], str], ...],
    mesh_shape: tuple[int, ...],
    device: Device,
) -> float:
    share = autoshard.work_share(rule, strategy, mesh_shape)
    values = [Value("", shape, dtype) for shape, dtype in kinds]
    specs = (*strategy.operand_specs, *strategy.result_specs)
    accesses = accesses or Accesses((1.0,) * len(values))
    n_bytes = sum(
        value.itemsize * times * local_elements(spec, value.shape, mesh_shape)
        for value, times, spec in zip(values, accesses.times, specs, strict=True)
    )
    dtype = autoshard.arithmetic_dtype(rule, tuple(value.dtype for value in values))
    product = None
    if device.products is not None:
        product = product_of(rule, flops * share, values[-1].itemsize, strategy, mesh_shape)
    how = dtype, accesses.launches, product
    return operator_time(flops * share, float(n_bytes), device, *how)


def product_of(
    rule: Rule,
    flops: float,
    itemsize: int,
    strategy: Strategy | None = None,
    mesh_shape: tuple[int, ...] = (),
) -> Product | None:
    """The product of matrices that an operator is; None if it is none.

    Args:
        rule: The operator's rule.
        flops: FLOP of the largest shard, or of the whole.
        itemsize: Bytes of an element of the result.
        strategy: How it is split, for the product of the largest shard; without, for the whole.
        mesh_shape: The sizes of the mesh's axes.
    """
    sizes = autoshard.matrix_sizes(rule, strategy, mesh_shape)
    if sizes is None:
        return None
    rows, columns, batch = sizes
    terms = flops / max(2 * rows * columns * batch, 1.0)
    return Product(rows, columns, terms, batch, itemsize)


def local_elements(spec: Spec, shape: tuple[int, ...], mesh_shape: tuple[int, ...]) -> int:
    """Number of elements in the largest shard of a tensor."""
    parts = (math.prod(mesh_shape[a] for a in axes) for axes in spec.plain_dims)
    return math.prod(-(-size // n) for size, n in zip(shape, parts, strict=True))


def expand(
    repeated: Repeated,
    sharding: Sharding,
    first: int,
    last: int,
    graph: Graph | None = None,
    seconds: LayerSeconds | None = None,
) -> Sharding:
    """The sharding of layers `first` to `last`, from that of the short layers that stand for them.

    Its memory is not computed here, but by `with_memory`.

    Args:
        repeated: The whole step and the short one.
        sharding: The sharding of the short layers that `Repeated.shortened` returns.
        first: First layer, in the whole step.
        last: Last layer, included.
        graph: The graph of these layers, if it is known.
        seconds: The time of these layers together, if it is known.

    Raises:
        DifferentCopiesError: The shardings of equal layers differ.
    """
    whole, short = repeated.whole, repeated.short
    layers, low, _ = repeated.shortened(first, last)
    graph = whole.stage(first, last) if graph is None else graph
    few = sharding.graph
    names = _Names(whole, short, graph, few, dict(zip(range(first, last + 1), layers, strict=True)))
    strategy_of = dict(zip((op.name for op in few.operators), sharding.strategies, strict=True))
    strategies = tuple(strategy_of[names.operator[op.name]] for op in graph.operators)
    stored = dict(sharding.input_specs)
    if any(names.value[name] not in stored for name in graph.inputs):
        raise DifferentCopiesError
    input_specs = tuple((name, stored[names.value[name]]) for name in graph.inputs)
    leaving = {
        (output.value, output.alias is None): spec
        for output, spec in zip(few.outputs, sharding.output_specs, strict=True)
    }
    home = dict(input_specs)
    for op, strategy in zip(graph.operators, strategies, strict=True):
        home.update(zip(op.outputs, strategy.result_specs, strict=True))
    output_specs = []
    for output in graph.outputs:
        spec = leaving.get((names.value[output.value], output.alias is None), home[output.value])
        if output.alias is not None:
            spec = home[output.alias]
        if spec.is_partial:
            raise DifferentCopiesError
        output_specs.append(spec)
    conversions = _conversions(
        graph, strategies, tuple(output_specs), home, sharding.conversions, names.value
    )
    if seconds is None:
        seconds = LayerSeconds.of(layer_seconds(short, sharding, low), layers)
    return replace(
        sharding,
        graph=graph,
        input_specs=input_specs,
        strategies=strategies,
        conversions=conversions,
        output_specs=tuple(output_specs),
        compute_s=seconds.compute_s,
        communication_s=seconds.communication_s,
        objective_s=seconds.objective_s,
        lower_bound_s=0.0,
        hidden_s=(0.0,) * len(graph.phases),
        bucketed_s=(0.0,) * len(graph.phases),
        peak_bytes=0,
        activation_bytes=0,
        memory_by=MEMORY_BY,
    )


def with_memory(
    sharding: Sharding,
    in_flight: int,
    footprint: autoshard.Footprint | None = None,
    *,
    split: bool = False,
) -> Sharding:
    """The sharding with its peak memory for a number of microbatches in flight.

    Args:
        sharding: The sharding of a run of layers.
        in_flight: The number of microbatches.
        footprint: The footprint of the sharding, if it is known.
        split: Whether backward is split into two programs. Then a single microbatch in flight is
            held like one of several: until the second program is over.
    """
    if footprint is None:
        footprint = stage_memory.footprint(sharding)
    if split:
        alone = tuple(f + s for f, s in zip(footprint.fixed, footprint.saved, strict=True))
        footprint = replace(footprint, alone=alone)
    return replace(
        sharding,
        options=replace(sharding.options, in_flight=in_flight),
        peak_bytes=footprint.peak_bytes(in_flight),
        activation_bytes=footprint.activation_bytes,
        memory_by=MEMORY_BY,
    )


class _Names:
    """By operator or value of a run of layers, the name of its counterpart in the short step."""

    def __init__(
        self,
        whole: LayeredStep,
        short: LayeredStep,
        graph: Graph,
        few: Graph,
        short_of: Mapping[int, int],
    ) -> None:
        self.operator: dict[str, str] = {}
        self.value: dict[str, str] = {}
        ops, short_ops = whole.step.graph.operators, short.step.graph.operators
        received: dict[str, str] = {}
        for layer, other in short_of.items():
            pairs = zip(whole.operators_of[layer], short.operators_of[other], strict=True)
            for op, short_op in ((ops[i], short_ops[j]) for i, j in pairs):
                self.operator[op.name] = short_op.name
                self.value.update(zip(op.outputs, short_op.outputs, strict=True))
                for a, b in zip(op.inputs, short_op.inputs, strict=True):
                    if b not in few.producers:
                        received.setdefault(a, b)
        for layer, other in short_of.items():
            values = zip(whole.own_values[layer], short.own_values[other], strict=True)
            received.update((a, b) for a, b in values if b not in few.producers)
        for name in graph.inputs:
            self.value[name] = received.get(name, name)


def _conversions(
    graph: Graph,
    strategies: Sequence[Strategy],
    output_specs: Sequence[Spec],
    home: Mapping[str, Spec],
    conversions: Sequence[Conversion],
    short_name: Mapping[str, str],
) -> tuple[Conversion, ...]:
    """The conversions that operators and outputs need, each by the way that the short step takes.

    Raises:
        DifferentCopiesError: The short step has no conversion to a layout that is needed.
    """
    known: dict[tuple[int, str], list[Conversion]] = defaultdict(list)
    for c in conversions:
        known[c.phase, c.value].append(c)
    asked: dict[tuple[int, str], set[Spec]] = {}

    def ask(phase: int, name: str, spec: Spec) -> None:
        wanted = asked.setdefault((phase, name), set())
        if spec is not home[name] and spec != home[name]:  # `is` is faster, and true for most
            wanted.add(spec)

    for op, strategy in zip(graph.operators, strategies, strict=True):
        for name, spec in zip(op.inputs, strategy.operand_specs, strict=True):
            ask(op.phase, name, spec)
    for output, spec in zip(graph.outputs, output_specs, strict=True):
        ask(graph.phase_of_output(output), output.value, spec)
    result: list[Conversion] = []
    for (phase, name), needed in sorted(asked.items(), key=lambda item: item[0][0]):
        if not needed:
            continue
        chain: list[Conversion] = []
        for c in reversed(known[phase, short_name[name]]):
            if c.dst in needed:
                chain.append(replace(c, value=name))
                needed = (needed - {c.dst}) | ({c.src} - {home[name]})
        if needed:
            raise DifferentCopiesError
        result += reversed(chain)
    return tuple(result)
