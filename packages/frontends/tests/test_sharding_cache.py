"""Searches are made once for runs of layers that are equal: in structure, and in what is pinned."""

import autoshard
import optax
import pytest
from costmodel import Cluster
from frontends.jax.testing import mlp
from frontends.layers.layers import LayeredStep, layer
from frontends.price.device_pool import DevicePool
from frontends.price.parallel_options import Option
from frontends.price.pricing import Pricer
from shardspec import Spec

CLUSTER = Cluster.preset("two-hosts")
SUBMESH, OPTION = (1, 2), Option(0, "free")


def deep() -> LayeredStep:
    return layer(mlp(optax.sgd(1e-3), width=64).trace().step, 4)


def equal_layers(layered: LayeredStep) -> tuple[int, int]:
    """Two layers that differ in names only."""
    found: dict[str, int] = {}
    for k in range(layered.n_layers):
        text = autoshard.structural_hash(layered.stage(k, k))
        if text in found:
            return found[text], k
        found[text] = k
    raise AssertionError("the example has no equal layers")


def weight_of(layered: LayeredStep, k: int) -> str:
    graph = layered.stage(k, k)
    return next(
        name
        for name in graph.inputs
        if graph.value(name).role == "parameter" and len(graph.value(name).shape) == 2
    )


@pytest.mark.parametrize("pinned_first", [False, True])
def test_a_pin_of_one_of_two_equal_layers_holds_for_that_one(pinned_first: bool) -> None:
    layered = deep()
    one, other = equal_layers(layered)
    name = weight_of(layered, one)
    free = Pricer(layered, DevicePool(CLUSTER, 2**34)).shardings.find(other, other, SUBMESH, OPTION)
    assert free is not None
    unpinned = dict(free.input_specs)[weight_of(layered, other)]
    pin = next(spec for spec in map(Spec.parse, ("S0R", "RS0", "RR")) if spec != unpinned)
    shardings = Pricer(layered, DevicePool(CLUSTER, 2**34), pins={name: pin}).shardings
    order = [one, other] if pinned_first else [other, one]
    found = {k: shardings.find(k, k, SUBMESH, OPTION) for k in order}
    assert found[one] is not None
    assert found[other] is not None
    assert dict(found[one].input_specs)[name] == pin
    assert dict(found[other].input_specs)[weight_of(layered, other)] == unpinned
