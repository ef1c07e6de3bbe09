import ast

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax._src.sharding_impls import GSPMDSharding
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec, SingleDeviceSharding
from shardspec import Layout, LayoutError, Mesh, NotationError, Spec, shard
from shardspec.notation.jax import dump, from_sharding, parse, to_sharding
from shardspec.testing import layouts, meshes

jax.config.update("jax_num_cpu_devices", 8)

XYZ = Mesh((2, 2, 2), ("x", "y", "z"), (3, 1, 4, 0, 5, 2, 6, 7))


@st.composite
def jax_meshes(draw):
    """Meshes of at most eight devices, in any order, that JAX has."""
    mesh = draw(meshes(min_ndim=0, max_length=8, max_size=8))
    return Mesh(mesh.shape, mesh.axis_names, draw(st.permutations(range(8)))[: mesh.size])


@st.composite
def jax_layouts(draw, *, partial=False, even=True):
    """Layouts that a `PartitionSpec` can say."""
    layout = draw(layouts(mesh=draw(jax_meshes()), even=even, partial=partial))
    spec = Spec(layout.spec.dims, tuple(type(p)(p.axis) for p in layout.spec.partial))
    return Layout(layout.shape, layout.mesh, spec)


def concrete(slices, shape):
    return tuple(slice(*s.indices(n)[:2]) for s, n in zip(slices, shape, strict=True))


@given(jax_layouts())
def test_slices_are_those_of_jax(layout):
    sharding = to_sharding(layout)
    found = sharding.devices_indices_map(layout.shape)
    assert {device.id for device in found} == set(layout.mesh.device_ids)
    for device, slices in found.items():
        assert layout.slices(device.id) == concrete(slices, layout.shape)
        assert layout.local_shape(device.id) == sharding.shard_shape(layout.shape)


@given(jax_layouts())
def test_arrays_lie_as_their_layout_says(layout):
    whole = np.arange(np.prod(layout.shape), dtype=np.int32).reshape(layout.shape)
    expected = shard(layout, whole)
    for held in jax.device_put(whole, to_sharding(layout)).addressable_shards:
        np.testing.assert_array_equal(held.data, expected[held.device.id])


@given(jax_layouts(partial=True))
def test_a_sharding_says_the_layout_it_is_made_from(layout):
    assert from_sharding(to_sharding(layout), layout.shape) == layout


@given(jax_layouts(partial=True, even=False))
def test_text_says_the_layout_it_is_made_from(layout):
    assert parse(dump(layout), shape=layout.shape, mesh=layout.mesh) == layout


@given(jax_layouts(partial=True))
def test_text_is_what_jax_prints(layout):
    printed = repr(to_sharding(layout).spec)
    assert parse(printed, shape=layout.shape, mesh=layout.mesh) == layout
    if len(layout.spec.partial) < 2:  # a set has no order
        assert dump(layout) == printed


@given(jax_layouts(even=False))
def test_the_smallest_even_shape_is_taken_if_none_is_given(layout):
    found = parse(dump(layout), mesh=layout.mesh)
    assert (found.shape, found.spec) == (layout.shards, layout.spec)


@given(st.text(min_size=1))
def test_names_are_read_as_python_writes_them(name):
    mesh = Mesh((2,), (name,))
    layout = Layout((2,), mesh, Spec.parse("S0"))
    assert ast.literal_eval(dump(layout)[1:]) == (name,)
    assert parse(dump(layout), mesh=mesh) == layout


@pytest.mark.parametrize("spec", ["S0R+P1", "RR+P0+P2", "S2S0+P1", "RS1+P0+P2"])
def test_unreduced_axes_hold_partial_sums(spec):
    layout = Layout((4, 6), XYZ, Spec.parse(spec))
    whole = np.arange(np.prod(layout.shape), dtype=np.int32).reshape(layout.shape)
    parts = shard(layout, whole, seed=1)
    sharding = to_sharding(layout)
    held = [jax.device_put(parts[d.id], d) for d in sharding.mesh.devices.flat]
    array = jax.make_array_from_single_device_arrays(layout.shape, sharding, held)
    combined = jax.sharding.reshard(array, NamedSharding(sharding.mesh, PartitionSpec()))
    np.testing.assert_array_equal(combined, whole)


