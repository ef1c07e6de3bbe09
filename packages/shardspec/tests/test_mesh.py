import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Mesh, MeshError, UnknownAxisError, UnknownDeviceError
from shardspec.testing import meshes


@given(meshes())
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


def test_repr_is_the_constructor_call():
    mesh = Mesh((2, 1), ("x", "y"), (5, 3))
    assert eval(repr(mesh)) == mesh


def test_lists_make_an_equal_hashable_mesh():
    assert hash(Mesh([2], ["x"], [0, 1])) == hash(Mesh((2,), ("x",)))


@pytest.mark.parametrize(
    ("shape", "names", "ids", "rule"),
    [
        ((2, 4), ("x",), (), r"one axis name for each .* \(2 axes\) and axis_names=\('x',\) \(1 "),
        ((2, 0), ("x", "y"), (), r"at least one device; got shape=\(2, 0\)"),
        ((2, 2), ("x", "x"), (), r"distinct and not empty; got axis_names=\('x', 'x'\)"),
        ((2,), ("",), (), "distinct and not empty"),
        ((2,), ("x",), (0,), r"shape \(2,\) needs 2 distinct device ids >= 0; got 1: "),
        ((2,), ("x",), (1, 1), "2 distinct device ids"),
        ((2,), ("x",), (0, -1), "2 distinct device ids"),
    ],
)
def test_rejects_contradictions(shape, names, ids, rule):
    with pytest.raises(MeshError, match=rule):
        Mesh(shape, names, ids)


def test_a_mesh_of_countless_devices_is_made_without_listing_them():
    mesh = Mesh((10**9, 10**9), ("x", "y"))
    assert mesh.coordinates(5 * 10**9 + 7) == (5, 7)
    with pytest.raises(MeshError, match="a mesh has at most 9223372036854775807 devices"):
        Mesh((10**10, 10**9), ("x", "y"))


def test_names_an_unknown_axis():
    mesh = Mesh((2, 2), ("x", "y"))
    with pytest.raises(UnknownAxisError, match=r"got 'z', the mesh has \('x', 'y'\)"):
        mesh.axis("z")
    for axis in (2, -1):
        with pytest.raises(UnknownAxisError, match=f"up to the mesh's 2 axes; got axis {axis}"):
            mesh.axis_size((axis,))
    with pytest.raises(UnknownAxisError, match=r"distinct axes; got \(0, 0\)"):
        mesh.groups((0, 0))


def test_names_an_unknown_device():
    mesh = Mesh((2, 2), ("x", "y"))
    with pytest.raises(UnknownDeviceError, match=r"got 4, the mesh has range\(0, 4\)"):
        mesh.coordinates(4)
    for coordinates in ((0,), (0, 2), (0, -1)):
        with pytest.raises(UnknownDeviceError, match=r"within each axis; got \(0.* shape \(2, 2\)"):
            mesh.device(coordinates)
