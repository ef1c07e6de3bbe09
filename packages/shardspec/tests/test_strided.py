import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardspec import (
    Layout,
    LayoutError,
    Mesh,
    Partial,
    Spec,
    SpecError,
    Split,
    SubAxis,
    UnknownAxisError,
)
from shardspec.layout.strided import candidates, rhino_spec, strides
from shardspec.testing import layouts, meshes

PAIR = Mesh((2,), ("x",))
FOUR = Mesh((4,), ("x",))


def factors(n):
    return sum(n % i == 0 for i in range(1, n + 1))


def cells(layout, device):
    return [[int(i) for i in of_dim] for of_dim in layout.indices(device)]


def test_rhino_figure_3():
    """The 4x2 tensor on two devices: by (0, 2), (0, 1), (1, 1), then whole and partial."""
    found = candidates((4, 2), PAIR, 0)
    held = [[cells(Layout((4, 2), PAIR, spec), device) for device in (0, 1)] for spec in found]
    assert held == [
        [[[0, 1], [0, 1]], [[2, 3], [0, 1]]],
        [[[0, 2], [0, 1]], [[1, 3], [0, 1]]],
        [[[0, 1, 2, 3], [0]], [[0, 1, 2, 3], [1]]],
        [[[0, 1, 2, 3], [0, 1]]] * 2,
        [[[0, 1, 2, 3], [0, 1]]] * 2,
    ]
    assert [strides(Layout((4, 2), PAIR, spec)) for spec in found] == [
        (2, None),
        (1, None),
        (None, 1),
        (None, None),
        (None, None),
    ]


def test_rhino_section_4_3_3_counts_16_ways_to_put_256_by_256_on_4_devices():
    found = candidates((256, 256), FOUR, 0)
    assert len(found) == len(set(found)) == 2 * factors(256 // 4) + 2 == 16
    assert sum(spec.is_partial for spec in found) == 1


@given(st.lists(st.integers(0, 24), max_size=3).map(tuple), meshes(max_ndim=2), st.data())
def test_candidates_are_as_many_as_the_rule_says_and_all_different(shape, mesh, data):
    axis = data.draw(st.integers(0, mesh.ndim - 1))
    devices = mesh.shape[axis]
    found = candidates(shape, mesh, axis)
    shared = [n // devices for n in shape if n and n % devices == 0]
    assert len(set(found)) == len(found) == sum(map(factors, shared)) + 2
    for spec in found:
        layout = Layout(shape, mesh, spec)
        assert layout.is_even
        assert set(spec.axes) <= {axis}
    assert found[-2:] == (
        Spec.replicated(len(shape)),
        Spec(((),) * len(shape), (Partial(axis),)),
    )


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(1, 2), st.booleans())
def test_units_are_dealt_out_by_strides(devices, pieces, stride, rank, sub):
    """Unit `u` lies on device `u // stride % k`: the definition of 4.1, one unit at a time."""
    mesh = Mesh((2 * devices,), ("x",)) if sub else Mesh((devices,), ("x",))
    axis = SubAxis(0, 2, devices) if sub and devices > 1 else 0
    devices = mesh.length(axis)
    n = devices * pieces * stride
    shape = (3,) * (rank - 1) + (n,)
    layout = Layout(shape, mesh, rhino_spec(shape, mesh, axis, rank - 1, stride))
    for device in mesh.device_ids:
        place = mesh.coordinate(mesh.coordinates(device), axis)
        expected = [u for u in range(n) if u // stride % devices == place]
        assert cells(layout, device)[-1] == expected
    assert strides(layout)[-1] == stride


@given(layouts(even=True, partial=False, strided=True, sub_axes=True))
def test_strides_are_the_lengths_of_the_pieces(layout):
    for dim, stride in enumerate(strides(layout)):
        if stride is None:
            assert layout.spec.dims[dim] == ()
        else:
            runs = [run for d in layout.mesh.device_ids for run in layout.runs(d)[dim]]
            assert all((stop - start) % stride == 0 for start, stop in runs)
            assert layout.shape[dim] == 0 or all(start % stride == 0 for start, _ in runs)


def test_a_stride_splits_the_dim_and_the_largest_does_not():
    assert rhino_spec((8,), PAIR, 0, 0, 2) == Spec(((Split(2), 0),))
    assert rhino_spec((8,), PAIR, 0, 0, 4) == Spec(((0,),))


@pytest.mark.parametrize(
    ("shape", "dim", "stride"),
    [
        ((8,), 0, 3),
        ((8,), 0, 8),
        ((8,), 0, 0),
        ((8,), 0, 1.0),
        ((7,), 0, 1),
        ((0,), 0, 1),
        ((8,), 0, None),
    ],
)
def test_rejects_a_stride_that_does_not_divide_a_device_s_share(shape, dim, stride):
    with pytest.raises(SpecError, match=r"a factor of a device's share; got stride=.* units on 2"):
        rhino_spec(shape, PAIR, 0, dim, stride)


@pytest.mark.parametrize(("shape", "dim"), [((8,), 1), ((8,), -1), ((), 0), ((8.0,), 0), (8, 0)])
def test_rejects_a_dim_that_the_tensor_does_not_have(shape, dim):
    with pytest.raises(SpecError, match="a dim is an index into a shape; got dim="):
        rhino_spec(shape, PAIR, 0, dim, 1)


def test_rejects_an_axis_that_the_mesh_does_not_have():
    with pytest.raises(UnknownAxisError, match="got axis 1"):
        rhino_spec((8,), PAIR, 1, 0, 1)
    with pytest.raises(UnknownAxisError, match="got axis 'x'"):
        candidates((8,), PAIR, "x")


def test_rejects_a_shape_of_no_sizes():
    with pytest.raises(SpecError, match=r"sizes >= 0; got shape=\(-1,\)"):
        candidates((-1,), PAIR, 0)


def test_rejects_the_strides_of_unequal_pieces():
    with pytest.raises(LayoutError, match=r"the size of all pieces of a dim; got \(5,\) as S0"):
        strides(Layout((5,), PAIR, Spec.parse("S0")))
