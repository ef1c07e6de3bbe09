import math

import pytest
from hypothesis import given
from shardspec import Layout, LayoutError, Mesh, Spec, UnknownDeviceError
from shardspec.testing import check_covers_once, layouts

SMALL = Mesh((2, 2), ("x", "y"))


@given(layouts())
def test_slices_cover_the_tensor_exactly_once_in_each_replica_group(layout):
    check_covers_once(layout)


@given(layouts(even=True))
def test_even_layouts_cover_the_tensor_with_equal_shards(layout):
    check_covers_once(layout)
    assert layout.is_even
    assert len({layout.local_shape(device) for device in layout.mesh.device_ids}) == 1


@given(layouts())
def test_even_means_equal_shards(layout):
    shapes = {layout.local_shape(device) for device in layout.mesh.device_ids}
    if layout.is_even:
        assert len(shapes) == 1
    elif math.prod(layout.shape):
        assert len(shapes) > 1


@given(layouts())
def test_local_bytes_are_the_largest_shard_if_no_device_is_given(layout):
    each = [layout.local_bytes(4, device) for device in layout.mesh.device_ids]
    assert each == [4 * math.prod(layout.local_shape(d)) for d in layout.mesh.device_ids]
    assert layout.local_bytes(4) == max(each)


N, M = 8, 12
ALL_N, ALL_M = slice(0, N), slice(0, M)
UP, DOWN = slice(0, N // 2), slice(N // 2, N)
LEFT, RIGHT = slice(0, M // 2), slice(M // 2, M)


def quarters(n):
    return [slice(i * n // 4, (i + 1) * n // 4) for i in range(4)]


# The paper's rows S01R and RS01 misprint device 1 as N/4 : 3N/4, which would overlap device 2.
@pytest.mark.parametrize(
    ("spec", "devices"),
    [
        ("RR", [(ALL_N, ALL_M)] * 4),
        ("S0S1", [(UP, LEFT), (UP, RIGHT), (DOWN, LEFT), (DOWN, RIGHT)]),
        ("S1S0", [(UP, LEFT), (DOWN, LEFT), (UP, RIGHT), (DOWN, RIGHT)]),
        ("S0R", [(UP, ALL_M), (UP, ALL_M), (DOWN, ALL_M), (DOWN, ALL_M)]),
        ("S1R", [(UP, ALL_M), (DOWN, ALL_M), (UP, ALL_M), (DOWN, ALL_M)]),
        ("RS0", [(ALL_N, LEFT), (ALL_N, LEFT), (ALL_N, RIGHT), (ALL_N, RIGHT)]),
        ("RS1", [(ALL_N, LEFT), (ALL_N, RIGHT), (ALL_N, LEFT), (ALL_N, RIGHT)]),
        ("S01R", [(rows, ALL_M) for rows in quarters(N)]),
        ("RS01", [(ALL_N, columns) for columns in quarters(M)]),
    ],
)
def test_alpa_table_1(spec, devices):
    layout = Layout((N, M), SMALL, Spec.parse(spec))
    assert [layout.slices(device) for device in range(4)] == devices


def test_the_first_axis_of_a_dim_is_major():
    mesh = Mesh((2, 3), ("x", "y"))
    major = Layout((6,), mesh, Spec.parse("S01"))
    minor = Layout((6,), mesh, Spec.parse("S10"))
    assert [major.slices(d)[0].start for d in range(6)] == [0, 1, 2, 3, 4, 5]
    assert [minor.slices(d)[0].start for d in range(6)] == [0, 2, 4, 1, 3, 5]


def test_last_chunks_may_be_shorter_or_empty():
    layout = Layout((5,), Mesh((4,), ("x",)), Spec.parse("S0"))
    assert [layout.local_shape(device) for device in range(4)] == [(2,), (2,), (1,), (0,)]
    assert layout.shards == (4,)


def test_prints_shape_spec_and_mesh():
    assert str(Layout((4, 2), SMALL, Spec.parse("S0R"))) == "(4, 2) as S0R on (2, 2)"


@pytest.mark.parametrize(
    ("shape", "spec", "rule"),
    [
        ((4,), "RR", r"one entry for each dim; got spec RR \(2 dims\) for shape \(4,\) \(1 dims\)"),
        ((-1,), "R", r"sizes >= 0; got shape \(-1,\)"),
        ((4,), "S2", r"axes of its mesh; got spec S2 for a mesh of 2 axes, shape \(2, 2\)"),
        ((4,), "R+P2", "axes of its mesh"),
    ],
)
def test_rejects_a_spec_that_does_not_fit(shape, spec, rule):
    with pytest.raises(LayoutError, match=rule):
        Layout(shape, SMALL, Spec.parse(spec))


def test_names_an_unknown_device():
    with pytest.raises(UnknownDeviceError, match="got 9"):
        Layout((4,), SMALL, Spec.parse("S0")).slices(9)
