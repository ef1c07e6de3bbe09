import pytest
from costmodel import (
    Cluster,
    GroupLinks,
    Link,
    MeshLinks,
    all_gather_time,
    all_reduce_time,
    all_to_all_time,
    reduce_scatter_time,
    reshard_time,
    step_time,
)
from costmodel.testing import clusters, meshes_on
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Layout, Mesh, Partial, Spec, SubAxis, reshard, reshard_whole_axes

ITEMSIZE = 4
CLUSTER = Cluster.preset("two-hosts")
MESH = Mesh((2, 4), ("host", "device"))
NETWORK = Link(CLUSTER.inter_host.latency_s, CLUSTER.inter_host.bandwidth_bytes_per_s / 4)
WHOLE = 16 * 16 * ITEMSIZE


def plan_between(src, dst, mesh=MESH, shape=(16, 16)):
    return reshard_whole_axes(
        Layout(shape, mesh, Spec.parse(src)), Layout(shape, mesh, Spec.parse(dst))
    )


@st.composite
def plans(draw, mesh):
    """Plans for a matrix that every axis divides, from any spec to any without partial sums."""
    size = mesh.size * draw(st.integers(1, 4))
    shape = (size, size)

    def spec(choices):
        dims, partial = ([], []), []
        for axis in draw(st.permutations(range(mesh.ndim))):
            place = draw(st.sampled_from(choices))
            if place == "partial":
                partial.append(Partial(axis, "sum"))
            elif place != "replicated":
                dims[place].append(axis)
        return Spec(tuple(map(tuple, dims)), tuple(sorted(partial)))

    src, dst = spec([0, 1, "replicated", "partial"]), spec([0, 1, "replicated"])
    make = draw(st.sampled_from([reshard, reshard_whole_axes]))
    return make(Layout(shape, mesh, src), Layout(shape, mesh, dst))