@given(st.permutations(range(8)), st.permutations(range(8)))
def test_logical_device_ids_reorder_the_mesh(ids, order):
    mesh = Mesh((2, 4), ("x", "y"), ids)
    plain = to_sharding(Layout((4, 4), mesh, Spec.parse("S0S1")))
    sharding = NamedSharding(plain.mesh, plain.spec, _logical_device_ids=tuple(order))
    layout = from_sharding(sharding, (4, 4))
    for device, slices in sharding.devices_indices_map((4, 4)).items():
        assert layout.slices(device.id) == concrete(slices, layout.shape)


def test_an_abstract_mesh_has_devices_in_order():
    sharding = NamedSharding(AbstractMesh((2, 4), ("x", "y")), PartitionSpec(None, ("y", "x")))
    expected = Layout((3, 8), Mesh((2, 4), ("x", "y")), Spec.parse("RS10"))
    assert from_sharding(sharding, (3, 8)) == expected


def test_dims_that_a_spec_leaves_out_are_replicated():
    sharding = NamedSharding(AbstractMesh((2,), ("x",)), PartitionSpec("x"))
    layout = from_sharding(sharding, (4, 4, 4))
    assert str(layout.spec) == "S0RR"
    assert parse("P('x')", shape=(4, 4, 4), mesh=layout.mesh) == layout


def test_what_moves_no_data_is_dropped():
    mesh = AbstractMesh((2, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    spec = PartitionSpec("x", reduced={"y"})
    layout = from_sharding(NamedSharding(mesh, spec, memory_kind="pinned_host"), (4,))
    assert str(layout.spec) == "S0"
    assert parse(repr(spec), shape=(4,), mesh=layout.mesh) == layout


def test_uneven_dims_are_cut_as_xla_cuts_them():
    sharding = NamedSharding(AbstractMesh((2, 2), ("x", "y")), PartitionSpec(("x", "y")))
    layout = from_sharding(sharding, (5,))
    assert [layout.local_shape(device) for device in range(4)] == [(2,), (2,), (1,), (0,)]


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("PartitionSpec('x', None, ('y',), unreduced={'z'})", "S0RS1+P2"),
        ("jax.sharding.PartitionSpec('x')", "S0"),
        ('jax.P(("z", "x"),)', "S20"),
        (" P ( ( ) , 'y' , ) ", "RS1"),
        ("P(reduced={'x'}, unreduced={'y', 'z',})", "()+P1+P2"),
        (r"P('\x78', '\u0079', '\U0000007a')", "S0S1S2"),
        ("P()", "()"),
    ],
)
def test_reads_what_programs_write(text, spec):
    assert parse(text, mesh=XYZ).spec == Spec.parse(spec)


@pytest.mark.parametrize(
    ("text", "rule", "position"),
    [
        ("", "begins with 'P", 0),
        ("Q('x')", "begins with 'P", 0),
        ("P('x'", "has ',' here; got the end", 5),
        ("P('x') + P()", "ends here", 7),
        ("P(x)", "None, the name of an axis in quotes, or several", 2),
        ("P('x', 'w')", r"axes of its mesh, \('x', 'y', 'z'\)", 7),
        ("P('x', ('y', 'x'))", "has an axis once", 13),
        ("P('x', unreduced={'x'})", "has an axis once", 18),
        ("P(unreduced={'x'}, 'y')", "has its dims before", 19),
        ("P(unreduced={'x'}, unreduced={'y'})", "has unreduced= once", 19),
        ("P(None, UNCONSTRAINED)", "which UNCONSTRAINED leaves", 8),
        ("P(P.UNCONSTRAINED)", "which UNCONSTRAINED leaves", 2),
        ("P((('x',),))", "the name of an axis in quotes", 3),
        ("P(1)", "the name of an axis in quotes", 2),
        ("P('x\ny')", "the name of an axis in quotes", 2),
        (r"P('\q')", r"the escapes that repr writes, not '\\\\q'", 2),
        (r"P('\x4')", "the escapes that repr writes", 2),
        (r"P('\U00110000')", "the escapes that repr writes", 2),
        ("P('x', 'y', None)", "at most one entry for each of 2 dims", 0),
    ],
)
def test_text_that_says_no_layout_is_refused_where_it_stands(text, rule, position):
    with pytest.raises(NotationError, match=rule) as caught:
        parse(text, shape=(2, 2), mesh=XYZ)
    assert (caught.value.text, caught.value.position) == (text, position)


def test_text_needs_a_mesh():
    with pytest.raises(NotationError, match="pass mesh="):
        parse("P('x')")


WORDS = ["P(", "PartitionSpec", "(", ")", "'x'", '"y"', "'z", ",", "None", "unreduced={", "}", "\\"]


