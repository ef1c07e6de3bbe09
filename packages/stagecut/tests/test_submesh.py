import itertools
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from stagecut import (
    HostKind,
    InfeasibleStagesError,
    InvalidInputError,
    Places,
    StageCost,
    SubmeshError,
    SubmeshOfKind,
    assign_devices,
    slice_stages,
    submesh_shapes,
)
from stagecut.testing import (
    all_assignments,
    cluster_shapes,
    clusters,
    pipeline_distance,
    requests,
    tilings,
)


def kinds_of(places):
    return [kind for kind, n in places.hosts for _ in range(n)]


def hosts_of(grids, places):
    """Of each stage."""
    host_of = [host for host, kind in enumerate(kinds_of(places)) for _ in range(kind.n_devices)]
    return [tuple(host_of[row[0]] for row in grid) for grid in grids]


@given(cluster_shapes(max_hosts=6, max_devices_per_host=64))
def test_shapes_are_parts_that_divide_a_host_and_whole_hosts_beyond(cluster_shape):
    hosts, devices = cluster_shape
    shapes = submesh_shapes(hosts, devices)
    parts = [m for n, m in shapes if n == 1]
    assert parts[0] == 1
    assert parts[-1] == devices
    assert all(devices % part == 0 for part in parts)
    assert shapes[len(parts) :] == tuple((n, devices) for n in range(2, hosts + 1))


@given(tilings())
def test_shapes_that_have_as_many_devices_cover_the_cluster(tiling):
    (hosts, devices), submeshes = tiling
    grids = assign_devices(submeshes, (hosts, devices), steps=1000)
    assert sorted(d for grid in grids for row in grid for d in row) == list(range(hosts * devices))


@given(clusters(), st.data())
def test_assigned_submeshes_are_disjoint_of_their_shape_and_kind_and_cover(places, data):
    submeshes = data.draw(requests(places))
    assume(places.can_hold(submeshes))
    grids = assign_devices(submeshes, places, steps=1000)
    devices = [device for grid in grids for row in grid for device in row]
    assert len(set(devices)) == len(devices)
    assert set(devices) <= set(range(places.n_devices))
    assert not places.use_all or len(devices) == places.n_devices
    kinds = kinds_of(places)
    host_of = [host for host, kind in enumerate(kinds) for _ in range(kind.n_devices)]
    for grid, submesh in zip(grids, submeshes, strict=True):
        assert tuple(map(len, grid)) == (submesh[1],) * submesh[0]
        for row in grid:
            assert row == tuple(range(row[0], row[0] + len(row)))
            assert host_of[row[0]] == host_of[row[-1]]
        if isinstance(submesh, SubmeshOfKind):
            names = [kinds[host_of[row[0]]].name for row in grid]
            assert {(name, names.count(name)) for name in names} == set(submesh.hosts)


@given(clusters(), st.data())
def test_hosts_of_a_stage_rise_and_follow_each_other_in_their_kind(places, data):
    submeshes = data.draw(requests(places))
    assume(places.can_hold(submeshes))
    kinds = kinds_of(places)
    for hosts in hosts_of(assign_devices(submeshes, places, steps=1000), places):
        assert all(above < below for above, below in pairwise(hosts))
        for kind in {kinds[host] for host in hosts}:
            own = [host for host in hosts if kinds[host] == kind]
            assert [kinds[host] for host in range(own[0], own[-1])].count(kind) == len(own) - 1


@given(clusters().filter(lambda places: not places.mix), st.data())
def test_no_assignment_has_fewer_hosts_between_neighbours_or_as_few_and_fewer_apart(places, data):
    submeshes = data.draw(requests(places))
    assume(len(submeshes) <= 6 and places.can_hold(submeshes))
    hosts = hosts_of(assign_devices(submeshes, places), places)
    least = min(map(pipeline_distance, all_assignments(submeshes, places)))
    assert pipeline_distance(hosts) == least


@given(clusters(max_hosts=3), st.data())
def test_the_slicing_takes_the_best_of_what_can_be_assigned(places, data):
    shapes = tuple(dict.fromkeys(places.shapes))
    seconds = {shape: data.draw(st.integers(1, 8), label=repr(shape)) for shape in shapes}
    possible = [2 * 2 * seconds[shape] for shape in shapes if places.can_hold([shape])]
    possible += [
        seconds[one] + seconds[other] + max(seconds[one], seconds[other])
        for one, other in itertools.combinations_with_replacement(shapes, 2)
        if places.can_hold([one, other])
    ]

    def cost(first, last, submesh):
        return StageCost(float(seconds[submesh] * (last - first + 1)), 0, 0)

    if not possible:
        with pytest.raises(InfeasibleStagesError):
            slice_stages(2, places, 2, cost)
        return
    slicing = slice_stages(2, places, 2, cost)
    assert slicing.time_s == min(possible)
    submeshes = [stage.submesh for stage in slicing.stages]
    assert len(assign_devices(submeshes, places)) == len(submeshes)


