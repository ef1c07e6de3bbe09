from itertools import pairwise

import pytest
from hypothesis import given
from stagecut import InvalidInputError, SubmeshError, assign_devices, submesh_shapes
from stagecut.testing import cluster_shapes, tilings


@given(cluster_shapes(max_hosts=6, max_devices_per_host=64))
def test_each_shape_divides_the_next_within_a_host_and_takes_whole_hosts_beyond(cluster_shape):
    hosts, devices = cluster_shape
    shapes = submesh_shapes(hosts, devices)
    parts = [m for n, m in shapes if n == 1]
    assert parts[0] == 1
    assert parts[-1] == devices
    assert all(larger % part == 0 and larger > part for part, larger in pairwise(parts))
    assert shapes[len(parts) :] == tuple((n, devices) for n in range(2, hosts + 1))


@pytest.mark.parametrize("power", range(7))
def test_parts_of_a_host_are_the_powers_of_two_of_alpa(power):
    assert submesh_shapes(1, 2**power) == tuple((1, 2**p) for p in range(power + 1))


@given(tilings())
def test_every_choice_of_shapes_tiles_the_cluster(tiling):
    (hosts, devices), submeshes = tiling
    grids = assign_devices(submeshes, (hosts, devices))
    assert sorted(d for grid in grids for row in grid for d in row) == list(range(hosts * devices))


@given(tilings())
def test_each_row_is_consecutive_on_one_host_and_rows_on_consecutive_hosts(tiling):
    cluster_shape, submeshes = tiling
    for grid, (n, m) in zip(assign_devices(submeshes, cluster_shape), submeshes, strict=True):
        assert len(grid) == n
        for row in grid:
            assert row == tuple(range(row[0], row[0] + m))
            assert row[0] // cluster_shape[1] == row[-1] // cluster_shape[1]
        assert all(below[0] == above[0] + cluster_shape[1] for above, below in pairwise(grid))


@given(tilings())
def test_stages_of_one_shape_are_laid_down_in_pipeline_order(tiling):
    cluster_shape, submeshes = tiling
    grids = assign_devices(submeshes, cluster_shape)
    for shape in sorted(set(submeshes)):
        starts = [grid[0][0] for grid, each in zip(grids, submeshes, strict=True) if each == shape]
        assert starts == sorted(starts)


def test_neighbours_of_different_sizes_share_a_host():
    submeshes = ((1, 2), (1, 1), (1, 1), (1, 2), (1, 1), (1, 1))
    hosts = [grid[0][0] // 4 for grid in assign_devices(submeshes, (2, 4))]
    assert hosts == [0, 0, 0, 1, 1, 1]


def test_hosts_follow_the_pipeline_whether_shared_or_whole():
    submeshes = ((1, 2), (1, 2), (2, 4), (1, 4))
    hosts = [grid[0][0] // 4 for grid in assign_devices(submeshes, (4, 4))]
    assert hosts == [0, 0, 1, 3]


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
