"""Baselines, each a restriction of how inputs may be stored; everything else is searched.

So each baseline is the best of its kind: activations and gradients are split, and conversions are
placed, in the cheapest way that the stored inputs allow.
"""

from __future__ import annotations

from typing import Literal, get_args

from shardspec import Mesh, Spec

from autoshard.base.checks import of_class
from autoshard.errors import BaselineError, GraphError, OptionError
from autoshard.graph.graph import Graph
from autoshard.graph.graph_fields import Value
from autoshard.space.strategy import stored_specs

Baseline = Literal["data_parallel", "zero2", "zero", "megatron", "largest_dim"]
"""A plan that practitioners would write by hand; `baseline` prices it."""

BASELINES: tuple[Baseline, ...] = get_args(Baseline)

BATCH = ("batch", "activation")
STATE = ("parameter", "optimizer_state")


def baseline_inputs(graph: Graph, mesh: Mesh, name: Baseline) -> dict[str, tuple[Spec, ...]]:
    """The specs that each input may have under a baseline; inputs left out are free.

    - `data_parallel`: batch inputs are split along dim 0 over all axes; parameters and optimizer
      state are replicated.
    - `zero2`: like data parallel, but optimizer state is split over as many axes as possible: stage
      2 of Rajbhandari et al., "ZeRO", 2020.
    - `zero`: parameters are split like the optimizer state: stage 3.
    - `megatron`: the last axis is for the model and the others for data. Batch inputs are split
      along dim 0 over the data axes, parameters and optimizer state over the model axis or not at
      all. Shoeybi et al., "Megatron-LM", 2019. On a mesh of one axis there is no data parallelism.
    - `largest_dim`: every input is split along its largest dim (the first of several) over as many
      devices as divide it evenly: what Alpa (section 8.2) calls "Heuristic".

    Args:
        graph: The roles of its inputs say which are batch, parameters and optimizer state.
        mesh: The devices that store the inputs.
        name: The baseline's name.

    Raises:
        BaselineError: there is no such baseline, or a batch input cannot be split evenly.

    Examples:
        >>> from autoshard.programs import mlp_step
        >>> mlp = mlp_step(batch=16, width=4, hidden=8)
        >>> baseline_inputs(mlp, Mesh((2, 2), ("x", "y")), "largest_dim")["w1"]
        (Spec.parse('RS01'),)
    """
    check_baseline(name)
    of_class(GraphError, "graph", graph, Graph, "as GraphBuilder and Graph.parse make it")
    of_class(OptionError, "mesh", mesh, Mesh, "as Mesh((2, 4), ('data', 'model'))")
    axes = tuple(axis for axis, size in enumerate(mesh.shape) if size > 1)
    model = axes[-1:] if name == "megatron" else ()
    data = tuple(axis for axis in axes if axis not in model)
    allowed: dict[str, tuple[Spec, ...]] = {}
    for value in map(graph.value, graph.inputs):
        specs = stored_specs(value.shape, mesh.shape)
        if name == "largest_dim":
            allowed[value.name] = (_along_largest_dim(value, specs, mesh),)
        elif value.role in BATCH and value.shape:
            wanted = Spec((data, *((),) * (len(value.shape) - 1)))
            if wanted not in specs:
                raise BaselineError(
                    f"{name} splits batch inputs evenly along dim 0 over "
                    f"{mesh.axis_size(data)} devices; got '{value}'"
                )
            allowed[value.name] = (wanted,)
        elif value.role in STATE:
            allowed[value.name] = _stored(value, specs, name, set(model))
    return allowed


def check_baseline(name: object) -> None:
    """Raise `BaselineError` unless this is the name of a baseline."""
    if name not in BASELINES:
        raise BaselineError(f"a baseline is one of {BASELINES}; got {name!r}")


def _stored(
    value: Value, specs: tuple[Spec, ...], name: Baseline, model: set[int]
) -> tuple[Spec, ...]:
    """Those of `specs` that a baseline allows for a parameter or an optimizer state."""
    if name == "megatron":
        return tuple(spec for spec in specs if model.issuperset(spec.axes))
    if name == "zero" or (name == "zero2" and value.role == "optimizer_state"):
        return (max(specs, key=lambda spec: len(spec.axes)),)
    return specs[:1]


def _along_largest_dim(value: Value, specs: tuple[Spec, ...], mesh: Mesh) -> Spec:
    """Of the specs that split only the largest dim, or nothing: the one with the most parts."""
    largest = value.shape.index(max(value.shape)) if value.shape else None
    alone = [
        spec
        for spec in specs
        if all(dim == largest or not axes for dim, axes in enumerate(spec.plain_dims))
    ]
    return max(alone, key=lambda spec: mesh.axis_size(spec.axes))
