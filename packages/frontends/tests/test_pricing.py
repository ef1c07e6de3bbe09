"""Prices of runs of layers: never below what no sharding can beat, and each made once."""

import math
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import autoshard
import pytest
from costmodel import Cluster
from frontends.jax.rules.xla import XLA
from frontends.jax.testing import EXAMPLES, mlp, small_gpt
from frontends.layers.layers import LayeredStep, layer
from frontends.price.device_pool import DevicePool
from frontends.price.parallel_options import logical_meshes, options_of
from frontends.price.pricing import Pricer, stage_cost
from frontends.step.kernels import with_kernels
from frontends.step.step import FORWARD

CLUSTER = Cluster.preset("two-hosts").resized(devices_per_host=2)
SUBMESHES = ((1, 1), (1, 2), (2, 2))


@cache
def layered(name: str) -> LayeredStep:
    return layer(EXAMPLES[name]().trace().step, 4)


@cache
def pricer(name: str) -> Pricer:
    return Pricer(layered(name), DevicePool(CLUSTER, CLUSTER.device.memory_bytes))


@pytest.mark.parametrize("submesh", SUBMESHES)
@pytest.mark.parametrize("name", ["mlp", "tied", "clipped"])
def test_no_price_is_below_its_bound(name: str, submesh: tuple[int, int]) -> None:
    prices, n_layers = pricer(name), layered(name).n_layers
    for first, last in ((0, 0), (0, n_layers - 1), (1, 2), (n_layers - 1, n_layers - 1)):
        priced = prices.price(first, last, submesh)
        assert priced is not None
        assert prices.bounds.bound_s(first, last, submesh) <= priced.cost.time_s


@pytest.mark.parametrize("preset", ["h100-sxm", "p3.16xlarge"])
@pytest.mark.parametrize("width", [64, 1024])
def test_no_price_of_a_gpu_is_below_its_bound(preset: str, width: int) -> None:
    """Products take the time of their tiles there, and kernels have several operators."""
    example = small_gpt(n_layers=2, width=width, sequence=width)
    step = example.trace().step
    step = replace(step, graph=with_kernels(step.graph, XLA))
    cluster = Cluster.preset(preset).resized(n_hosts=1, devices_per_host=4)
    prices = Pricer(layer(step), DevicePool(cluster, cluster.device.memory_bytes))
    for submesh in ((1, 1), (1, 2), (1, 4)):
        for first, last in ((0, prices.layered.n_layers - 1), (1, 1)):
            priced = prices.price(first, last, submesh)
            assert priced is not None
            bound_s = prices.bounds.bound_s(first, last, submesh)
            assert 0.2 * priced.cost.time_s < bound_s <= priced.cost.time_s


def test_a_bound_is_not_lower_for_a_type_that_the_step_does_not_use() -> None:
    assert {value.dtype for value in layered("mlp").step.graph.values} == {"float32"}
    float32 = CLUSTER.device.peak("float32")
    bounds = []
    for peaks in ({"float32": float32}, {"float32": float32, "float16": 1000 * float32}):
        device = replace(
            CLUSTER.device, flops_per_s=tuple(peaks.items()), memory_bandwidth_bytes_per_s=1e18
        )
        hosts = (replace(CLUSTER.hosts[0], device=device),) * CLUSTER.n_hosts
        prices = Pricer(
            layered("mlp"), DevicePool(replace(CLUSTER, hosts=hosts), device.memory_bytes)
        )
        bounds.append(prices.bounds.step_bound_s())
    assert bounds[0] == bounds[1]


@pytest.mark.parametrize("held", [1, 2, 5])
@pytest.mark.parametrize("submesh", SUBMESHES)
@pytest.mark.parametrize("name", ["mlp", "tied", "clipped"])
def test_no_stage_holds_less_than_its_bound(name: str, submesh: tuple[int, int], held: int) -> None:
    prices, n_layers = pricer(name), layered(name).n_layers
    for first, last in ((0, 0), (0, n_layers - 1), (1, 2), (n_layers - 1, n_layers - 1)):
        priced = prices.price(first, last, submesh, held)
        assert priced is not None
        together = priced.sharding.peak_bytes * math.prod(submesh)
        assert prices.bounds.held_bytes(first, last, held) <= together


def test_a_stage_that_holds_too_much_in_any_way_is_not_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prices = Pricer(layered("mlp"), DevicePool(CLUSTER, CLUSTER.device.memory_bytes))
    monkeypatch.delattr(autoshard.Prepared, "solve")
    assert prices.price(0, 1, (2, 2), held=1 << 30) is None


def test_the_bound_of_a_step_is_the_sum_of_its_layers() -> None:
    prices, n_layers = pricer("mlp"), layered("mlp").n_layers
    layers_s = sum(
        math.fsum(
            prices.bounds._work_s(prices.layered.stage(k, k).operators, CLUSTER.device)
        )  # split over no devices
        for k in range(n_layers)
    )
    assert prices.bounds.step_bound_s() == pytest.approx(layers_s / CLUSTER.n_devices)


