import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Layout, LayoutError, Mesh, Partial, Spec, Split, SubAxis, on_mesh
from shardspec.testing import EVERY_RULE, every_spec, layouts, meshes

any_layouts = st.one_of(
    layouts(sub_axes=True, chunking=EVERY_RULE),
    layouts(sub_axes=True, strided=True, chunking=("ceil", "nested", "balanced", "sizes")),
)


@st.composite
def finer_meshes(draw, layout):
    """Meshes of the layout's devices: its parts of axes in any order, some of them joined."""
    mesh = layout.mesh
    used = [axis for dim in range(layout.spec.ndim) for axis in layout.spec.sharding_of(dim)]
    used += [partial.axis for partial in layout.spec.partial]
    order = draw(st.permutations(mesh.parts(used)))
    (ids,) = mesh.groups(tuple(order))
    shape = []
    for part in order:
        if shape and draw(st.booleans()):
            shape[-1] *= mesh.length(part)
        else:
            shape.append(mesh.length(part))
    return Mesh(tuple(shape), tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ"[: len(shape)]), ids)


@st.composite
def reordered(draw, mesh, max_ndim=3):
    """Meshes of the same devices in any order and shape."""
    sizes, left = [], mesh.size
    while left > 1 and len(sizes) < max_ndim - 1:
        sizes.append(draw(st.sampled_from([n for n in range(1, left + 1) if left % n == 0])))
        left //= sizes[-1]
    shape = (*sizes, left)
    return Mesh(shape, tuple("uvwxyz"[: len(shape)]), tuple(draw(st.permutations(mesh.device_ids))))


@given(any_layouts, st.data())
def test_every_device_holds_the_same_on_a_mesh_made_of_the_layouts_parts(layout, data):
    mesh = data.draw(finer_meshes(layout))
    written = on_mesh(layout, mesh)
    assert written.mesh == mesh
    assert written.is_equivalent(layout)
    assert on_mesh(written, layout.mesh).is_equivalent(layout)


@given(layouts(sub_axes=True, mixed_kinds=True), st.data())
def test_every_device_holds_the_same_or_there_is_an_error(layout, data):
    mesh = data.draw(st.one_of(finer_meshes(layout), reordered(layout.mesh)))
    try:
        written = on_mesh(layout, mesh)
    except LayoutError:
        return
    assert written.mesh == mesh
    assert written.is_equivalent(layout)


@given(meshes(max_length=8, max_size=8).filter(lambda mesh: mesh.size in (2, 4, 8)), st.data())
def test_an_error_means_that_no_spec_of_the_mesh_says_it(mesh, data):
    of_pairs = Mesh((2,) * mesh.size.bit_length(), tuple("abcd"[: mesh.size.bit_length()]))
    of_pairs = Mesh(of_pairs.shape[1:], of_pairs.axis_names[1:], mesh.device_ids)
    specs = [*every_spec(of_pairs, 1)]
    layout = Layout((mesh.size,), of_pairs, data.draw(st.sampled_from(specs)))
    other = Mesh(
        of_pairs.shape, of_pairs.axis_names, tuple(data.draw(st.permutations(mesh.device_ids)))
    )
    whole = Mesh((mesh.size,), ("all",), other.device_ids)
    sayable = any(Layout(layout.shape, other, spec).is_equivalent(layout) for spec in specs)
    for target in (other, whole):
        if sayable:
            assert on_mesh(layout, target).is_equivalent(layout)
        else:
            with pytest.raises(LayoutError, match="no parts of axes that say"):
                on_mesh(layout, target)


@given(any_layouts)
def test_other_names_change_nothing_else(layout):
    names = tuple(name.upper() for name in layout.mesh.axis_names)
    mesh = Mesh(layout.mesh.shape, names, layout.mesh.device_ids)
    assert on_mesh(layout, mesh) == Layout(layout.shape, mesh, layout.spec, layout.chunking)
    assert on_mesh(layout, layout.mesh) == layout


@pytest.mark.parametrize("rule", ["nested", "balanced"])
def test_sizes_stay_where_the_levels_that_cut_a_dim_are_joined(rule):
    layout = Layout((7,), Mesh((2, 2), ("x", "y")), Spec.parse("S01"), rule)
    written = on_mesh(layout, Mesh((4,), ("a",)))
    assert written.spec == Spec.parse("S0")
    assert written.is_equivalent(layout)
    assert on_mesh(written, layout.mesh) == layout


def test_a_strided_dim_keeps_its_splits():
    layout = Layout((24,), Mesh((8,), ("a",)), Spec.parse("S(0:(4)2)[3](0:(1)4)"))
    written = on_mesh(layout, Mesh((4, 2), ("x", "y")))
    assert written.spec == Spec(((1, Split(3), 0),))
    assert written.is_equivalent(layout)


def test_a_split_before_axes_of_length_1_becomes_sizes():
    layout = Layout((5,), Mesh((2, 1), ("x", "y")), Spec.parse("S0[2]1"))
    written = on_mesh(layout, Mesh((2,), ("a",)))
    assert written.rules == ((4, 1),)
    assert written.is_equivalent(layout)
    padded = Layout((5,), layout.mesh, layout.spec, "padded")
    with pytest.raises(LayoutError, match=r"no shorter form; got 5 elements cut into \(2, 2, 1\)"):
        on_mesh(padded, written.mesh)


def test_partial_results_over_all_devices_need_no_order():
    layout = Layout((3,), Mesh((6,), ("a",)), Spec.parse("R+P0"))
    mesh = Mesh((3, 2), ("x", "y"), (4, 0, 3, 1, 5, 2))
    assert on_mesh(layout, mesh).spec == Spec.parse("R+P0+P1")


def test_which_replica_is_combined_with_which_makes_no_difference():
    layout = Layout((3,), Mesh((2, 2), ("x", "y")), Spec.parse("R+P0"))
    mesh = Mesh((2, 2), ("x", "y"), (0, 1, 3, 2))
    written = on_mesh(layout, mesh)
    assert written == Layout((3,), mesh, Spec.parse("R+P0"))
    assert written.is_equivalent(layout)
    assert not Layout((3,), mesh, Spec.parse("R+P1")).is_equivalent(layout)


def test_kinds_that_commute_may_change_places():
    layout = Layout((3,), Mesh((2, 3), ("x", "y")), Spec.parse("R+P0+Pavg1"))
    written = on_mesh(layout, Mesh((3, 2), ("y", "x"), (0, 3, 1, 4, 2, 5)))
    assert written.spec == Spec.parse("R+Pavg0+P1")
    assert written.is_equivalent(layout)


def test_a_large_mesh_is_written_anew():
    size = 1 << 16
    layout = Layout((size, 8), Mesh((256, 256), ("x", "y")), Spec.parse("S1R+P0"))
    written = on_mesh(layout, Mesh((16, 16, 16, 16), tuple("abcd"), range(size)))
    assert written.spec == Spec(((2, 3), ()), (Partial(0), Partial(1)))
    mesh = Mesh((size,), ("a",), tuple(range(size - 1, -1, -1)))
    with pytest.raises(LayoutError, match="how dim 0 is sharded"):
        on_mesh(layout, mesh)


@pytest.mark.parametrize(
    ("spec", "shape", "rule"),
    [
        ("S1", (3, 2), "no parts of axes that say how dim 0 is sharded; got .*S1 on"),
        ("R+P1", (3, 2), "which partial results combine, in their order; got .*P1 on"),
        ("R+P0+Pmax1", (6,), "which partial results combine, in their order"),
    ],
)
def test_rejects_a_mesh_that_cannot_say_it(spec, shape, rule):
    layout = Layout((6,), Mesh((2, 3), ("x", "y")), Spec.parse(spec))
    ids = (0, 3, 1, 4, 2, 5) if len(shape) == 1 else ()
    with pytest.raises(LayoutError, match=rule):
        on_mesh(layout, Mesh(shape, tuple("pq"[: len(shape)]), ids))


def test_rejects_other_devices():
    layout = Layout((6,), Mesh((2, 3), ("x", "y")), Spec.parse("S0"))
    for mesh in (Mesh((5,), ("a",)), Mesh((6,), ("a",), range(1, 7))):
        with pytest.raises(LayoutError, match=r"another mesh of the same devices; got Mesh.* for "):
            on_mesh(layout, mesh)


def test_a_sub_axis_becomes_the_axis_that_it_is_elsewhere():
    parts = [SubAxis(0, 1, 2), SubAxis(0, 2, 3), SubAxis(0, 6, 2)]
    mesh, split = Mesh((12,), ("a",)), Mesh((2, 3, 2), ("x", "y", "z"))
    for order in itertools.permutations(range(3)):
        layout = Layout((12,), mesh, Spec((tuple(parts[i] for i in order),)))
        written = on_mesh(layout, split)
        assert written.spec == Spec((order,))
        assert on_mesh(written, mesh) == layout
        assert math.prod(written.shards) == 12