@given(st.text() | st.lists(st.sampled_from(WORDS)).map("".join))
def test_any_text_is_a_layout_or_an_error_with_its_position(text):
    try:
        found = parse(text, mesh=XYZ)
    except NotationError as error:
        found = error
    if isinstance(found, Layout):
        assert parse(dump(found), shape=found.shape, mesh=XYZ) == found
    else:
        assert found.text == text
        assert 0 <= found.position <= len(text)


@pytest.mark.parametrize(
    "text",
    [
        "P" + "(" * 10**6,
        "P('" + "\\" * 10**6,
        "P('" + "\\'" * 10**5 + "')",
        "P(" + "None," * 2 * 10**5 + "'w')",
        "P(" + "'x'," * 10**6,
        " " * 10**6,
        "P(\0)",
        "P(" + "9" * 10**6 + ")",
    ],
    ids=["open", "backslashes", "quotes", "dims", "axes", "spaces", "nul", "digits"],
)
def test_long_and_odd_text_is_refused(text):
    with pytest.raises(NotationError):
        parse(text, mesh=XYZ)


@pytest.mark.parametrize(
    ("layout", "rule"),
    [
        (Layout((4,), XYZ, Spec.parse("S[2]0")), "strided shards cannot be expressed"),
        (Layout((4,), Mesh((4,), ("x",)), Spec.parse("S(0:(1)2)")), r"\(Mesh.split\)"),
        (Layout((4,), XYZ, Spec.parse("S0+Pmax1")), r"hold partial sums; got .*, with \['max'\]"),
        (Layout((5,), XYZ, Spec.parse("S01"), "balanced"), r"chunks of ceil\(n / k\)"),
        (Layout((5,), XYZ, Spec.parse("S01"), "padded"), r"chunks of ceil\(n / k\)"),
    ],
)
def test_a_layout_that_jax_has_no_words_for_is_refused(layout, rule):
    for write in (dump, to_sharding):
        with pytest.raises(NotationError, match=rule):
            write(layout)


def test_uneven_arrays_are_refused():
    with pytest.raises(NotationError, match=r"divide evenly; got \(5,\) as S0"):
        to_sharding(Layout((5,), XYZ, Spec.parse("S0")))


def test_devices_are_found_by_id():
    layout = Layout((2,), Mesh((2,), ("x",), (5, 1)), Spec.parse("S0"))
    assert [d.id for d in to_sharding(layout, jax.devices()[:6]).mesh.devices] == [5, 1]
    with pytest.raises(NotationError, match=r"no device for \[5\] among those with ids \[0, 1\]"):
        to_sharding(layout, jax.devices()[:2])


def sharding(shape, names, spec, **types):
    return NamedSharding(AbstractMesh(shape, names, **types), spec)


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        (sharding((2,), ("x",), PartitionSpec(PartitionSpec.UNCONSTRAINED)), "UNCONSTRAINED"),
        (
            sharding((2,), ("x",), PartitionSpec(), axis_types=(AxisType.Manual,)),
            r"the axes \['x'\] are Manual",
        ),
        (sharding((2,), ("x",), PartitionSpec(None, None)), r"one entry for each dim; .* \(4,\)"),
        (sharding((2,), (7,), PartitionSpec(7)), r"a string that is not empty; got \[7\]"),
        (NamedSharding(jax.sharding.Mesh(np.empty((), object), ()), PartitionSpec()), "empty one"),
    ],
)
def test_a_sharding_that_says_no_layout_is_refused(given, rule):
    with pytest.raises(NotationError, match=rule):
        from_sharding(given, (4,))


def test_a_negative_size_is_an_error_of_the_layout():
    with pytest.raises(LayoutError, match="sizes >= 0"):
        parse("P('x')", shape=(-1,), mesh=XYZ)


@given(jax_layouts(partial=True))
def test_shardings_without_names_say_the_same(layout):
    named = to_sharding(layout)
    hlo = named._to_xla_hlo_sharding(len(layout.shape))
    unnamed = GSPMDSharding(named._device_assignment, hlo)
    assert from_sharding(unnamed, layout.shape).is_equivalent(layout)


def test_a_single_device_holds_all():
    layout = from_sharding(SingleDeviceSharding(jax.devices()[3]), (4, 5))
    assert tuple(layout.mesh.device_ids) == (3,)
    assert layout.slices(3) == (slice(0, 4), slice(0, 5))
