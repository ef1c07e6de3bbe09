import string
from dataclasses import replace

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax._src.lib import xla_client
from jax._src.sharding_impls import GSPMDSharding
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from shardspec import Layout, Mesh, NotationError, Partial, Spec
from shardspec.notation import hlo
from shardspec.testing import layouts

jax.config.update("jax_num_cpu_devices", 8)

VERSIONS = (1, 2, 3)


def jaxlib(text):
    """What jaxlib reads; it aborts the process on some texts, so only ours may come here."""
    return xla_client.HloSharding.from_string(text)


def summed(layout):
    """The layout with partial sums for all partial results, which are all that XLA has."""
    partial = tuple(Partial(p.axis) for p in layout.spec.partial)
    return replace(layout, spec=Spec(layout.spec.dims, partial))


@st.composite
def meshes_of_8(draw, any_order=True):
    shape = draw(
        st.sampled_from([(8,), (2, 4), (4, 2), (2, 2, 2), (1, 8), (2, 1, 4), (2, 2, 2, 1)])
    )
    orders = [st.just(range(8)), *([st.permutations(range(8))] if any_order else [])]
    ids = draw(st.one_of(*orders))
    return Mesh(shape, tuple("abcd"[: len(shape)]), ids)


def on_8(**options):
    return meshes_of_8().flatmap(lambda mesh: layouts(mesh=mesh, **options)).map(summed)


