import copy
import itertools
import math
import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from shardspec import (
    Layout,
    Mesh,
    MeshError,
    Spec,
    SubAxis,
    UnknownAxisError,
    UnknownDeviceError,
)
from shardspec.testing import meshes


@given(meshes(min_ndim=0))
def test_coordinates_and_device_are_inverse_and_row_major(mesh):
    points = list(itertools.product(*map(range, mesh.shape)))
    assert tuple(map(mesh.device, points)) == tuple(mesh.device_ids)
    assert list(map(mesh.coordinates, mesh.device_ids)) == points


@given(meshes(), st.data())
def test_groups_part_the_devices_by_the_other_coordinates(mesh, data):
    count = data.draw(st.integers(0, mesh.ndim))
    axes = tuple(data.draw(st.permutations(range(mesh.ndim)))[:count])
    groups = mesh.groups(axes)
    assert sorted(itertools.chain(*groups)) == sorted(mesh.device_ids)
    rests = []
    for group in groups:
        points = list(map(mesh.coordinates, group))
        along = itertools.product(*(range(mesh.shape[axis]) for axis in axes))
        assert [tuple(point[axis] for axis in axes) for point in points] == list(along)
        rest = {tuple(c for axis, c in enumerate(p) if axis not in axes) for p in points}
        assert len(rest) == 1
        rests += rest
    assert rests == sorted(set(rests))


def test_group_members_follow_the_order_of_the_axes():
    mesh = Mesh((2, 3), ("x", "y"))
    assert mesh.groups((0, 1)) == ((0, 1, 2, 3, 4, 5),)
    assert mesh.groups((1, 0)) == ((0, 3, 1, 4, 2, 5),)


def test_axes_are_found_by_name_and_multiply():
    mesh = Mesh((2, 3, 4), ("x", "y", "z"))
    assert (mesh.axis("z"), mesh.ndim, mesh.size) == (2, 3, 24)
    assert (mesh.axis_size((0, 2)), mesh.axis_size(())) == (8, 1)


def test_a_mesh_without_axes_is_one_device():
    assert Mesh((), (), (7,)).coordinates(7) == ()
    assert Mesh((), ()).groups(()) == ((0,),)


def test_numpy_integers_and_arrays_become_ints():
    mesh = Mesh(np.array([2, 2]), ["x", np.str_("y")], np.array([3, 1, 2, 0]))
    assert mesh == Mesh((2, 2), ("x", "y"), (3, 1, 2, 0))
    assert {type(n) for n in (*mesh.shape, *mesh.device_ids)} == {int}
    assert {type(name) for name in mesh.axis_names} == {str}
    assert mesh.coordinates(np.int64(1)) == mesh.coordinates(1)
    assert mesh.length(np.int32(1)) == 2


@given(meshes(min_ndim=0))
def test_meshes_are_values(mesh):
    same = Mesh(list(mesh.shape), list(mesh.axis_names), list(mesh.device_ids))
    assert (same, hash(same), eval(repr(mesh))) == (mesh, hash(mesh), mesh)
    mesh.coordinates(mesh.device_ids[-1])
    for copied in (copy.copy(mesh), copy.deepcopy(mesh), pickle.loads(pickle.dumps(mesh))):
        assert copied == mesh
        assert copied.coordinates(mesh.device_ids[0]) == (0,) * mesh.ndim


@given(st.integers(0, 9), st.integers(1, 4), st.integers(1, 6))
def test_ids_that_rise_by_equal_steps_are_one_value_and_a_range(start, step, count):
    ids = range(start, start + step * count, step)
    meshes = [Mesh((count,), ("x",), kind(ids)) for kind in (tuple, list, np.array, iter)]
    assert {Mesh((count,), ("x",), ids), *meshes} == {meshes[0]}
    assert all(isinstance(mesh.device_ids, range) for mesh in meshes)


def test_far_apart_ids_take_no_room():
    assert Mesh((3,), ("x",), (0, 1, 10**12)).device_ids == (0, 1, 10**12)


@given(meshes(max_length=8, max_size=24), st.data())
def test_sub_axes_are_the_axes_of_the_split_mesh(mesh, data):
    of = data.draw(st.integers(0, mesh.ndim - 1))
    length = mesh.shape[of]
    assume(length > 1)
    major = data.draw(st.sampled_from([n for n in range(1, length + 1) if length % n == 0]))
    minor = length // major
    split = mesh.split(mesh.axis_names[of], (major, minor))
    assert split.device_ids == mesh.device_ids
    if major > 1:
        assert mesh.groups((SubAxis(of, 1, major),)) == split.groups((of,))
    if minor > 1:
        assert mesh.groups((SubAxis(of, major, minor),)) == split.groups((of + 1,))
    if min(major, minor) > 1:
        both = (SubAxis(of, major, minor), SubAxis(of, 1, major))
        assert mesh.groups(both) == split.groups((of + 1, of))
        assert mesh.parts(both) == [*range(of), *both[::-1], *range(of + 1, mesh.ndim)]


