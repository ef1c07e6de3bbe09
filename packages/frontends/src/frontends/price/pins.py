"""Choices that the user makes and the search keeps: the spec of a value, or its stage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from autoshard import Graph, Rule, Strategy, enumerate_strategies
from shardspec import Mesh, ShardspecError, Spec

from frontends.errors import PlanError
from frontends.layers.layers import LayeredStep
from frontends.price.parallel_options import AXIS_NAMES

Pin = Spec | str | int | Iterable[str | Sequence[str] | None]
"""A spec, or its text (`RS0`), or for each dim the names of its mesh axes, as
`jax.sharding.PartitionSpec` has them; or the number of a stage; or, for a kind of operators, the
texts of the specs of its first operands (`RS0RR,RS0RR`)."""


@dataclass(frozen=True, slots=True)
class OperandSpecs:
    """The specs of the first operands of the operator that makes a value."""

    specs: tuple[Spec, ...]

    def __str__(self) -> str:
        return ",".join(map(str, self.specs))

    def strategies(self, rule: Rule, mesh_shape: tuple[int, ...]) -> tuple[Strategy, ...]:
        """The strategies of an operator that need its first operands in these specs."""
        n = len(self.specs)
        every = enumerate_strategies(rule, mesh_shape)
        return tuple(one for one in every if one.operand_specs[:n] == self.specs)


_AXES = Mesh((1,) * len(AXIS_NAMES), AXIS_NAMES)
"""The names of the axes of every stage's mesh."""


@dataclass(frozen=True, slots=True)
class Pins:
    """The pins of a step."""

    specs: Mapping[str, Spec | OperandSpecs]
    """By value, its spec, or those of the operands of which it is made."""

    stages: Mapping[int, int]
    """By layer, its stage."""


def pins_of(layered: LayeredStep, pins: Mapping[str, Pin], n_devices: int) -> Pins:
    """The values and layers that pins apply to.

    Args:
        layered: The step.
        pins: By the name of a value, by a path with which the names of arguments begin, or by a
            kind of operators; then the pin applies to all of these, and to their first results, or
            to their first operands if it lists several specs.
        n_devices: Number of devices of the cluster. A stage has at least one, and one layer.

    Raises:
        PlanError: No value has the name, or its pin is impossible.
    """
    graph = layered.step.graph
    made_by = {op.name: op.outputs for op in graph.operators}
    specs: dict[str, Spec | OperandSpecs] = {}
    stages: dict[int, int] = {}
    most_stages = min(layered.n_layers, n_devices)
    for name, pin in pins.items():
        if name in graph.by_name:
            pinned = [name]
        else:
            pinned = [each for each in graph.inputs if each.startswith((f"{name}[", f"{name}."))]
            pinned += [op.outputs[0] for op in graph.operators if op.kind == name and op.outputs]
        if not pinned:
            known = {*graph.by_name, *(op.kind for op in graph.operators)}
            near = get_close_matches(name, sorted(known), n=3, cutoff=0.0)
            raise PlanError(
                "a pin has the name of a value of the step, the path with which names of "
                f"arguments begin, or the kind of some operators; got {name!r}; close are "
                f"{', '.join(near)}"
            )
        for each in pinned:
            if isinstance(pin, int) and not isinstance(pin, bool) and pin >= 0:
                if pin >= most_stages:
                    raise PlanError(
                        f"stages are numbered from 0, and {layered.n_layers} layers on {n_devices} "
                        f"devices make {most_stages} at most; got {pin} for {each!r}"
                    )
                layer = _layer(layered, each)
                if stages.setdefault(layer, pin) != pin:
                    raise PlanError(
                        f"a layer is on one stage; layer {layer} is pinned to stage "
                        f"{stages[layer]}, and to stage {pin} by {each!r}"
                    )
            elif isinstance(pin, str) and "," in pin:
                specs[each] = _of_operands(graph, name, each, pin.split(","))
            else:
                specs[each] = spec = _spec(each, pin, len(graph.value(each).shape))
                _check_possible(graph, each, spec)
    for copy, original in layered.local.items():
        values = zip(made_by[original], made_by[copy], strict=True)
        specs.update((of_copy, specs[name]) for name, of_copy in values if name in specs)
    return Pins(specs, stages)