def placement(sharding, shape):
    """By device its slices, and the devices that hold the same partial sums, as jaxlib says it."""
    if sharding.is_replicated() or sharding.is_unreduced():
        everything = tuple(slice(0, n) for n in shape)
        alike = [{i} for i in range(8)] if sharding.is_unreduced() else [set(range(8))] * 8
        return {i: (everything, alike[i]) for i in range(8)}
    tiles = sharding.tile_assignment_dimensions()
    ids = np.array(sharding.tile_assignment_devices()).reshape(tiles)
    kinds = [kind.name for kind in sharding.subgroup_types()]
    if sharding.replicate_on_last_tile_dim():
        kinds = ["REPLICATED"]
    assert len(tiles) == len(shape) + len(kinds)
    replicated = [len(shape) + i for i, kind in enumerate(kinds) if kind == "REPLICATED"]
    found = {}
    for place, device in np.ndenumerate(ids):
        cut = zip(shape, tiles, place, strict=False)
        chunks = [(n, -(-n // count), i) for n, count, i in cut]
        held = tuple(slice(min(c * i, n), min(c * (i + 1), n)) for n, c, i in chunks)
        line = ids[tuple(slice(None) if d in replicated else i for d, i in enumerate(place))]
        found[int(device)] = (held, set(line.ravel().tolist()))
    return found


def our_placement(layout):
    alike = {device: set(group) for group in layout.replica_groups() for device in group}
    return {device: (layout.slices(device), alike[device]) for device in layout.mesh.device_ids}


@pytest.mark.parametrize("version", VERSIONS)
@given(on_8(sub_axes=True))
def test_jaxlib_reads_the_same_placement(version, layout):
    sharding = jaxlib(hlo.dump(layout, version))
    if version == 3:
        sharding = sharding.v3_to_v2_sharding()
    assert placement(sharding, layout.shape) == our_placement(layout)


@pytest.mark.parametrize("version", VERSIONS)
@given(on_8(sub_axes=True, even=True, partial=False))
def test_jax_gives_every_device_the_same_slices(version, layout):
    sharding = GSPMDSharding(tuple(jax.devices()), jaxlib(hlo.dump(layout, version)))
    for device, slices in sharding.devices_indices_map(layout.shape).items():
        assert tuple(
            slice(*s.indices(n)[:2]) for s, n in zip(slices, layout.shape, strict=True)
        ) == (layout.slices(device.id))


@pytest.mark.parametrize("version", VERSIONS)
@given(on_8(sub_axes=True).filter(lambda layout: layout.spec.ndim))
def test_jaxlib_prints_what_it_read(version, layout):
    text = hlo.dump(layout, version)
    assert str(jaxlib(text)) == text


@st.composite
def named_shardings(draw):
    """A `NamedSharding`, the rank it is for, and our layout of the same."""
    mesh = draw(meshes_of_8(any_order=False))
    layout = summed(draw(layouts(mesh=mesh, even=True)))
    axes = [tuple(mesh.axis_names[axis] for axis in of_dim) for of_dim in layout.spec.plain_dims]
    unreduced = {mesh.axis_names[axis] for axis in layout.spec.partial_axes}
    devices = np.array(jax.devices()).reshape(mesh.shape)
    types = (AxisType.Explicit,) * mesh.ndim
    on = jax.sharding.Mesh(devices, mesh.axis_names, axis_types=types)
    return NamedSharding(on, PartitionSpec(*axes, unreduced=unreduced)), layout


@given(named_shardings())
def test_version_2_is_what_jax_prints(pair):
    sharding, layout = pair
    text = str(sharding._to_xla_hlo_sharding(layout.spec.ndim))
    assert hlo.dump(layout) == text
    assert hlo.parse(text, shape=layout.shape, mesh=layout.mesh).is_equivalent(layout)


@given(layouts(sub_axes=True).map(summed), st.sampled_from([1, 2]))
def test_round_trip_without_mesh(layout, version):
    text = hlo.dump(layout, version)
    back = hlo.parse(text, shape=layout.shape, mesh=layout.mesh)
    assert back.is_equivalent(layout)
    if "devices" in text or "maximal" in text:
        own = hlo.parse(text, shape=layout.shape)
        assert own.is_equivalent(layout)
        assert hlo.dump(own, version) == text
        assert own == hlo.parse(hlo.dump(layout, 3 - version), shape=layout.shape)


@given(on_8(sub_axes=True))
def test_round_trip_with_named_mesh(layout):
    assert hlo.parse(hlo.dump(layout, 3), shape=layout.shape) == layout


@given(on_8(sub_axes=True), meshes_of_8())
def test_a_given_mesh_is_the_one_of_the_layout_or_cannot_say_it(layout, mesh):
    try:
        found = hlo.parse(hlo.dump(layout, 3), shape=layout.shape, mesh=mesh)
    except NotationError as error:
        found = None
        reason = str(error)
    if found is None:
        assert "the mesh has no parts of axes" in reason
        return
    assert found.mesh == mesh
    assert found.is_equivalent(layout)


@given(st.text(string.printable, min_size=1), st.text(min_size=1))
def test_names_of_axes_may_have_any_characters(first, second):
    names = (first, second) if first != second else (first, second + "'")
    layout = Layout((4,), Mesh((2, 2), names), Spec.parse("S10"))
    assert hlo.parse(hlo.dump(layout, 3)) == layout


@pytest.mark.parametrize(
    ("text", "mesh", "spec"),
    [
        ("{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}", Mesh((2, 2), tuple("ab")), "S0R"),
        ("{devices=[4,2]<=[2,4]T(1,0)}", Mesh((2, 4), tuple("ab")), "S1S0"),
        (
            "{devices=[2,2,2]<=[8]last_tile_dims={unreduced}}",
            Mesh((2, 2, 2), tuple("abc")),
            "S0S1+P2",
        ),
        ("{devices=[2,2]<=[2,2]T(0,1)}", Mesh((2, 2), tuple("ab")), "S0S1"),
        ("{devices=[2]9,4}", Mesh((2,), tuple("a"), (9, 4)), "S0"),
        ("{devices=[2,2]4,6,5,7}", Mesh((2, 2), tuple("ab"), range(4, 8)), "S1S0"),
        ("{devices=[3,2]<=[3,2]T(1,0)}", Mesh((3, 2), tuple("ab"), (0, 2, 4, 1, 3, 5)), "S0S1"),
        (
            "{devices=[2,1,2]<=[4] last_tile_dims={manual, replicated}}",
            Mesh((2, 2), tuple("ab")),
            "S0",
        ),
        ("{devices=[1,1]7}", Mesh((), (), (7,)), "RR"),
        ("{maximal device=3}", Mesh((), (), (3,)), "()"),
        ("{maximal_mesh[device_id=3], metadata={}}", Mesh((), (), (3,)), "()"),
        ("{mesh['x'=2,'y'=4], [{'y':(2)2, 'x'}, {}]}", Mesh((2, 4), tuple("xy")), "S(1:(2)2)(0)R"),
        ("{mesh[x=2,y=4], [{x}], replicated={y}}", Mesh((2, 4), tuple("xy")), "S0"),
        ('{ mesh [ "x" = 2 ] , [ { "x" } ] }', Mesh((2,), tuple("x")), "S0"),
        (
            "{mesh['x'=2,'y'=2], device_ids=(3,1,2,0), []}",
            Mesh((2, 2), tuple("xy"), (3, 1, 2, 0)),
            "()",
        ),
        (
            "{mesh['x'=2,'y'=2], device_ids=([2,2]T(1,0)), replicated}",
            Mesh((2, 2), tuple("xy"), (0, 2, 1, 3)),
            "()",
        ),
        (
            "{mesh['x'=2,'y'=1], unreduced, metadata={op_name=\"a\"}}",
            Mesh((2, 1), tuple("xy")),
            "()+P0",
        ),
        ('{devices=[2]<=[2] shard_as 4 metadata={op_name="}\\""}}', Mesh((2,), tuple("a")), "S0"),
        (
            '{devices=[2]<=[2] metadata={{a="{"}, {b={1}}} shard_like 0}',
            Mesh((2,), tuple("a")),
            "S0",
        ),
        ("/*x*/{devices=[2]<=/**/[2]}\n", Mesh((2,), tuple("a")), "S0"),
    ],
)
def test_reads_what_xla_prints(text, mesh, spec):
    layout = hlo.parse(text)
    assert (layout.mesh, str(layout.spec)) == (mesh, spec)
    assert layout.shape == layout.shards


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("{replicated}", "RR"),
        ("{unreduced}", "RR+P1"),
        ("{mesh[], replicated}", "RR"),
        ("{mesh[], [{}, {}]}", "RR"),
    ],
)
def test_reads_the_mesh_that_is_given(text, spec):
    mesh = Mesh((1, 4), ("x", "y"), (5, 3, 8, 1))
    assert hlo.parse(text, shape=(3, 5), mesh=mesh) == Layout((3, 5), mesh, Spec.parse(spec))
    with pytest.raises(NotationError, match="names no devices is read with mesh=") as caught:
        hlo.parse(text)
    assert (caught.value.text, caught.value.position) == (text, 0)


def test_version_1_lists_the_devices_and_so_does_version_2_without_iota():
    layout = Layout((4,), Mesh((2, 2), ("x", "y")), Spec.parse("S1"))
    assert hlo.dump(layout, 1) == "{devices=[2,2]0,2,1,3 last_tile_dim_replicate}"
    assert hlo.dump(layout, 2) == "{devices=[2,2]<=[2,2]T(1,0) last_tile_dim_replicate}"
    layout = replace(layout, mesh=Mesh((2, 2), ("x", "y"), (0, 2, 3, 1)))
    assert hlo.dump(layout, 2) == "{devices=[2,2]0,3,1,2 last_tile_dim_replicate}"
    assert hlo.dump(layout, 3) == "{mesh['x'=2,'y'=2], device_ids=(0,2,3,1), [{'y'}]}"


def test_a_tuple_has_a_layout_for_each_sharding():
    mesh = Mesh((2,), ("a",))
    text = "{{replicated}, /*index=5*/{devices=[2]<=[2]}, {mesh['a'=2], [{}, {'a'}]}}"
    shapes = [(3,), (4,), (1, 2)]
    expected = tuple(map(Layout, shapes, [mesh] * 3, map(Spec.parse, ["R", "S0", "RS0"])))
    assert hlo.parse_all(text, shapes=shapes, mesh=mesh) == expected
    assert hlo.parse_all("{devices=[2]<=[2]}", shapes=[(4,)]) == (expected[1],)
    assert hlo.parse_all("{}") == ()
    with pytest.raises(NotationError, match="got 2 shapes for 3"):
        hlo.parse_all(text, shapes=shapes[:2], mesh=mesh)
    with pytest.raises(NotationError, match="a tuple of 3 shardings; parse_all gives a layout"):
        hlo.parse(text, mesh=mesh)


@pytest.mark.parametrize(
    ("text", "reason", "position"),
    [
        ("", r"has '{' here; got the end at position 0", 0),
        ("{replicated", r"has a name here; got the end", 11),
        ("{replicated} x", "ends here; got 'x'", 13),
        ("{nothing}", "is replicated, maximal or unreduced, or has devices or a mesh", 1),
        ("{manual}", "'manual' does not say where a tensor lies", 1),
        ("{unknown}", "'unknown' does not say where a tensor lies", 1),
        ("{replicated devices=[2]0,1}", "only metadata, shard_as and shard_like may follow", 12),
        ("{maximal}", "has 'device' here", 8),
        ("{devices=[2,2]0,1,2}", "a device for each of 4 places, this has 3", 14),
        ("{devices=[2]0,1,2}", "at most 2 integers here", 16),
        ("{devices=[2]0,0}", "2 distinct device ids", 9),
        ("{devices=[0]0}", "has 1 to 262144 devices, this has 0", 9),
        ("{devices=[999999,9]<=[9]}", "1 to 262144 devices, this has 8999991", 9),
        ("{devices=[1234567890123456789]<=[9]}", "integers of at most 18 digits", 10),
        ("{devices=[٢]0,1}", "has an integer here", 10),
        ("{devices=[2]-1,1}", "has an integer here", 12),
        ("{devices=[" + "1," * 32 + "1]0}", "at most 32 integers", 74),
        ("{devices=[2,2]<=[5]}", r"fill 4 places, and T\(...\) has each dim once", 16),
        ("{devices=[2,2]<=[2,2]}", "has 'T' here", 21),
        ("{devices=[2,2]<=[2,2]T(1,1)}", "has each dim once", 16),
        ("{devices=[2,2]<=[2,2]T(1)}", "has each dim once", 16),
        ("{devices=[2]<=[2] last_tile_dims={manual}}", "'manual' devices do not say", 33),
        ("{devices=[2]<=[2] last_tile_dims={odd}}", r"one of .*; there is 'odd'", 33),
        (
            "{devices=[2]<=[2] last_tile_dims={replicated,unreduced}}",
            "is one of the 1 dims; there are 2",
            33,
        ),
        ("{replicated metadata={{}", "metadata ends with its closing brace", 21),
        ("{{{replicated}}}", "has a name here", 2),
        ("{maximal_mesh[device=3]}", "has 'device_id' here", 14),
        ("{mesh['x'=2]}", "has ',' here", 12),
        ("{mesh['x'=2,'x'=2], []}", "axis names are distinct", 5),
        ("{mesh['x'=0], []}", "1 to 262144 devices, this has 0", 5),
        ("{mesh['x=2], []}", "has a name in quotes here", 6),
        ("{mesh['x'=2], device_ids=(0), []}", "each of 2 places, this has 1", 26),
        ("{mesh['x'=2], manual}", "'manual' does not say where", 13),
        ("{mesh['x'=2], other}", "dims in brackets, or replicated or unreduced", 13),
        ("{mesh['x'=2], [{'y'}]}", "one of the mesh's", 16),
        ("{mesh['x'=4], [{'x':(1)3}]}", "divide its axis", 16),
        ("{mesh['x'=4], [{'x':(0)2}]}", "a pre-size >= 1", 16),
        ("{mesh['x'=2], [{'x'}, {'x'}]}", "used at most once", 13),
        ("{mesh['x'=4], [{'x':(1)2}], unreduced={'x'}}", "used at most once", 13),
        ("{mesh['x'=2], [{'x', ?}]}", "an open dim does not say", 21),
        ("{mesh['x'=2], [{}], manual={'x'}}", "manual axes do not say", 19),
        ("{mesh['x'=2], [{}], other={'x'}}", "each once at most, and metadata", 19),
        ("{mesh['x'=2], [" + "{}," * 32 + "{}]}", "at most 32 dims", 111),
        ("{mesh[" + "x=1," * 33 + "x=1], []}", "at most 32 axes", 134),
    ],
)
def test_says_what_is_wrong_and_where(text, reason, position):
    with pytest.raises(NotationError, match=reason) as caught:
        hlo.parse(text, mesh=Mesh((2,), ("x",)))
    assert (caught.value.text, caught.value.position) == (text, position)


def test_rejects_a_shape_or_mesh_that_does_not_fit():
    with pytest.raises(NotationError, match=r"one entry for each dim; got .* \(1 dims\) for shape"):
        hlo.parse("{devices=[2]<=[2]}", shape=(2, 2))
    with pytest.raises(NotationError, match="another mesh of the same devices"):
        hlo.parse("{devices=[2]<=[2]}", mesh=Mesh((3,), ("x",)))


def test_says_what_cannot_be_said():
    mesh = Mesh((2, 2), ("x", "y"))
    for spec, rule in [
        ("S[2]0", "no strided shards; got"),
        ("R+Pmax0", "no other partial results"),
    ]:
        with pytest.raises(NotationError, match=rule):
            hlo.dump(Layout((4,), mesh, Spec.parse(spec)))
    with pytest.raises(NotationError, match="cuts all dims by the rule 'ceil'"):
        hlo.dump(Layout((6,), mesh, Spec.parse("S01"), "balanced"))
    with pytest.raises(NotationError, match="version 1, 2 or 3; got 4"):
        hlo.dump(Layout((4,), mesh, Spec.parse("S0")), 4)
    with pytest.raises(
        NotationError, match=r"from 0 without gaps, in any order; got .*use version 2"
    ):
        hlo.dump(Layout((4,), Mesh((2,), ("x",), (1, 2)), Spec.parse("S0")), 3)


GOOD = [
    "{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}",
    "{devices=[2,2,2]<=[2,4]T(1,0) last_tile_dims={unreduced, replicated} shard_as 1}",
    "{mesh['x'=2,'y'=4], device_ids=([4,2]T(1,0)), [{'x'}, {'y':(2)2}], unreduced={'y':(1)2}}",
    '{{maximal device=3}, {replicated metadata={op_name="a"}}, {maximal_mesh[device_id=3]}}',
]
PIECES = sorted(
    {piece for text in GOOD for piece in text.replace("'", " ").split()}
    | set("{}[](),=<T?:'\"\\0123456789/*-\0é٣")
    | {"mesh[", "manual", "unknown", "99999999999999999999", "<=[", "device_ids=("}
)


@st.composite
def mutated(draw):
    text = draw(st.sampled_from(GOOD))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        stop = min(len(text), start + draw(st.integers(0, 6)))
        text = text[:start] + draw(st.sampled_from(["", *PIECES])) + text[stop:]
    return text


def check_total(read, text, mesh):
    """What is read: layouts, or an error that says where."""
    try:
        found = read(text, mesh=mesh)
    except NotationError as error:
        found = error
    if isinstance(found, NotationError):
        assert found.text == text
        assert 0 <= found.position <= len(text)
    return found


@given(st.one_of(st.text(), mutated(), st.lists(st.sampled_from(PIECES)).map("".join)))
def test_any_text_is_a_layout_or_an_error_that_says_where(text):
    for mesh in (None, Mesh((2, 4), ("x", "y"))):
        check_total(hlo.parse, text, mesh)
        check_total(hlo.parse_all, text, mesh)


LONG = {
    "nested": "{" * 1_000_000,
    "list": "{devices=[100000]" + "1," * 100_000,
    "iota": "{" + ",".join(["{devices=[512,512]<=[32,16,16,32]T(3,1,2,0)}"] * 500),
    "no digits": "{" + ",".join(["{devices=[3,65536]<=[65536,3]T(1,0)}"] * 500),
    "device ids": "{" + ",".join(["{mesh['x'=262144],device_ids=([2,131072]T(1,0)),[]}"] * 500),
    "quotes": "{mesh[" + "'x" * 500_000,
    "braces": "{replicated metadata=" + "{" * 1_000_000,
    "escapes": "{replicated metadata={" + '"\\' * 500_000,
    "comments": "{" + "/*" * 500_000,
    "tuple": "{" + "{unreduced}," * 50_000,
    "dims": "{mesh['x'=2], [" + "{'x':(1)2}," * 90_000,
    "digits": "{devices=[" + "1" * 1_000_000,
}


@pytest.mark.parametrize("name", LONG)
def test_any_long_text_is_an_error_that_says_where(name):
    assert isinstance(check_total(hlo.parse_all, LONG[name], None), NotationError)