@given(meshes(max_length=8, max_size=24), st.data())
def test_coordinates_along_the_parts_of_an_axis_make_up_that_along_the_axis(mesh, data):
    sizes, left = [], mesh.shape[0]
    while left > 1:
        sizes.append(data.draw(st.sampled_from([n for n in range(2, left + 1) if left % n == 0])))
        left //= sizes[-1]
    parts = [SubAxis(0, math.prod(sizes[:i]), size) for i, size in enumerate(sizes)]
    assert mesh.axis_size(parts) == mesh.shape[0]
    for device in mesh.device_ids:
        at = mesh.coordinates(device)
        digits = [mesh.coordinate(at, part) for part in parts]
        assert np.ravel_multi_index([*digits, 0], [*sizes, 1]) == at[0] == mesh.coordinate(at, 0)


@given(meshes(), st.data())
def test_a_submesh_is_the_grid_indexed(mesh, data):
    starts = [data.draw(st.integers(0, n - 1)) for n in mesh.shape]
    keep = [data.draw(st.booleans()) for _ in mesh.shape]
    where = {
        name: slice(start, None) if kept else start
        for name, start, kept in zip(mesh.axis_names, starts, keep, strict=True)
    }
    grid = mesh.grid[tuple(where.values())]
    found = mesh.submesh(where)
    assert found.shape == grid.shape
    assert list(found.device_ids) == grid.reshape(-1).tolist()
    assert found.axis_names == tuple(n for n, k in zip(mesh.axis_names, keep, strict=True) if k)


def peak_bytes(function):
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


BIG = (16, 64, 64)


def test_a_mesh_of_65536_devices_is_small():
    def use():
        mesh = Mesh(BIG, ("x", "y", "z"))
        layout = Layout((2**20, 64), mesh, Spec.parse("S02S1"))
        assert layout.slices(65_535) == (slice(2**20 - 1024, 2**20), slice(63, 64))
        assert layout.local_bytes(4) == 4096
        assert mesh.submesh({"x": 1, "y": 2}).size == 64

    assert peak_bytes(use) < 2**20  # the grid, 512 KiB, of which a part is taken


def test_a_permuted_mesh_of_65536_devices_keeps_one_table():
    mesh = Mesh(BIG, ("x", "y", "z"), tuple(reversed(range(65_536))))
    layout = Layout((2**20,), mesh, Spec.parse("S021"))
    assert peak_bytes(lambda: layout.slices(0)) < 2**24
    assert peak_bytes(lambda: [layout.slices(d) for d in range(0, 65_536, 1024)]) < 2**16


@pytest.mark.parametrize("order", [1, -1])
def test_groups_of_65536_devices_hold_each_id_once(order):
    mesh = Mesh(BIG, ("x", "y", "z"), tuple(range(65_536)[::order]))
    layout = Layout((64,), mesh, Spec.parse("S1"))
    assert peak_bytes(lambda: mesh.groups((0, 2))) < 2**23
    assert peak_bytes(layout.replica_groups) < 2**23
    assert [len(group) for group in layout.replica_groups()] == [1024] * 64


def test_shapes_of_any_size_need_no_list_of_devices():
    mesh = Mesh((2**31, 2**31), ("x", "y"))
    assert mesh.coordinates(2**62 - 1) == (2**31 - 1, 2**31 - 1)
    assert peak_bytes(lambda: Mesh((2**31, 2**31), ("x", "y"), range(7, 7 + 2**62))) < 2**16


