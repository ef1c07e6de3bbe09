"""The ways to store state: what they ask for is what a stage's sharding then has."""

import autoshard
import optax
import pytest
from costmodel import Cluster
from frontends.jax.testing import mlp
from frontends.layers.layers import LayeredStep, layer
from frontends.price.device_pool import DevicePool
from frontends.price.parallel_options import WAYS, Option, lean_specs, logical_meshes, options_of
from frontends.price.pricing import Pricer

CLUSTER = Cluster.preset("two-hosts")


def deep() -> LayeredStep:
    return layer(mlp(optax.adam(1e-3), width=64).trace().step, 4)


def held_by_kind(sharding: autoshard.Sharding) -> dict[str, int]:
    kinds: dict[str, int] = {}
    for one in autoshard.held(sharding):
        kinds[one.kind] = kinds.get(one.kind, 0) + one.n_bytes
    return kinds


def test_each_way_is_tried_on_each_logical_mesh_and_one_device_has_one() -> None:
    for submesh in ((1, 2), (1, 4), (2, 4)):
        meshes = logical_meshes(submesh, DevicePool(CLUSTER))
        options = list(options_of(submesh, DevicePool(CLUSTER)))
        assert options == [Option(m, way) for way in WAYS for m in range(len(meshes))]
    assert list(options_of((1, 1), DevicePool(CLUSTER))) == [Option(0, "free")]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mesh", [0, 1])
def test_a_sharding_has_what_its_way_asks_for(way, mesh) -> None:
    layered = deep()
    pricer = Pricer(layered, DevicePool(CLUSTER, 2**34))
    found = pricer.shardings.find(0, layered.n_layers - 1, (2, 2), Option(mesh, way))
    assert found is not None
    made = dict(found.input_specs)
    for op, strategy in zip(found.graph.operators, found.strategies, strict=True):
        made.update(zip(op.outputs, strategy.result_specs, strict=True))
    asked = lean_specs(found.graph, found.mesh, way)
    assert all(made[name] in specs for name, specs in asked.items())
    assert bool(asked) == (way != "free")


def test_leaner_ways_hold_less_of_what_they_split() -> None:
    layered = deep()
    pricer = Pricer(layered, DevicePool(CLUSTER, 2**34))
    last = layered.n_layers - 1
    shardings = {way: pricer.shardings.find(0, last, (1, 4), Option(0, way)) for way in WAYS}
    kinds = {way: held_by_kind(found) for way, found in shardings.items() if found is not None}
    weights = sum(
        value.n_bytes
        for value in map(layered.step.graph.value, layered.step.graph.inputs)
        if value.role == "parameter"
    )
    assert kinds["free"]["parameter"] <= weights
    for way in ("tensor", "zero"):
        assert kinds[way]["parameter"] == pytest.approx(weights / 4, rel=0.05)
    for way in ("zero2", "tensor", "zero"):
        assert kinds[way]["optimizer_state"] == pytest.approx(2 * weights / 4, rel=0.05)
    assert kinds["tensor"]["gradient"] == pytest.approx(weights / 4, rel=0.05)
