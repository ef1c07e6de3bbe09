"""The obvious shardings, as restrictions of how inputs may be stored; the rest is solved."""

from __future__ import annotations

from typing import Literal, get_args

from shardspec import Mesh, Spec

from autoshard.errors import BaselineError
from autoshard.graph import Graph, Value
from autoshard.strategy import stored_specs

Baseline = Literal["data_parallel", "megatron", "zero"]

BATCH = ("batch", "activation")
STATE = ("parameter", "optimizer_state")


def baseline_inputs(graph: Graph, mesh: Mesh, name: Baseline) -> dict[str, tuple[Spec, ...]]:
    """The specs that each input may have under a baseline; inputs left out are free.

    - `data_parallel`: batch inputs split along dim 0 over all axes, parameters and optimizer state
      replicated.
    - `megatron`: the last axis is for the model and the others for data: batch inputs split along
      dim 0 over the data axes, parameters and optimizer state split over the model axis or not at
      all. Shoeybi et al., "Megatron-LM", 2019. On a mesh of one axis there is no data parallelism.
    - `zero`: data parallel, but parameters and optimizer state split over as many axes as
      possible: stage 3 of Rajbhandari et al., "ZeRO", 2020.

    Raises:
        BaselineError: no such baseline, or some batch input cannot be split so.
    """
    if name not in get_args(Baseline):
        raise BaselineError(f"a baseline is one of {get_args(Baseline)}; got {name!r}")
    every = tuple(axis for axis in range(mesh.ndim) if mesh.shape[axis] > 1)
    model = every[-1:] if name == "megatron" else ()
    data = tuple(axis for axis in every if axis not in model)
    allowed: dict[str, tuple[Spec, ...]] = {}
    for value in map(graph.value, graph.inputs):
        specs = stored_specs(value.shape, mesh.shape)
        if value.role in BATCH and value.shape:
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


def _stored(
    value: Value, specs: tuple[Spec, ...], name: Baseline, model: set[int]
) -> tuple[Spec, ...]:
    if name == "zero":
        widest = max(len(spec.axes) for spec in specs)
        return (next(spec for spec in specs if len(spec.axes) == widest),)
    return tuple(spec for spec in specs if model.issuperset(spec.axes))