@pytest.mark.parametrize(
    ("shape", "names", "ids", "rule"),
    [
        ((2, 4), ("x",), (), r"one axis name for each .* \(2 axes\) and axis_names=\('x',\) \(1 "),
        ((2, 0), ("x", "y"), (), r"at least one device; got shape=\(2, 0\)"),
        ((2.0,), ("x",), (), r"at least one device; got shape=\(2.0,\)"),
        ((True,), ("x",), (), "at least one device; got"),
        (("2",), ("x",), (), "at least one device; got"),
        ((None,), ("x",), (), "at least one device; got"),
        ((2**63,), ("x",), (), "at least one device; got"),
        (2, ("x",), (), r"a tuple of lengths and a tuple of axis names; got shape=2 and axis_nam"),
        ((2,), None, (), "a tuple of lengths and a tuple of axis names"),
        ("22", ("x", "y"), (), "a tuple of lengths and a tuple of axis names"),
        ((2,), "x", (), "a tuple of lengths and a tuple of axis names"),
        ((2, 2), ("x", "x"), (), r"distinct strings, not empty; got axis_names=\('x', 'x'\)"),
        ((2,), ("",), (), "distinct strings, not empty"),
        ((2,), (0,), (), "distinct strings, not empty"),
        ((2,), (None,), (), "distinct strings, not empty"),
        ((2,), (["x"],), (), "distinct strings, not empty"),
        ((2**40, 2**40), ("x", "y"), (), r"at most 9223372036854775807 devices; got shape="),
        ((2,), ("x",), (0,), r"shape \(2,\) needs 2 distinct device ids from 0 to .*; got 1: "),
        ((2,), ("x",), (1, 1), "2 distinct device ids"),
        ((2,), ("x",), (0, -1), "2 distinct device ids"),
        ((2,), ("x",), (-1, 0), "2 distinct device ids"),
        ((2,), ("x",), range(-1, 1), "2 distinct device ids"),
        ((2,), ("x",), (0, 1.0), "2 distinct device ids"),
        ((2,), ("x",), (False, True), "2 distinct device ids"),
        ((2,), ("x",), (0, 2**63), "2 distinct device ids"),
        ((2,), ("x",), range(2**70), "2 distinct device ids"),
        ((2,), ("x",), "01", "2 distinct device ids"),
        ((2,), ("x",), 5, "2 distinct device ids"),
        ((2,), ("x",), None, "2 distinct device ids"),
        ((2,), ("x",), ((0, 1), (2, 3)), "2 distinct device ids"),
    ],
)
def test_rejects_contradictions(shape, names, ids, rule):
    with pytest.raises(MeshError, match=rule):
        Mesh(shape, names, ids)


def test_names_an_unknown_axis():
    mesh = Mesh((2, 2), ("x", "y"))
    with pytest.raises(UnknownAxisError, match=r"got 'z', the mesh has \('x', 'y'\)"):
        mesh.axis("z")
    for name in (0, None, ["x"]):
        with pytest.raises(UnknownAxisError, match="the axis is one of the mesh's; got"):
            mesh.axis(name)
    for axis in (2, -1, 0.0, True, "x", None):
        with pytest.raises(
            UnknownAxisError, match=f"below the mesh's number of axes, 2; got axis {axis!r}"
        ):
            mesh.axis_size((axis,))
    for axes in (0, None):
        with pytest.raises(UnknownAxisError, match=f"a tuple of indices; got {axes}"):
            mesh.groups(axes)


@pytest.mark.parametrize(
    "axes", [(0, 0), (0, SubAxis(0, 1, 2)), (SubAxis(0, 1, 2), SubAxis(0, 1, 4))]
)
def test_names_an_axis_used_twice(axes):
    with pytest.raises(UnknownAxisError, match=r"a group runs over distinct axes; got \("):
        Mesh((4,), ("x",)).groups(axes)


def test_names_a_part_that_does_not_divide_its_axis():
    with pytest.raises(
        UnknownAxisError, match=r"divide its axis; got 0:\(2\)3 of an axis of 8 dev"
    ):
        Mesh((8,), ("x",)).length(SubAxis(0, 2, 3))
    with pytest.raises(UnknownAxisError, match="below the mesh's number of axes, 1"):
        Mesh((8,), ("x",)).length(SubAxis(1, 1, 2))


@pytest.mark.parametrize("sizes", [(2, 3), (8, 0), (-2, -4), (2.0, 4), None, ()])
def test_rejects_parts_that_do_not_make_up_their_axis(sizes):
    with pytest.raises(MeshError, match=r"multiply to its length; got sizes=.* 'x' of 8 devices"):
        Mesh((8,), ("x",)).split("x", sizes)


@pytest.mark.parametrize("part", [2, -3, slice(2, 2), True, 1.0, "0", None, [0], slice("a", "b")])
def test_rejects_a_submesh_without_devices(part):
    with pytest.raises(
        MeshError, match=r"at least one device; got .*'x'.* shape \(2, 2\) with axes"
    ):
        Mesh((2, 2), ("x", "y")).submesh({"x": part})


def test_names_an_unknown_device():
    mesh = Mesh((2, 2), ("x", "y"))
    with pytest.raises(UnknownDeviceError, match=r"got 4, the mesh has range\(0, 4\)"):
        mesh.coordinates(4)
    for mesh_of_four in (mesh, Mesh((4,), ("x",), (0, 1, 3, 2))):
        for device in (-1, 1.0, True, "0", None, [0]):
            with pytest.raises(UnknownDeviceError, match="one of the mesh's; got"):
                mesh_of_four.coordinates(device)
    with pytest.raises(UnknownDeviceError, match=r"the mesh has \(1, 0, 2, .*, ... 20 in all\)"):
        Mesh((20,), ("x",), (1, 0, *range(2, 20))).coordinates(20)
    for coordinates in ((0,), (0, 2), (0, -1), (0, 1.0), (0, "0"), (0, True)):
        with pytest.raises(UnknownDeviceError, match=r"within each axis; got \(0.* shape \(2, 2\)"):
            mesh.device(coordinates)