@pytest.mark.parametrize(
    ("submeshes", "cluster_shape", "n_apart"),
    [
        pytest.param([(1, 8)] * 128, (128, 8), 127, id="hosts"),
        pytest.param([(1, 1)] * 256, (32, 8), 31, id="devices"),
        pytest.param([(1, 4)] * 32 + [(2, 8)] * 8, (32, 8), 23, id="halves, then pairs of hosts"),
        pytest.param([(1, 1), (1, 2), (1, 4), (1, 1)] * 8, (8, 8), 7, id="what fills a host"),
    ],
)
def test_a_large_cluster_is_filled_in_pipeline_order(submeshes, cluster_shape, n_apart):
    hosts = hosts_of(assign_devices(submeshes, cluster_shape), Places.uniform(*cluster_shape))
    assert pipeline_distance(hosts) == (0, n_apart)


@given(tilings(max_devices=32), st.integers(1, 100))
def test_any_number_of_steps_gives_an_assignment(tiling, steps):
    cluster_shape, submeshes = tiling
    grids = assign_devices(submeshes, cluster_shape, steps=steps)
    devices = sorted(itertools.chain(*itertools.chain(*grids)))
    assert devices == list(range(cluster_shape[0] * cluster_shape[1]))


@given(tilings().filter(lambda tiling: tiling[0][1] in (1, 2, 4, 8)))
def test_parts_of_a_host_that_divide_each_other_are_aligned(tiling):
    (hosts, devices), submeshes = tiling
    for grid in assign_devices(submeshes, (hosts, devices), steps=100):
        assert all(row[0] % len(row) == 0 for row in grid)


def test_neighbours_of_different_sizes_share_a_host():
    submeshes = ((1, 2), (1, 1), (1, 1), (1, 2), (1, 1), (1, 1))
    hosts = [grid[0][0] // 4 for grid in assign_devices(submeshes, (2, 4))]
    assert hosts == [0, 0, 0, 1, 1, 1]


def test_hosts_follow_the_pipeline_whether_shared_or_whole():
    submeshes = ((1, 2), (1, 2), (2, 4), (1, 4))
    hosts = [grid[0][0] // 4 for grid in assign_devices(submeshes, (4, 4))]
    assert hosts == [0, 0, 1, 3]


def test_a_partly_used_cluster_has_its_stages_side_by_side():
    places = Places.uniform(4, 4, use_all=False)
    hosts = hosts_of(assign_devices(((1, 4), (1, 2), (1, 1), (1, 4)), places), places)
    assert hosts == [(0,), (1,), (1,), (2,)]


def test_no_stage_of_a_partly_used_cluster_has_no_devices():
    assert assign_devices((), Places.uniform(2, 2, use_all=False)) == ()


def test_a_stage_of_mixed_kinds_takes_hosts_of_both():
    places = Places(((HostKind(2, "old"), 2), (HostKind(2, "new"), 2)), mix=True)
    mixed = SubmeshOfKind((("old", 1), ("new", 1)), 2)
    old, new = (SubmeshOfKind(((name, 1),), 2) for name in ("old", "new"))
    assert assign_devices((old, mixed, new), places) == (((0, 1),), ((2, 3), (4, 5)), ((6, 7),))


@pytest.mark.parametrize("cluster_shape", [(0, 4), (2, 0), (1, -1)])
def test_rejects_a_cluster_without_devices(cluster_shape):
    with pytest.raises(InvalidInputError, match="at least one host with at least one device; got"):
        submesh_shapes(*cluster_shape)


@pytest.mark.parametrize("shape", [(1, 3), (2, 2), (3, 4), (0, 0)])
def test_rejects_a_shape_that_cannot_be_placed(shape):
    with pytest.raises(SubmeshError, match=r"one of the shapes .* got submeshes\[0\]="):
        assign_devices((shape,), (2, 4))


@pytest.mark.parametrize("submeshes", [(), ((1, 4),), ((2, 4), (1, 1))])
def test_rejects_submeshes_that_leave_or_repeat_devices(submeshes):
    with pytest.raises(SubmeshError, match=r"take every device once; got \d devices"):
        assign_devices(submeshes, (2, 4))


def test_rejects_submeshes_that_have_the_devices_but_do_not_fill_the_hosts():
    places = Places.uniform(2, 6, parts=(1, 4, 6))
    with pytest.raises(SubmeshError, match=r"take every device once; got 12 devices .* parts=\(1,"):
        assign_devices(((1, 4), (1, 4), (1, 4)), places)


def test_rejects_submeshes_that_need_more_than_a_partly_used_cluster():
    places = Places.uniform(1, 4, use_all=False)
    with pytest.raises(SubmeshError, match=r"take a device at most once; got 5 devices"):
        assign_devices(((1, 4), (1, 1)), places)
