import pytest
from costmodel import (
    Cluster,
    GroupLinks,
    Link,
    MeshLinks,
    QuantityError,
    all_gather_time,
    collective_time,
    reshard_time,
    sequence_time,
    step_time,
)
from costmodel.testing import clusters, meshes_on
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Layout, Mesh, Partial, Spec, SubAxis, reshard, reshard_whole_axes

ITEMSIZE = 4
CLUSTER = Cluster.preset("two-hosts")
MESH = Mesh((2, 4), ("host", "device"))
LINKS = CLUSTER.links(MESH)
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
    ("src", "dst", "kind", "n_bytes", "axes"),
    [
        ("S0R", "RR", "all_gather", WHOLE, (0,)),
        ("RS1", "RR", "all_gather", WHOLE, (1,)),
        ("S1R", "RS1", "all_to_all", WHOLE / 4, (1,)),
        ("RR+P0", "S0R", "reduce_scatter", WHOLE, (0,)),
        ("RR+P1", "RR", "all_reduce", WHOLE, (1,)),
        ("S0R+P1", "S0R", "all_reduce", WHOLE / 2, (1,)),
        ("S01R", "RR", "all_gather", WHOLE, (0, 1)),
        ("S01R", "RS01", "all_to_all", WHOLE / 8, (0, 1)),
    ],
)
def test_a_step_takes_the_time_of_its_collective_over_its_axes(src, dst, kind, n_bytes, axes):
    (step,) = plan_between(src, dst).steps
    assert step.kind == kind
    assert step_time(step, ITEMSIZE, LINKS) == collective_time(kind, n_bytes, LINKS.group(axes))


@pytest.mark.parametrize("dst", ["RR", "S0R", "S01R"])
def test_keeping_a_part_of_what_is_there_is_free(dst):
    assert reshard_time(plan_between("RR", dst), ITEMSIZE, LINKS) == 0.0


@given(data=st.data())
def test_without_latency_time_is_the_bytes_received_over_the_bandwidth(data):
    cluster = data.draw(clusters())
    mesh = data.draw(meshes_on(cluster))
    plan = data.draw(plans(mesh))
    one = Link(0.0, 1.0)
    links = MeshLinks(mesh.ndim, lambda axes: GroupLinks(mesh.axis_size(axes), one, one, one))
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
def test_the_links_of_a_cluster_never_lose_to_flat_rings_over_one_axis(data):
    cluster = data.draw(clusters())
    mesh = data.draw(meshes_on(cluster))
    links = cluster.links(mesh)
    for step in data.draw(plans(mesh)).steps:
        is_ring = step.kind in ("all_gather", "all_reduce", "reduce_scatter")
        if is_ring and len(step.axes) == 1 and step.axes == step.mesh_axes:
            flat = step_time(step, ITEMSIZE, tuple(links))
            assert step_time(step, ITEMSIZE, links) <= flat * (1 + 1e-12)


def test_reducing_over_all_devices_costs_the_same_on_every_mesh_of_them():
    flat = Mesh((8,), ("all",))
    on_flat = reshard_time(plan_between("RR+P0", "RR", flat), ITEMSIZE, CLUSTER.links(flat))
    on_grid = reshard_time(plan_between("RR+P0+P1", "RR"), ITEMSIZE, LINKS)
    assert on_grid == on_flat


def test_an_all_to_all_over_two_hosts_passes_each_card_with_half_of_all_bytes():
    (step,) = plan_between("S01R", "RS01", shape=(4096, 4096)).steps
    crossing = 4 * (8 - 4) / 8 * (4096 * 4096 / 8 * ITEMSIZE)
    seconds = step_time(step, ITEMSIZE, LINKS)
    assert seconds == pytest.approx(crossing / CLUSTER.inter_host.bandwidth_bytes_per_s, rel=0.02)


def test_plain_links_give_a_step_over_several_axes_the_slowest_of_them():
    (step,) = plan_between("S01R", "RR").steps
    links = Link(1e-3, 4e6), Link(2e-3, 8e6)
    assert step_time(step, ITEMSIZE, links) == all_gather_time(8, WHOLE, Link(2e-3, 4e6))


def test_nothing_to_do_is_free():
    assert reshard_time(plan_between("S0R", "S0R"), ITEMSIZE, LINKS) == 0.0


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
    links = LINKS

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
    assert step_time(swap, ITEMSIZE, links) == pytest.approx(2e-3 + WHOLE / 4 / 4e6)
    (both,) = reshard(*(Layout((16, 16), square, Spec.parse(t)) for t in ("S0S1", "RS01"))).steps
    assert both.kind == "exchange"
    assert step_time(both, ITEMSIZE, links) == pytest.approx(3 * slow.latency_s + WHOLE / 4 / 4e6)


def test_an_exchange_takes_the_time_of_a_pairwise_all_to_all_that_sends_as_much():
    layouts = (Layout((16, 16), MESH, Spec.parse(text)) for text in ("S0S1", "RS01"))
    (step,) = reshard(*layouts).steps
    assert step.kind == "exchange"
    most = max(step.sent_bytes(ITEMSIZE), step.received_bytes(ITEMSIZE))
    whole = most + most / (step.group_size - 1)  # with what each device keeps
    assert step_time(step, ITEMSIZE, LINKS) == pytest.approx(
        collective_time("all_to_all", whole, LINKS.group(step.axes), "pairwise")
    )


def test_a_part_of_an_axis_has_the_link_of_the_axis():
    src, dst = Spec(((SubAxis(1, 1, 2),), ())), Spec.parse("RR")
    (step,) = reshard(*(Layout((16, 16), MESH, spec) for spec in (src, dst))).steps
    links = Link(1e-3, 4e6), Link(2e-3, 8e6)
    assert step_time(step, ITEMSIZE, links) == all_gather_time(2, WHOLE, links[1])


def test_a_sequence_takes_the_sum_of_its_collectives():
    collectives = [("all_reduce", 1e6, (1,)), ("broadcast", 1e3, (1, 0)), ("permute", 8, (0,))]
    assert sequence_time(collectives, LINKS) == sum(
        collective_time(kind, n_bytes, LINKS.group(axes)) for kind, n_bytes, axes in collectives
    )
    assert sequence_time([], LINKS) == 0.0


def test_rejects_a_sequence_with_negative_bytes():
    with pytest.raises(QuantityError, match="n_bytes is a finite number >= 0; got -1"):
        sequence_time([("all_reduce", -1, (0,))], LINKS)


@pytest.mark.parametrize("itemsize", [0, -4, 0.5, "4", None])
@pytest.mark.parametrize("dst", ["RR", "S01R"], ids=["moves", "stays"])
def test_rejects_elements_without_bytes(itemsize, dst):
    plan = plan_between("S0R", dst)
    with pytest.raises(QuantityError, match="itemsize is a finite whole number >= 1; got"):
        reshard_time(plan, itemsize, LINKS)