def _of_operands(graph: Graph, kind: str, result: str, pin: Sequence[str]) -> OperandSpecs:
    """The specs of the first operands of the operator that makes a value.

    Raises:
        PlanError: It is not of this kind, has fewer operands, or no way has these specs.
    """
    op = graph.operators[graph.producers[result][0]] if result in graph.producers else None
    if op is None or op.kind != kind or len(pin) > len(op.inputs):
        has = "none" if op is None or op.kind != kind else f"{len(op.inputs)} operands"
        raise PlanError(
            "a list of specs is for the first operands of a kind of operators; got "
            f"{','.join(pin)!r} for {kind!r}, which has {has}"
        )
    pairs = zip(op.inputs, pin, strict=False)
    found = OperandSpecs(
        tuple(_spec(name, text.strip(), len(graph.value(name).shape)) for name, text in pairs)
    )
    # Of sizes that every axis divides, so that only the ways themselves count.
    factors = tuple(replace(f, size=f.size * 4) for f in op.rule.factors)
    rule, n = replace(op.rule, factors=factors), len(pin)
    if not found.strategies(rule, (2, 2)):
        every = dict.fromkeys(s.operand_specs[:n] for s in enumerate_strategies(rule, (2, 2)))
        near = get_close_matches(
            str(found), [str(OperandSpecs(specs)) for specs in every], n=3, cutoff=0.0
        )
        raise PlanError(
            f"the layouts of operands are those of a way of running it; {kind!r} has no way with "
            f"{str(found)!r}; close are {', '.join(near)}"
        )
    return found


def _check_possible(graph: Graph, name: str, spec: Spec) -> None:
    """Raise PlanError if the operator that makes a value never splits a dim that its pin splits."""
    if name not in graph.producers:
        return
    index, place = graph.producers[name]
    rule = graph.operators[index].rule
    for dim, (axes, made_of) in enumerate(zip(spec.dims, rule.results[place], strict=True)):
        if axes and all(rule.factors[factor].kind == "whole" for factor in made_of):
            raise PlanError(
                f"a pin splits dims that an operator can make in parts; got {str(spec)!r} for "
                f"{name!r}, of whose dim {dim} each device makes all: leave dim {dim} whole"
            )


def _layer(layered: LayeredStep, name: str) -> int:
    graph = layered.step.graph
    if name in graph.producers:
        return layered.layer_of[graph.operators[graph.producers[name][0]].name]
    return layered.home[name]


def _spec(name: str, pin: object, n_dims: int) -> Spec:
    try:
        if isinstance(pin, str):
            spec: object = Spec.parse(pin)
        elif isinstance(pin, Iterable) and not isinstance(pin, Spec):
            dims = list(pin)
            spec = Spec.from_names(_AXES, [*dims, *[None] * (n_dims - len(dims))])
        else:
            spec = pin
    except ShardspecError as error:
        raise PlanError(
            f"a pin is a spec or a stage; {pin!r} for {name!r} is neither: {error}"
        ) from error
    if not isinstance(spec, Spec) or len(spec.dims) != n_dims:
        raise PlanError(
            "a pin is a spec with a letter for each dim of its value, such as 'RS0', or the number "
            f"of a stage, from 0 on; got {pin!r} for {name!r}, which has {n_dims} dims"
        )
    if any(axis >= len(AXIS_NAMES) for axis in spec.axes):
        raise PlanError(
            f"a stage's mesh has axes 0 to {len(AXIS_NAMES) - 1}; got {str(spec)!r} for {name!r}"
        )
    return spec
