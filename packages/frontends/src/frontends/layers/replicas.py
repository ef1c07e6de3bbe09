"""Replicate layers, for schedules that send microbatches through the ranks along several routes.

DualPipe and Chimera have two routes, one up the ranks and one down, so that every stage is on two
ranks, and each replica of it runs the microbatches of its route. Here a replica consists of layers
of its own: the step gets forward and backward once for each route. Only the first replica keeps and
updates weights and optimizer state. It sends the weights to the others when a step begins, and they
send it the sums of their gradients when the step ends. These are the bytes of an all-reduce between
the replicas (Li, Hoefler, Chimera, SC 2021, section 3.2), with one optimizer state and one update.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import autoshard
from autoshard import Conversion, Graph, Operator, Sharding, Strategy, Value
from autoshard.space.strategy_tables import table_of
from shardspec import Layout, Spec, reshard_whole_axes

from frontends.layers.expand import MEMORY_BY, LayerSeconds, layer_seconds
from frontends.layers.layers import LayeredStep
from frontends.plan.plan_fields import PlanFields
from frontends.plan.schedule import schedule_of
from frontends.step.step import APPLY, BACKWARD, FORWARD, SUM, identity, sum_of_copies


@dataclass(frozen=True)
class CopiedStep:
    """A step with replicas of its layers, and what they are copies of."""

    layered: LayeredStep
    """The replicas of layer k are layers k, k + L, k + 2 L, ... of L layers."""

    n_layers: int
    """L, the number of layers without replicas."""

    original: Mapping[str, str]
    """By operator or value that is a copy, or an addend of a sum over replicas: the original."""

    totals: Mapping[str, str]
    """By value that a replica sends to the first one: the total of which it is an addend."""

    @property
    def traced(self) -> dict[str, str]:
        """By operator that is a copy of whatever kind, the operator of the trace that it runs."""
        found: dict[str, str] = {}
        for copies in (self.layered.step.original, self.layered.local, self.original):
            found.update((copy, found.get(name, name)) for copy, name in copies.items())
        return found


def with_copies(layered: LayeredStep, n_routes: int) -> CopiedStep:
    """The step with forward and backward once for each route, and apply once.

    Args:
        layered: A step without replicas.
        n_routes: Number of routes of a `pipesched.Placement`; with one, the step stays the same.
    """
    step, graph, size = layered.step, layered.step.graph, layered.n_layers
    if n_routes == 1:
        return CopiedStep(layered, size, {}, {})
    producer = {name: op for op in graph.operators if op.phase != APPLY for name in op.outputs}
    summed = set(step.summed)
    layer_of, original, totals = dict(layered.layer_of), dict[str, str](), dict[str, str]()
    values: list[Value] = list(graph.values)

    def named(name: str, route: int) -> str:
        is_another = name in producer and (route > 0 or name in summed)
        return f"route{route}.{name}" if is_another else name

    def on(route: int, op: Operator) -> Operator:
        name = f"route{route}.{op.name}" if route else op.name
        layer_of[name] = layered.layer_of[op.name] + route * size
        if route:
            original[name] = op.name
        inputs = tuple(named(value, route) for value in op.inputs)
        outputs = tuple(named(value, route) for value in op.outputs)
        return replace(op, name=name, inputs=inputs, outputs=outputs)

    operators = [
        on(route, op)
        for phase in (FORWARD, BACKWARD)
        for route in range(n_routes)
        for op in graph.operators
        if op.phase == phase
    ]
    for route in range(n_routes):
        for name in producer:
            if (copy := named(name, route)) != name:
                values.append(replace(graph.value(name), name=copy))
                original[copy] = name
    sums: list[Operator] = []
    for name in step.summed:
        value, layer = graph.value(name), layered.layer_of[producer[name].name]
        parts = [named(name, 0)]
        for route in range(1, n_routes):
            total = f"total.{named(name, route)}"
            values.append(replace(value, name=total))
            totals[total] = name
            operators.append(identity(replace(value, name=named(name, route)), total))
            layer_of[total] = layer + route * size
            parts.append(total)
        sums.append(sum_of_copies(value, parts))
        layer_of[sums[-1].name] = layer
    operators += (*sums, *(op for op in graph.operators if op.phase == APPLY))
    copied = replace(
        step,
        graph=replace(graph, values=tuple(values), operators=tuple(operators)),
        summed=tuple(named(name, route) for route in range(n_routes) for name in step.summed),
    )
    local = dict(layered.local)
    for route in range(1, n_routes):
        names = layered.local.items()
        local.update((f"route{route}.{copy}", f"route{route}.{of}") for copy, of in names)
    every = LayeredStep(copied, n_routes * size, layer_of, layered.home, local, layered.held)
    return CopiedStep(every, size, original, totals)


def copied_as(layered: LayeredStep, plan: PlanFields) -> CopiedStep:
    """The step that a plan runs, with the replicas that its schedule has.

    Raises:
        PlanError: The schedule cannot run.
    """
    n_routes = len(schedule_of(plan).placement.routes)
    stages = plan.stages[: len(plan.stages) // n_routes]
    spans = [(stage.first_layer, stage.last_layer) for stage in stages]
    return with_copies(layered.merged(spans), n_routes)


def sharding_of_copy(
    whole: Sharding, copied: CopiedStep, first: int, last: int, microbatches: int
) -> Sharding:
    """The sharding of a stage's replica, from that of the stage in the step without replicas.

    Forward, backward and apply have the same strategies. A replica reduces its addend of a total
    before it sends it. The addend arrives in the layout in which the first replica has its own when
    it adds them: the layout that apply reads, or, if apply computes with partial sums, that of the
    partial sum.

    Args:
        whole: The sharding of the stage, on a mesh of the replica's shape.
        copied: The step with replicas.
        first: First layer of the replica, in the step with replicas.
        last: Last layer, included.
        microbatches: The number of microbatches that the replica runs.

    Returns:
        A sharding without memory, which `expand.with_memory` computes.
    """
    graph = copied.layered.stage(first, last)
    repeats = (microbatches, microbatches, 1)
    phases = tuple(replace(p, repeats=n) for p, n in zip(graph.phases, repeats, strict=True))
    is_first = first < copied.n_layers
    derived = _Derivation(whole, copied, replace(graph, phases=phases), is_first).sharding()
    each = layer_seconds(copied.layered, derived, first)
    seconds = LayerSeconds.of(each, range(first, last + 1))
    return replace(
        derived,
        compute_s=seconds.compute_s,
        communication_s=seconds.communication_s,
        objective_s=seconds.objective_s,
        lower_bound_s=0.0,
        hidden_s=(0.0,) * len(phases),
        bucketed_s=(0.0,) * len(phases),
        peak_bytes=0,
        activation_bytes=0,
        memory_by=MEMORY_BY,
    )


class _Derivation:
    """Derives the sharding of a replica, whose graph is `graph`, from that of the stage."""

    def __init__(self, whole: Sharding, copied: CopiedStep, graph: Graph, is_first: bool) -> None:
        self._whole, self._copied, self._graph = whole, copied, graph
        self._is_first = is_first
        self._strategy_of = dict(
            zip((op.name for op in whole.graph.operators), whole.strategies, strict=True)
        )
        self._home = dict(whole.input_specs)
        self._read_as: dict[str, set[Spec]] = {}
        """By value, the layouts in which apply reads it."""

        for op, strategy in zip(whole.graph.operators, whole.strategies, strict=True):
            self._home.update(zip(op.outputs, strategy.result_specs, strict=True))
            if op.phase == APPLY:
                for name, spec in zip(op.inputs, strategy.operand_specs, strict=True):
                    self._read_as.setdefault(name, set()).add(spec)

    def sharding(self) -> Sharding:
        """The sharding of the replica, with the prices of the whole stage."""
        leaving = {
            (output.value, output.alias): spec
            for output, spec in zip(
                self._whole.graph.outputs, self._whole.output_specs, strict=True
            )
        }
        totals = self._copied.totals
        return replace(
            self._whole,
            graph=self._graph,
            input_specs=tuple((name, self._stored(name)) for name in self._graph.inputs),
            strategies=tuple(map(self._strategy, self._graph.operators)),
            conversions=tuple(self._conversions()),
            output_specs=tuple(
                self._stored(output.value)
                if output.value in totals
                else leaving[self._original(output.value), output.alias]
                for output in self._graph.outputs
            ),
        )

    def _original(self, name: str) -> str:
        return self._copied.original.get(name, name)

    def _stored(self, name: str) -> Spec:
        total = self._copied.totals.get(name)
        return self._home[self._original(name)] if total is None else _reduced(self._added(total))

    def _added(self, total: str) -> Spec:
        """The layout in which the replicas' addends of a total are added."""
        read = self._read_as.get(total, set())
        only = next(iter(read)) if len(read) == 1 else None
        return self._home[total] if only is None or only.is_partial else only

    def _strategy(self, op: Operator) -> Strategy:
        if op.name in self._copied.totals:
            spec = self._stored(op.name)
            return self._strategy_with(op, (spec,), spec)
        if op.kind == SUM:
            spec = self._added(op.outputs[0])
            others = (_reduced(spec),) * (len(op.inputs) - 1)
            return self._strategy_with(op, (spec, *others), spec)
        return self._strategy_of[self._original(op.name)]

    def _strategy_with(self, op: Operator, operands: tuple[Spec, ...], result: Spec) -> Strategy:
        table = table_of(self._graph, op, self._whole.mesh.shape, self._whole.options)
        for strategy in table.strategies:
            if (strategy.operand_specs, strategy.result_specs) == (operands, (result,)):
                return strategy
        raise autoshard.InfeasibleError(
            f"copies of a stage add up their parts of {op.outputs[0]}, which is impossible in "
            f"layout {result}: take a schedule that has each stage once"
        )

    def _conversions(self) -> Iterator[Conversion]:
        totals = self._copied.totals
        names = [n for op in self._graph.operators if op.phase != APPLY for n in op.outputs]
        names += [name for name in self._graph.inputs if name not in totals]
        copy_of = {self._original(name): name for name in names}
        produced = {name for op in self._whole.graph.operators for name in op.outputs}
        summed = produced.intersection(totals.values())
        added = {total for total in summed if self._added(total) == self._home[total]}
        before = summed - added
        for c in self._whole.conversions:
            if c.phase != APPLY or c.value in before:
                yield replace(c, value=copy_of[c.value])
            elif self._is_first:
                yield c
        for op in self._graph.operators:
            if totals.get(op.name) in added:
                value = self._graph.value(op.inputs[0])
                home = self._home[totals[op.name]]
                ends = (Layout(value.shape, self._whole.mesh, s) for s in (home, _reduced(home)))
                for step in reshard_whole_axes(*ends).steps:
                    yield Conversion(APPLY, value.name, step.src.spec, step.dst.spec)


def _reduced(spec: Spec) -> Spec:
    """The layout of a partial sum after its reduction."""
    return Spec(spec.dims)