def test_equal_layers_are_priced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    solve = autoshard.Prepared.solve

    def counted(prepared: autoshard.Prepared, **options: Any) -> autoshard.Sharding:
        calls.append(prepared.graph)
        return solve(prepared, **options)

    monkeypatch.setattr(autoshard.Prepared, "solve", counted)
    prices = Pricer(layered("mlp"), DevicePool(CLUSTER, CLUSTER.device.memory_bytes))
    second, third = prices.price(1, 1, (1, 2)), prices.price(2, 2, (1, 2))
    assert len(calls) == 1, "on two devices there is one logical mesh"
    assert second is not None
    assert third is not None
    assert second.cost == third.cost
    assert second.sharding.strategies == third.sharding.strategies


def test_a_price_that_was_found_elsewhere_has_this_runs_names() -> None:
    prices = pricer("mlp")
    for k in (1, 2):
        priced = prices.price(k, k, (1, 2))
        assert priced is not None
        graph = prices.layered.stage(k, k)
        assert priced.graph is graph
        assert [name for name, _ in priced.sharding.input_specs] == list(graph.inputs)
        assert {c.value for c in priced.sharding.conversions} <= {v.name for v in graph.values}
        autoshard.collectives(graph, priced.sharding)


def test_a_price_counts_all_phases_and_all_memory() -> None:
    prices = pricer("clipped")
    priced = prices.price(0, 1, (1, 2))
    assert priced is not None
    sharding = priced.sharding
    total_s = sum(sharding.compute_s) + sum(sharding.communication_s)
    assert priced.cost == stage_cost(priced.graph, sharding)
    step_s = priced.cost.time_s * prices.microbatches + priced.cost.once_s
    assert step_s == pytest.approx(total_s)
    assert priced.cost.peak_bytes(1) >= sharding.peak_bytes - 1
    assert priced.cost.peak_bytes(3) > priced.cost.peak_bytes(1)


def test_what_does_not_fit_has_no_price() -> None:
    prices = Pricer(layered("mlp"), DevicePool(CLUSTER, 400))
    assert prices.price(0, 3, (1, 1)) is None
    wide = layer(mlp(width=64).trace().step, 4)
    state_bytes = Pricer(wide, DevicePool(CLUSTER, 1)).bounds.state_bytes()
    assert state_bytes == 2 * 4 * (64 * 64 + 64) * 4 + 4  # weights, their gradients, the loss
    assert Pricer(wide, DevicePool(CLUSTER, state_bytes // 2 - 1)).price(0, 3, (1, 2)) is None


def test_more_memory_never_costs_more() -> None:
    step = layer(mlp(width=64).trace().step, 4)
    times = []
    for memory_bytes in (40_000, 60_000, 80_000, 160_000, 10**9):
        priced = Pricer(step, DevicePool(CLUSTER, memory_bytes)).price(0, 3, (2, 2))
        times.append(math.inf if priced is None else priced.cost.time_s)
        assert priced is None or priced.sharding.peak_bytes <= memory_bytes
    assert all(more <= less * (1 + 1e-9) for less, more in pairwise(times))
    assert times[-1] < math.inf


def test_a_boundary_costs_what_crosses_it() -> None:
    prices, link = pricer("mlp"), CLUSTER.inter_host
    crossing_bytes = 2 * 4 * 8 * 4  # an activation of 4 examples, and its gradient
    assert prices.bounds.boundary_s(1) == pytest.approx(
        2 * link.latency_s + crossing_bytes / link.bandwidth_bytes_per_s
    )
    assert prices.bounds.boundary_s(0) == 0.0
    one_host = Pricer(layered("mlp"), DevicePool(CLUSTER.resized(n_hosts=1), 10**9))
    assert one_host.bounds.boundary_s(1) < prices.bounds.boundary_s(1)


def test_logical_meshes_cover_a_submesh() -> None:
    cluster = Cluster.preset("two-hosts")
    shapes = {
        submesh: [mesh.shape for mesh in logical_meshes(submesh, DevicePool(cluster))]
        for submesh in ((1, 1), (1, 2), (1, 4), (2, 4))
    }
    assert shapes == {
        (1, 1): [(1,)],
        (1, 2): [(2,)],
        (1, 4): [(4,), (2, 2)],
        (2, 4): [(8,), (2, 4)],
    }
    for mesh in logical_meshes((2, 4), DevicePool(cluster)):
        assert tuple(mesh.device_ids) == tuple(range(8))


def test_graphs_of_layers_are_made_once() -> None:
    prices = pricer("tied")
    assert prices.layered.stage(1, 2) is prices.layered.stage(1, 2)
    assert {op.phase for op in prices.layered.stage(1, 2).operators} >= {FORWARD}


def test_hosts_that_can_share_no_dim_cost_what_one_of_them_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    three = Cluster.preset("two-hosts").resized(n_hosts=3, devices_per_host=2)
    prices = Pricer(layered("mlp"), DevicePool(three, three.device.memory_bytes))
    solve, meshes = autoshard.Prepared.solve, []

    def counted(self: autoshard.Prepared, **options: Any) -> autoshard.Sharding:
        meshes.append(self.mesh.shape)
        return solve(self, **options)

    monkeypatch.setattr(autoshard.Prepared, "solve", counted)
    last = layered("mlp").n_layers - 1
    options = list(options_of((3, 2), DevicePool(three)))
    found = [prices.cost(0, last, (3, 2), option) for option in options]
    assert set(meshes) == {(1,), (2,)}
    monkeypatch.setattr(prices.shardings, "alike", lambda *_: None)
    prices._totals.clear()
    assert found == [prices.cost(0, last, (3, 2), option) for option in options]
    assert {(6,), (3, 2)} <= set(meshes)
