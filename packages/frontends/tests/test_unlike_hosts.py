"""Plans on unlike hosts: right, no slower than those of equal hosts among them, and what runs."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import autoshard
import frontends.jax as mw
import jax
import numpy as np
import pytest
import torch
from costmodel import Cluster, Device, Host, Level, Link
from costmodel.testing import nested_clusters
from frontends import NoPlanError, Plan, PlanError
from frontends.jax.testing import EXAMPLES, Example, assert_same, mlp, small_gpt
from frontends.layers.layers import LayeredStep, layer
from frontends.price.bounds import Bounds
from frontends.price.device_pool import DevicePool
from frontends.search.equal_parts import parts_of
from frontends.torch import parallelize
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from shardspec.amounts import bytes_text
from torch import nn

BASE = Cluster.preset("two-hosts")
(HOST, *_), (NETWORK,) = BASE.hosts, BASE.levels


def times(device: Device, factor: float, name: str, memory: float = 1.0) -> Device:
    """A device that is some times as fast, with some times the memory."""
    return replace(
        device,
        name=name,
        flops_per_s=tuple((dtype, rate * factor) for dtype, rate in device.flops_per_s),
        memory_bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s * factor,
        memory_bytes=int(device.memory_bytes * memory),
    )


SLOW = times(HOST.device, 0.5, "slow")
TINY = times(HOST.device, 1 / 500, "tiny")


def cluster_of(*hosts: Host, network: Link | None = None) -> Cluster:
    """Hosts in one network."""
    level = Level("network", len(hosts), network or NETWORK.link)
    return Cluster("unlike", hosts, (level,) if len(hosts) > 1 else ())


def hosts_of(*sizes: int, device: Device = HOST.device) -> list[Host]:
    """Hosts with some numbers of devices."""
    return [replace(HOST.resized(size), device=device) for size in sizes]


FOUR_AND_TWO = cluster_of(*hosts_of(4, 2))
TWO_SPEEDS = cluster_of(*hosts_of(4), *hosts_of(2, device=SLOW))
BUSY = cluster_of(*hosts_of(4, 2, device=TINY))
"""Devices that are so slow that a small step is worth all six."""


@given(nested_clusters(max_hosts=5, max_devices_per_host=6))
def test_every_submesh_has_devices_of_its_kind_and_is_found_again(cluster: Cluster) -> None:
    pool = DevicePool(cluster)
    assert pool.devices_of(pool.whole) == tuple(range(cluster.n_devices))
    for submesh in pool.places.shapes:
        devices = pool.devices_of(submesh)
        assert len(set(devices)) == math.prod(submesh)
        hosts = [cluster.host(device) for device in devices]
        assert len(set(hosts)) == submesh[0]
        assert len({cluster.hosts[host] for host in hosts}) == 1
        assert pool.limit(submesh) == min(cluster.device_of(d).memory_bytes for d in devices)
        assert pool.device(submesh) == cluster.device_of(devices[0])
        assert pool.submesh_of(devices) in (submesh, pool.whole)
        (assigned,) = pool.assign([submesh]) if pool.places.can_hold([submesh]) else [devices]
        assert pool.submesh_of(assigned) in (submesh, pool.whole)


@given(nested_clusters(max_hosts=5, max_devices_per_host=6))
def test_parts_have_equal_hosts_and_as_many_devices_as_they_can(cluster: Cluster) -> None:
    whole, *parts = parts_of(cluster, None, layered("mlp").step.graph).pools
    assume(parts)
    assert not whole.is_equal
    for pool in parts:
        (host,) = set(pool.hosts)
        least = [h for h in whole.hosts if h.device == host.device]
        fitting = [h for h in least if h.n_devices >= host.n_devices]
        assert pool.n_hosts == len(fitting)
        assert {*pool.device_ids} < {*whole.device_ids}


def test_a_pool_of_some_devices_counts_like_a_cluster_of_them() -> None:
    pool = DevicePool(BASE, device_ids=(0, 1, 4, 5))
    assert (pool.whole, pool.is_equal, pool.n_hosts) == ((2, 2), True, 2)
    assert pool.devices_of((2, 2)) == (0, 1, 4, 5)
    assert pool.assign([(1, 2), (1, 2)]) == [(0, 1), (4, 5)]
    assert pool.submesh_of((4, 5)) == (1, 2)
    assert "4 devices of 2 hosts" in repr(pool)


def test_what_is_taken_and_the_share_of_the_rest() -> None:
    pool = DevicePool(TWO_SPEEDS, 1000, taken_bytes=200)
    assert (pool.least_limit, pool.all_bytes) == (800, 4800)
    assert pool.sharing(0.5).limit(pool.places.shapes[0]) == 400
    with pytest.raises(PlanError, match="hosts of one kind"):
        pool.submesh_of((3, 4))


@cache
def layered(name: str, microbatches: int = 2) -> LayeredStep:
    return layer(EXAMPLES[name]().trace(microbatches).step, 4)


kinds = st.sampled_from((HOST.device, SLOW, times(HOST.device, 2.0, "fast")))
some_hosts = st.builds(
    lambda device, n: replace(HOST.resized(n), device=device), kinds, st.integers(1, 4)
)
networks = st.builds(Link, st.just(1e-6), st.sampled_from((1e7, 1e9, 1e11)))


@settings(max_examples=settings().max_examples // 25, phases=(Phase.generate,))
@given(st.lists(some_hosts, min_size=2, max_size=4), networks, st.sampled_from(("mlp", "tied")))
def test_no_plan_is_slower_than_that_of_equal_hosts_alone(
    hosts: list[Host], network: Link, name: str
) -> None:
    cluster = cluster_of(*hosts, network=network)
    example = EXAMPLES[name]()
    arguments = (example.function, example.arguments, cluster)
    plan = mw.plan_for(*arguments, batch_argnums=(2,)).plan
    assert plan.verify()
    assert plan.lower_bound_s <= plan.step_s
    assert Plan.from_json(plan.to_json()) == plan
    for pool in parts_of(cluster, None, layered(name).step.graph).pools[1:]:
        alone = cluster_of(*pool.hosts, network=network)
        other = mw.plan_for(*arguments[:2], alone, batch_argnums=(2,)).plan
        assert plan.step_s <= other.step_s * (1 + 1e-9)


@settings(max_examples=25)
@given(st.lists(some_hosts, min_size=1, max_size=4), st.sampled_from(("mlp", "tied")))
def test_the_bound_of_a_step_is_below_that_of_every_part(hosts: list[Host], name: str) -> None:
    cluster, step = cluster_of(*hosts), layered(name)
    bound_s = Bounds(step, DevicePool(cluster)).step_bound_s()
    for pool in parts_of(cluster, None, step.step.graph).pools:
        assert bound_s <= Bounds(step, pool).step_bound_s() * (1 + 1e-9)
    renamed = [replace(h, device=replace(h.device, name=f"{i}")) for i, h in enumerate(hosts)]
    same_s = Bounds(step, DevicePool(cluster_of(*renamed))).step_bound_s()
    assert same_s == pytest.approx(bound_s)


def run_both(example: Example, cluster: Cluster, **options: Any) -> mw.ParallelStep:
    """Run three steps on a cluster and on one device; the results are the same."""
    step = mw.parallelize(example.function, cluster=cluster, **options)
    single = jax.jit(example.function)
    ours = theirs = (example.params, example.opt_state)
    for _ in range(3):
        *ours, loss = step(*ours, example.batch)  # type: ignore[assignment]
        *theirs, expected = single(*theirs, example.batch)  # type: ignore[assignment]
        assert_same(jax.tree.leaves((ours, loss)), (theirs, expected))
    return step


@pytest.mark.parametrize(
    ("make", "cluster"),
    [
        pytest.param(mlp, FOUR_AND_TWO, id="mlp on 4+2"),
        pytest.param(mlp, BUSY, id="mlp on busy devices"),
        pytest.param(small_gpt, TWO_SPEEDS, id="gpt on two speeds", marks=pytest.mark.nightly),
    ],
)
def test_jax_computes_the_single_device_step(make: Any, cluster: Cluster) -> None:
    run_both(make(), cluster)


def test_a_pipeline_gives_faster_devices_more_layers() -> None:
    fast = cluster_of(*hosts_of(2, device=TINY), *hosts_of(2, device=times(TINY, 0.25, "tinier")))
    step = run_both(small_gpt(n_layers=6), fast, stages=2, microbatches=4)
    sizes = {
        min(stage.mesh.device_ids): stage.last_layer - stage.first_layer
        for stage in step.plan.stages
    }
    assert sizes[0] > sizes[2]
    assert "(tinier)" in str(step.plan)


STAGES = ((2, 1, 4), (2, 1, 2))


def test_stages_that_the_user_chose_take_devices_in_the_order_of_their_ids() -> None:
    step = run_both(mlp(), FOUR_AND_TWO, stages=STAGES, microbatches=2, n_layers=4)
    ids = [tuple(stage.mesh.device_ids) for stage in step.plan.stages]
    assert ids == [(0, 1, 2, 3), (4, 5)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stages": ((2, 1, 2), (2, 1, 4))}, "hosts of 4, 2"),
        ({"stages": ((2, 1, 3), (2, 1, 3))}, "hosts of 4, 2"),
        ({"dp": 4, "tp": 2}, "is the number of devices, 6"),
    ],
)
def test_what_no_unlike_hosts_can_run_is_refused(options: dict[str, Any], message: str) -> None:
    example = mlp()
    with pytest.raises(PlanError, match=message):
        mw.plan_for(
            example.function,
            example.arguments,
            FOUR_AND_TWO,
            batch_argnums=(2,),
            microbatches=2,
            n_layers=4,
            **options,
        )


def test_equal_layers_run_on_the_hosts_that_are_equal() -> None:
    cluster = cluster_of(*hosts_of(2, 1, 2))
    step = run_both(mlp(), cluster, strategy="equal_layers", microbatches=2)
    assert step.plan.device_ids == (0, 1, 3, 4)
    with pytest.raises(NoPlanError, match="hosts of cluster 'unlike' differ"):
        run_both(
            mlp(), cluster_of(*hosts_of(1), *hosts_of(1, device=SLOW)), strategy="equal_layers"
        )


def test_each_device_has_its_own_memory() -> None:
    example = small_gpt(n_layers=6)
    whole = mw.plan_for(
        example.function, example.arguments, cluster_of(*hosts_of(1)), batch_argnums=(2,)
    ).plan
    roomy, small = (
        replace(HOST.device, name=name, memory_bytes=int(whole.memory_bytes * part))
        for name, part in (("roomy", 0.8), ("small", 0.3))
    )
    cluster = cluster_of(*hosts_of(1, device=small), *hosts_of(1, device=roomy))
    step = run_both(example, cluster, microbatches=2, stages=2)
    stage_of = {min(stage.mesh.device_ids): i for i, stage in enumerate(step.plan.stages)}
    assert step.plan.memory_limit(stage_of[0]) == small.memory_bytes
    assert step.plan.memory_limit(stage_of[1]) == roomy.memory_bytes
    assert step.plan.stages[stage_of[1]].memory_bytes > small.memory_bytes
    assert f"Fullest device {' of '.join(map(bytes_text, step.plan.fullest_device))}" in str(
        step.plan
    )
    data = step.plan.to_json()
    assert '"format":7' in data
    assert Plan.from_json(data) == step.plan


def test_hosts_that_are_too_small_are_left_out() -> None:
    tiny = replace(HOST.device, name="tiny", memory_bytes=10)
    example = mlp()
    step = run_both(example, cluster_of(*hosts_of(1), *hosts_of(1, device=tiny)))
    assert step.plan.device_ids == (0,)


@pytest.mark.parametrize("ways", [{"dp": 6}, {"tp": 6}, {"mesh": (3, 2)}])
def test_ways_that_the_user_chose_may_take_all_devices(ways: dict[str, Any]) -> None:
    def train(weights: Any, batch: Any) -> tuple[Any, Any]:
        def loss_of(weights: Any) -> Any:
            return ((jax.numpy.tanh(batch @ weights[0]) @ weights[1] - batch) ** 2).mean()

        loss, gradients = jax.value_and_grad(loss_of)(weights)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), loss

    weights = [np.ones((12, 24), np.float32) / 12, np.ones((24, 12), np.float32) / 24]
    batch = np.linspace(-1, 1, 24 * 12, dtype=np.float32).reshape(24, 12)
    step = mw.parallelize(train, cluster=FOUR_AND_TWO, stages=1, microbatches=1, **ways)
    ours = step(weights, batch)
    assert step.plan.n_devices == 6
    assert_same(jax.tree.leaves(ours), jax.jit(train)(weights, batch))


def test_more_unlike_hosts_than_can_be_sliced_are_planned_in_one_stage_or_apart() -> None:
    many = cluster_of(*hosts_of(*[8] * 64), *hosts_of(*[8] * 64, device=SLOW))
    with pytest.raises(autoshard.InfeasibleError, match="2 kinds of 128 hosts have 263,169"):
        _ = DevicePool(many).places
    example = mlp()
    plan = mw.plan_for(
        example.function, example.arguments, many, batch_argnums=(2,), microbatches=1
    ).plan
    assert plan.verify()
    with pytest.raises(PlanError, match="stages take all devices"):
        mw.plan_for(
            example.function,
            example.arguments,
            many,
            batch_argnums=(2,),
            microbatches=1,
            n_layers=2,
            stages=((1, 64, 8), (1, 64, 8)),
        )


def test_devices_that_cannot_compute_with_a_dtype_are_left_out() -> None:
    old = replace(HOST.device, name="old", flops_per_s=(("float32", 1e12),))
    new = replace(HOST.device, name="new", flops_per_s=(("float32", 1e12), ("bfloat16", 2e12)))
    example = mlp()
    params, opt_state, batch = jax.tree.map(
        lambda x: x.astype("bfloat16") if x.dtype == np.float32 else x, example.arguments
    )
    cluster = cluster_of(*hosts_of(2, device=old), *hosts_of(2, device=new))
    plan = mw.plan_for(
        example.function, (params, opt_state, batch), cluster, batch_argnums=(2,)
    ).plan
    assert {*plan.device_ids} <= {2, 3}
    (left_out,) = [each for each in plan.alternatives if each.name == "2 devices old"]
    assert "states no peak for dtype 'bfloat16'" in left_out.reason


def test_functions_that_follow_a_step_run_where_its_state_is() -> None:
    example = mlp()
    options = {"schedule": "1f1b", "stages": 2, "microbatches": 2}
    step = mw.parallelize(example.function, cluster=BUSY, **options)
    params, *_ = step(*example.arguments)

    def predict(params: Any, batch: Any) -> Any:
        return jax.tree.map(lambda x: x.sum() * 1.0, (params, batch))

    ours = step.follow(predict, batch_argnums=(1,))(params, example.batch)
    expected = jax.jit(predict)(jax.tree.map(np.asarray, params), example.batch)
    assert_same(jax.tree.leaves(ours), expected)


class Block(nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("cluster", "examples"),
    [
        pytest.param(FOUR_AND_TWO, 10, id="10 examples on 4+2"),
        pytest.param(TWO_SPEEDS, 24, id="24 examples on two speeds"),
        pytest.param(BUSY, 24, id="24 examples on busy devices"),
    ],
)
def test_torch_computes_the_single_device_step(cluster: Cluster, examples: int) -> None:
    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Sequential(*(Block() for _ in range(4)))
        return model, torch.optim.AdamW(model.parameters(), 1e-2, eps=1e-2)

    def loss_of(model: nn.Module, batch: Sequence[torch.Tensor]) -> torch.Tensor:
        x, y = batch
        return nn.functional.mse_loss(model(x), y)

    model, optimizer = make()
    step = parallelize(model, optimizer, loss_of, cluster=cluster)
    single, single_optimizer = make()
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        batch = [torch.randn(examples, 16, generator=generator) for _ in range(2)]
        loss = loss_of(single, batch)
        single_optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        single_optimizer.step()
        assert float(step(batch)) == pytest.approx(float(loss.detach()), rel=1e-5)
    state = step.state_dict() if hasattr(step, "state_dict") else {}
    for name, tensor in state.get("model", {}).items():
        torch.testing.assert_close(tensor, single.state_dict()[name], rtol=1e-4, atol=1e-5)