@pytest.mark.parametrize(
    ("src", "dst", "seconds"),
    [
        ("S0R", "RR", all_gather_time(2, WHOLE, NETWORK)),
        ("RS1", "RR", all_gather_time(4, WHOLE, CLUSTER.intra_host)),
        ("S1R", "RS1", all_to_all_time(4, WHOLE / 4, CLUSTER.intra_host)),
        ("RR+P0", "S0R", reduce_scatter_time(2, WHOLE, NETWORK)),
        ("RR+P1", "RR", all_reduce_time(4, WHOLE, CLUSTER.intra_host)),
        ("S0R+P1", "S0R", all_reduce_time(4, WHOLE / 2, CLUSTER.intra_host)),
        ("S01R", "RR", all_gather_time(8, WHOLE, CLUSTER.inter_host)),
        ("RR", "S01R", 0.0),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_step_is_priced_as_its_collective_over_its_axes(src, dst, seconds):
    plan = plan_between(src, dst)
    assert len(plan.steps) <= 1 or seconds == 0.0
    assert reshard_time(plan, ITEMSIZE, CLUSTER.links(MESH)) == seconds


@given(data=st.data())
def test_without_latency_time_is_the_bytes_received_over_the_bandwidth(data):
    cluster = data.draw(clusters())
    mesh = data.draw(meshes_on(cluster))
    plan = data.draw(plans(mesh))
    one = Link(0.0, 1.0)
    links = MeshLinks(mesh.ndim, lambda axes: GroupLinks(mesh.axis_size(axes), one, one))
    for step in plan.steps:
        # shardspec counts whole elements where a group does not divide an all-reduced shard.
        assert step_time(step, ITEMSIZE, links) == pytest.approx(
            step.received_bytes(ITEMSIZE), abs=2 * ITEMSIZE
        )


@given(data=st.data())
def test_a_plan_costs_the_sum_of_its_steps_and_larger_items_never_less(data):
    cluster = data.draw(clusters())
    mesh = data.draw(meshes_on(cluster))
    plan = data.draw(plans(mesh))
    links = cluster.links(mesh)
    steps = [step_time(step, ITEMSIZE, links) for step in plan.steps]
    assert all(seconds >= 0 for seconds in steps)
    assert reshard_time(plan, ITEMSIZE, links) == pytest.approx(sum(steps))
    assert reshard_time(plan, 2 * ITEMSIZE, links) >= reshard_time(plan, ITEMSIZE, links)


@given(data=st.data())
def test_plain_links_price_steps_over_one_axis_as_the_links_of_the_cluster(data):
    cluster = data.draw(clusters())
    mesh = data.draw(meshes_on(cluster))
    links = cluster.links(mesh)
    for step in data.draw(plans(mesh)).steps:
        if len(step.axes) == 1:
            assert step_time(step, ITEMSIZE, tuple(links)) == step_time(step, ITEMSIZE, links)


def test_reducing_over_all_devices_costs_the_same_on_every_mesh_of_them():
    flat = Mesh((8,), ("all",))
    on_flat = reshard_time(plan_between("RR+P0", "RR", flat), ITEMSIZE, CLUSTER.links(flat))
    on_grid = reshard_time(plan_between("RR+P0+P1", "RR"), ITEMSIZE, CLUSTER.links(MESH))
    assert on_grid == on_flat == all_reduce_time(8, WHOLE, CLUSTER.inter_host)


def test_plain_links_give_a_step_over_several_axes_the_slowest_of_them():
    (step,) = plan_between("S01R", "RR").steps
    links = Link(1e-3, 4e6), Link(2e-3, 8e6)
    assert step_time(step, ITEMSIZE, links) == all_gather_time(8, WHOLE, Link(2e-3, 4e6))


def test_nothing_to_do_is_free():
    assert reshard_time(plan_between("S0R", "S0R"), ITEMSIZE, CLUSTER.links(MESH)) == 0.0


@given(data=st.data())
def test_seconds_as_the_cost_of_resharding_find_a_plan_as_fast_as_any_other(data):
    cluster = data.draw(clusters())
    mesh = data.draw(meshes_on(cluster))
    links = cluster.links(mesh)
    plan = data.draw(plans(mesh))
    found = reshard(plan.src, plan.dst, cost=lambda step: step_time(step, ITEMSIZE, links))
    fewest_bytes = reshard(plan.src, plan.dst)
    assert reshard_time(found, ITEMSIZE, links) <= reshard_time(fewest_bytes, ITEMSIZE, links)


def test_seconds_prefer_the_links_inside_a_host():
    # Every host has the whole, so a device can get its half of the rows from its own host.
    src, dst = (Layout((4096, 4096), MESH, Spec.parse(text)) for text in ("RS1", "S0R"))
    links = CLUSTER.links(MESH)

    def seconds(step):
        return step_time(step, ITEMSIZE, links)

    assert all(
        0 not in step.mesh_axes or step.is_local for step in reshard(src, dst, cost=seconds).steps
    )


def test_a_permutation_is_one_message_and_an_exchange_as_many_as_an_all_to_all():
    square = Mesh((2, 2), ("x", "y"))
    links = Link(1e-3, 4e6), Link(2e-3, 8e6)
    slow = Link(2e-3, 4e6)
    (swap,) = reshard(*(Layout((16, 16), square, Spec.parse(t)) for t in ("S0S1", "S1S0"))).steps
    assert step_time(swap, ITEMSIZE, links) == 2e-3 + WHOLE / 4 / 4e6
    (both,) = reshard(*(Layout((16, 16), square, Spec.parse(t)) for t in ("S0S1", "RS01"))).steps
    assert both.kind == "exchange"
    assert step_time(both, ITEMSIZE, links) == 3 * slow.latency_s + WHOLE / 4 / 4e6


def test_a_part_of_an_axis_has_the_link_of_the_axis():
    src, dst = Spec(((SubAxis(1, 1, 2),), ())), Spec.parse("RR")
    (step,) = reshard(*(Layout((16, 16), MESH, spec) for spec in (src, dst))).steps
    links = Link(1e-3, 4e6), Link(2e-3, 8e6)
    assert step_time(step, ITEMSIZE, links) == all_gather_time(2, WHOLE, links[1])
