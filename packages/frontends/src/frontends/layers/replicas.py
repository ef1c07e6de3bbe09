"""Copies of stages, for schedules that send microbatches through the ranks along several routes.

DualPipe and Chimera have two routes, one up the ranks and one down, so that every stage is on two
ranks, and each copy of it runs the microbatches of its route. Here a copy is layers of its own: the
step becomes one that has forward and backward once for each route. Weights and optimizer state are
kept, and updated, by the first copy alone. The others get the weights when a step begins, and send
the sums of their gradients when it ends: the bytes of an all-reduce between the copies (Li,
Hoefler, Chimera, SC 2021, section 3.2), but one optimizer state and one update.
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
    """A step with copies of its layers, and what they are copies of."""

    layered: LayeredStep
    """Copies of layer k are layers k, k + L, k + 2 L, ... of L layers."""

    n_layers: int
    """L."""

    original: Mapping[str, str]
    """By the name of an operator or value that is a copy, or a part of a sum over the copies."""

    totals: Mapping[str, str]
    """By the name of what a copy sends to the first one: the value that it is a part of."""


def with_copies(layered: LayeredStep, n_routes: int) -> CopiedStep:
    """The step with forward and backward once for each route, and apply once.

    Args:
        layered: A step without copies.
        n_routes: Of `pipesched.Placement`; with one, the step stays as it is.
    """
    step, graph, size = layered.step, layered.step.graph, layered.n_layers
    if n_routes == 1:
        return CopiedStep(layered, size, {}, {})
    made = {name: op for op in graph.operators if op.phase != APPLY for name in op.outputs}
    summed = set(step.summed)
    layer_of, original, totals = dict(layered.layer_of), dict[str, str](), dict[str, str]()
    values: list[Value] = list(graph.values)

    def named(name: str, route: int) -> str:
        is_another = name in made and (route > 0 or name in summed)
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
        for name in made:
            if (copy := named(name, route)) != name:
                values.append(replace(graph.value(name), name=copy))
                original[copy] = name
    sums: list[Operator] = []
    for name in step.summed:
        value, layer = graph.value(name), layered.layer_of[made[name].name]
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
    every = LayeredStep(copied, n_routes * size, layer_of, layered.home)
    return CopiedStep(every, size, original, totals)


def copied_as(layered: LayeredStep, plan: PlanFields) -> CopiedStep:
    """The step with as many copies as a plan's schedule has; `PlanError` if it cannot run."""
    return with_copies(layered, len(schedule_of(plan).placement.routes))


def sharding_of_copy(
    whole: Sharding, copied: CopiedStep, first: int, last: int, microbatches: int
) -> Sharding:
    """How a copy of a stage runs if the stage, without copies, runs as `whole` says.

    Forward, backward and apply do the same. What a copy sends of a total is reduced before, and
    arrives in the layout in which the first copy has its own part when they are added: the one
    that apply reads, or, where apply goes on with partial sums, that of those.

    Args:
        whole: Of the stage, on a mesh of the copy's shape.
        copied: The step with copies.
        first: Its layer with which the copy begins.
        last: Included.
        microbatches: That the copy runs.

    Returns:
        A sharding whose memory is left to `expand.with_memory`.
    """
    graph = copied.layered.stage(first, last)
    repeats = (microbatches, microbatches, 1)
    phases = tuple(replace(p, repeats=n) for p, n in zip(graph.phases, repeats, strict=True))
    is_first = first < copied.n_layers
    found = _Derivation(whole, copied, replace(graph, phases=phases), is_first).sharding()
    each = layer_seconds(copied.layered, found, first)
    seconds = LayerSeconds.of(each, range(first, last + 1))
    return replace(
        found,
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
    """From the sharding of a stage to that of a copy, of which `graph` is."""

    def __init__(self, whole: Sharding, copied: CopiedStep, graph: Graph, is_first: bool) -> None:
        self._whole, self._copied, self._graph = whole, copied, graph
        self._is_first = is_first
        self._strategy_of = dict(
            zip((op.name for op in whole.graph.operators), whole.strategies, strict=True)
        )
        self._home = dict(whole.input_specs)
        self._read_as: dict[str, set[Spec]] = {}
        """By value the layouts in which apply reads it."""

        for op, strategy in zip(whole.graph.operators, whole.strategies, strict=True):
            self._home.update(zip(op.outputs, strategy.result_specs, strict=True))
            if op.phase == APPLY:
                for name, spec in zip(op.inputs, strategy.operand_specs, strict=True):
                    self._read_as.setdefault(name, set()).add(spec)

    def sharding(self) -> Sharding:
        """Of the copy; prices are those of the whole."""
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
        """The layout in which the copies' parts of a total are added."""
        read = self._read_as.get(total, set())
        only = next(iter(read)) if len(read) == 1 else None
        return self._home[total] if only is None or only.is_partial else only

    def _strategy(self, op: Operator) -> Strategy:
        if op.name in self._copied.totals:
            spec = self._stored(op.name)
            return self._made_as(op, (spec,), spec)
        if op.kind == SUM:
            spec = self._added(op.outputs[0])
            others = (_reduced(spec),) * (len(op.inputs) - 1)
            return self._made_as(op, (spec, *others), spec)
        return self._strategy_of[self._original(op.name)]

    def _made_as(self, op: Operator, operands: tuple[Spec, ...], result: Spec) -> Strategy:
        table = table_of(self._graph, op, self._whole.mesh.shape, self._whole.options)
        for strategy in table.strategies:
            if (strategy.operand_specs, strategy.result_specs) == (operands, (result,)):
                return strategy
        raise autoshard.InfeasibleError(
            f"copies of a stage add up their parts of {op.outputs[0]}, and {result} is no layout "
            "to do that in: take a schedule that has each stage once"
        )

    def _conversions(self) -> Iterator[Conversion]:
        totals = self._copied.totals
        there = [n for op in self._graph.operators if op.phase != APPLY for n in op.outputs]
        there += [name for name in self._graph.inputs if name not in totals]
        here = {self._original(name): name for name in there}
        made = {name for op in self._whole.graph.operators for name in op.outputs}
        mine = made.intersection(totals.values())
        added = {total for total in mine if self._added(total) == self._home[total]}
        before = mine - added
        for c in self._whole.conversions:
            if c.phase != APPLY or c.value in before:
                yield replace(c, value=here[c.value])
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
    """The layout of a partial sum once it is the sum."""
    return Spec(spec.dims)
