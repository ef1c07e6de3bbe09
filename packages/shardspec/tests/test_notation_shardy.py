import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax._src import compiler
from jax._src.interpreters.mlir import make_ir_context
from jax._src.lib import xla_client
from jax._src.op_shardings import op_sharding_to_indices
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxlib.mlir import ir
from shardspec import Layout, LayoutError, Mesh, NotationError, Partial, Spec, SubAxis, on_mesh
from shardspec.notation.shardy import dump, dump_mesh, parse, parse_mesh
from shardspec.testing import EVERY_RULE, layouts, meshes

jax.config.update("jax_num_cpu_devices", 8)
MLIR = make_ir_context()
XY = Mesh((2, 4), ("x", "y"))
EIGHT = Mesh((8,), ("x",))


def renumbered(mesh, names=None):
    """The mesh with the devices 0, 1, ... in the same order."""
    rank = {device: i for i, device in enumerate(sorted(mesh.device_ids))}
    return Mesh(mesh.shape, names or mesh.axis_names, [rank[d] for d in mesh.device_ids])


def summed(layout, mesh):
    """The layout on another mesh of its shape, with sums for all partial results."""
    partial = tuple(Partial(p.axis) for p in layout.spec.partial)
    return Layout(layout.shape, mesh, Spec(layout.spec.dims, partial))


@st.composite
def sayable(draw, **bounds):
    """Layouts that Shardy can say."""
    layout = draw(layouts(sub_axes=True, **bounds))
    return summed(layout, renumbered(layout.mesh))


@st.composite
def on_eight_devices(draw, **bounds):
    """Layouts that Shardy can say, on the eight devices that JAX has here, with equal shards."""
    shape = draw(st.sampled_from([(8,), (2, 4), (4, 2), (2, 2, 2), (1, 8)]))
    mesh = Mesh(shape, tuple("abc"[: len(shape)]), draw(st.permutations(range(8))))
    return summed(draw(layouts(even=True, mesh=mesh, **bounds)), mesh)


def program(layout, attribute):
    """A module that takes a tensor with this sharding, as text; MLIR verifies it when reading."""
    tensor = f"tensor<{''.join(f'{n}x' for n in layout.shape)}f32>"
    return (
        f"module attributes {{mhlo.num_partitions = {layout.mesh.size} : i32}} {{\n"
        f"{dump_mesh(layout.mesh)}\n"
        f"func.func public @main(%a: {tensor} {{sdy.sharding = {attribute}}}) -> {tensor} "
        f"{{ return %a : {tensor} }} }}"
    )


def is_verified(text):
    with MLIR, ir.Location.unknown():
        try:
            return ir.Module.parse(text).operation.verify()
        except ir.MLIRError:
            return False


@given(sayable())
def test_what_is_dumped_is_what_mlir_prints(layout):
    with MLIR:
        assert str(ir.Attribute.parse(dump(layout))) == dump(layout)


@given(sayable())
def test_mlir_verifies_what_is_dumped(layout):
    assert is_verified(program(layout, dump(layout)))
    assert is_verified(program(layout, dump(layout, mesh_name="mesh")))


@given(sayable())
def test_layouts_come_back(layout):
    found = parse(dump(layout), shape=layout.shape)
    assert found.is_equivalent(layout)
    assert found == layout or layout.mesh.size == 1


@given(sayable())
def test_layouts_come_back_from_the_name_of_their_mesh(layout):
    text = dump(layout, mesh_name="my mesh")
    assert text.startswith('#sdy.sharding<@"my mesh", [')
    assert parse(text, shape=layout.shape, mesh=layout.mesh) == layout


@given(layouts(sub_axes=True, strided=True, mixed_kinds=True, chunking=EVERY_RULE))
def test_every_layout_comes_back_or_is_refused(layout):
    try:
        text = dump(layout)
    except NotationError:
        return
    assert parse(text, shape=layout.shape).is_equivalent(layout)


@given(on_eight_devices(partial=False, sub_axes=True))
def test_xla_places_parts_of_axes_alike(layout):
    options = compiler.get_compile_options(1, 8, np.arange(8).reshape(1, 8))
    options.executable_build_options.use_shardy_partitioner = True
    options.executable_build_options.use_spmd_partitioning = True
    devices = xla_client.DeviceList(tuple(jax.devices()[:8]))
    with MLIR, ir.Location.unknown():
        module = ir.Module.parse(program(layout, dump(layout)))
        compiled = devices[0].client.compile_and_load(module, devices, options)
    (sharding,) = compiled.get_parameter_shardings()
    hlo = xla_client.HloSharding.from_proto(sharding)
    for device, slices in enumerate(op_sharding_to_indices(hlo, layout.shape, 8)):
        expected = [slice(*s.indices(n)[:2]) for s, n in zip(slices, layout.shape, strict=True)]
        assert list(layout.slices(device)) == expected


def named_sharding(layout, logical_device_ids=None):
    """The same as a NamedSharding; jit passes the device order on to Shardy as logical ids."""
    mesh = layout.mesh
    kind = (AxisType.Explicit,) * mesh.ndim
    grid = np.array(jax.devices())[mesh.grid]
    names = [tuple(mesh.axis_names[a] for a in axes) for axes in layout.spec.plain_dims]
    unreduced = {mesh.axis_names[a] for a in layout.spec.partial_axes}
    return NamedSharding(
        jax.sharding.Mesh(grid, mesh.axis_names, axis_types=kind),
        PartitionSpec(*names, unreduced=unreduced),
        _logical_device_ids=logical_device_ids,
    )


def jax_attribute(layout):
    """What JAX hands to MLIR."""
    ids = layout.mesh.device_ids
    sharding = named_sharding(layout, None if ids == range(8) else tuple(ids))
    with MLIR:
        return str(sharding._to_sdy_sharding(layout.spec.ndim).build({}))


@given(on_eight_devices())
def test_jax_writes_the_same_attribute(layout):
    assert dump(layout) == jax_attribute(layout)
    assert parse(jax_attribute(layout), shape=layout.shape) == layout


@given(on_eight_devices(partial=False))
def test_what_jax_writes_is_placed_as_jax_does(layout):
    found = parse(jax_attribute(layout), shape=layout.shape)
    for device, slices in named_sharding(layout).devices_indices_map(layout.shape).items():
        expected = [slice(*s.indices(n)[:2]) for s, n in zip(slices, layout.shape, strict=True)]
        assert list(found.slices(device.id)) == expected


def test_a_program_that_jax_lowers_is_read():
    devices = np.array(jax.devices()[:8]).reshape(4, 2)
    mesh = jax.sharding.Mesh(devices, ("data", "model"))
    argument = jax.ShapeDtypeStruct((16, 6), jnp.float32)
    sharding = NamedSharding(mesh, PartitionSpec(("model", "data"), None))
    text = jax.jit(lambda x: x, in_shardings=sharding).lower(argument).as_text()
    definition = re.search(r"sdy\.mesh @mesh = <.*>", text)[0]
    attribute = re.search(r"#sdy\.sharding<@mesh, [^>]*>", text)[0]
    layout = parse(attribute, shape=(16, 6), mesh=parse_mesh(definition))
    assert layout == Layout((16, 6), Mesh((4, 2), ("data", "model")), Spec.parse("S10R"))


X_PARTS = [[""], [":(1)2", ":(2)4"], [":(1)2", ":(2)2", ":(4)2"], [":(1)4", ":(4)2"]]


@st.composite
def closed_shardings(draw):
    """Dims as lists of axes, replicated and unreduced axes; MLIR verifies nearly all of them."""
    refs = [f'"x"{part}' for part in draw(st.sampled_from(X_PARTS))]
    refs += ['"y":(1)2', '"y":(2)2', '"z"']
    places = [[] for _ in range(draw(st.integers(2, 5)))]
    for ref in draw(st.permutations(refs)):
        draw(st.sampled_from([*places, []])).append(ref)
    replicated, unreduced, *dims = places
    return dims, sorted(replicated), sorted(unreduced)


@given(closed_shardings(), st.data())
def test_closed_shardings_that_mlir_verifies_are_read(sharding, data):
    dims, replicated, unreduced = sharding
    priorities = [data.draw(st.sampled_from(["", "p0", "p17"] if dim else [""])) for dim in dims]
    texts = [f"{{{', '.join(dim)}}}" for dim in dims]
    with_priorities = map("".join, zip(texts, priorities, strict=True))
    tail = f", unreduced={{{', '.join(unreduced)}}}" if unreduced else ""
    more = f", replicated={{{', '.join(replicated)}}}" if replicated else ""
    text = f"#sdy.sharding<@mesh, [{', '.join(with_priorities)}]{more}{tail}>"
    mesh = Mesh((8, 4, 1), ("x", "y", "z"))
    layout = Layout((8,) * len(dims), mesh, Spec.replicated(len(dims)))
    if is_verified(program(layout, text)):
        found = parse(text, shape=layout.shape, mesh=mesh)
        assert dump(found, mesh_name="mesh") == f"#sdy.sharding<@mesh, [{', '.join(texts)}]{tail}>"


def test_axes_that_leave_no_grid_are_refused_though_mlir_verifies_them():
    layout = Layout((8, 8), Mesh((12,), ("x",)), Spec.replicated(2))
    text = '#sdy.sharding<@mesh, [{"x":(1)2}, {"x":(3)4}]>'
    assert is_verified(program(layout, text))
    with pytest.raises(NotationError, match="a sharding uses an axis once"):
        parse(text, mesh=layout.mesh)


@given(st.text(min_size=1), st.text(min_size=1))
def test_any_text_names_an_axis_and_a_mesh(axis, name):
    mesh = Mesh((2,), (axis,))
    layout = Layout((2,), mesh, Spec.parse("S0"))
    assert parse(dump(layout)) == layout
    assert parse(dump(layout, mesh_name=name), mesh=mesh) == layout
    assert parse_mesh(dump_mesh(mesh, name=name)) == mesh


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_mlir_reads_and_prints_names_alike(name):
    text = dump(Layout((2,), Mesh((2,), (name,)), Spec.parse("S0")), mesh_name="@" + name)
    with MLIR:
        assert str(ir.Attribute.parse(text)) == text


@given(meshes(min_ndim=0))
def test_meshes_come_back(mesh):
    mesh = renumbered(mesh) if mesh.size > 1 else mesh
    text = dump_mesh(mesh)
    assert parse_mesh(text).device_ids == mesh.device_ids
    assert parse_mesh(text) == mesh or mesh.size == 1
    with MLIR, ir.Location.unknown():
        assert text in str(ir.Module.parse(text))


@pytest.mark.parametrize(
    "text",
    [
        'sdy.mesh @mesh = <["x"=2, "y"=4]>',
        'sdy.mesh @"a \\"mesh\\"" = <["x"=2, "y"=4], device_ids=[0, 1, 2, 3, 4, 5, 6, 7]>',
        '#sdy.mesh<["x"=2, "y"=4]>',
        'mesh<["x"=2,"y"=4]>',
        ' < [ "\\78" = 2 , "y" = 4 ] > ',
        # What jax 0.10.2 prints:
        'sdy.mesh @mesh = <["x"=2, "y"=4]> {stablehlo.mesh = '
        '{axes = [{name = "x", size = 2 : i64}, {name = "y", size = 4 : i64}]}}',
    ],
)
def test_all_spellings_of_a_mesh_read_alike(text):
    assert parse_mesh(text) == XY


@pytest.mark.parametrize(
    "text",
    [
        '#sdy.sharding<@mesh, [{"y"}, {"x"}]>',
        '<@mesh, [{"y"}, {"x"}]>',
        '<@"mesh", [{"y"}p0, {"x"}p3], replicated={}>',
        '<mesh<["x"=2, "y"=4]>, [{"y"}, {"x"}]>',
        '<mesh<[]>, [{"y"}, {"x"}]>',
        ' < @mesh ,\n [ { "y":(1)4 } , { "x" } ] > ',
    ],
)
def test_all_spellings_of_a_sharding_read_alike(text):
    assert parse(text, shape=(8, 2), mesh=XY) == Layout((8, 2), XY, Spec.parse("S1S0"))


def test_priorities_and_replicated_axes_say_nothing_of_the_placement():
    text = '<@mesh, [{"y":(2)2}p1, {}], unreduced={"x"}, replicated={"y":(1)2}>'
    layout = parse(text, shape=(4, 4), mesh=XY)
    assert layout == Layout((4, 4), XY, Spec(((SubAxis(1, 2, 2),), ()), (Partial(0),)))


@pytest.mark.parametrize("dim", ["{?}", '{"x", ?}', "{?}p1"])
def test_open_dims_are_refused_because_the_compiler_may_shard_them_further(dim):
    with pytest.raises(NotationError, match="a dim that is open may be sharded further") as caught:
        parse(f"<@mesh, [{dim}]>", mesh=XY)
    assert caught.value.text[caught.value.position :].startswith("?")


def test_jax_leaves_unconstrained_dims_open():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("x", "y"))
    sharding = NamedSharding(mesh, PartitionSpec(PartitionSpec.UNCONSTRAINED, "x"))
    with MLIR:
        text = str(sharding._to_sdy_sharding(2).build({}))
    with pytest.raises(NotationError, match="a dim that is open"):
        parse(text)


def test_a_maximal_sharding_has_all_of_the_tensor_on_one_device():
    layout = parse("#sdy.sharding<mesh<[], device_ids=[3]>, []>", shape=(4, 4))
    assert layout == Layout((4, 4), Mesh((), (), (3,)), Spec.replicated(2))
    assert dump(layout) == "#sdy.sharding<mesh<[], device_ids=[3]>, []>"
    assert is_verified(program(layout, dump(layout)))


def test_an_empty_mesh_stands_for_the_given_one():
    assert parse("<mesh<[]>, [{}]>", mesh=XY) == Layout((1,), XY, Spec.replicated(1))
    with pytest.raises(NotationError, match="an empty mesh stands for any mesh"):
        parse_mesh("sdy.mesh @empty_mesh = <[]>")


@given(sayable(), st.data())
def test_a_sharding_with_its_mesh_is_rewritten_for_another(layout, data):
    ids = data.draw(st.permutations(range(layout.mesh.size)))
    other = Mesh((layout.mesh.size,), ("all",), ids)
    try:
        expected = on_mesh(layout, other)
    except LayoutError:
        expected = None
    try:
        found = parse(dump(layout), shape=layout.shape, mesh=other)
    except NotationError:
        found = None
    assert found == expected


def test_a_sharding_is_rewritten_for_a_mesh_of_parts():
    text = '<mesh<["x"=8]>, [{"x":(4)2}, {"x":(1)4}]>'
    mesh = Mesh((2, 2, 2), ("a", "b", "c"))
    assert parse(text, shape=(2, 4), mesh=mesh) == Layout((2, 4), mesh, Spec.parse("S2S01"))


TOKENS = ["#sdy.sharding", "<", ">", "@mesh", "mesh", "sdy.mesh", "=", "[", "]", "{", "}", ",", "?"]
TOKENS += ['"x"', '"y"', '"x":(1)2', '"x":(2)4', ":", "(1)", "2", "p1", "replicated", "unreduced"]
TOKENS += ['"x"=2', "device_ids", "0, 1", '"', "\\", " ", "\0", "٣", "9" * 19]
VALID = [
    '#sdy.sharding<@mesh, [{"x"}, {"y":(1)2}p1], replicated={"y":(2)2}>',
    '<mesh<["x"=2, "y"=4], device_ids=[7, 6, 5, 4, 3, 2, 1, 0]>, [{"y", "x"}], unreduced={"x"}>',
    "<mesh<[], device_ids=[3]>, []>",
    'sdy.mesh @mesh = <["x"=2, "y"=1], device_ids=[1, 0]>',
]


@st.composite
def mutated(draw):
    """A valid text with a part of it replaced by a token."""
    text = draw(st.sampled_from(VALID))
    start = draw(st.integers(0, len(text)))
    stop = draw(st.integers(start, min(start + 8, len(text))))
    return text[:start] + draw(st.sampled_from(["", *TOKENS])) + text[stop:]


ANY_TEXT = st.text() | st.lists(st.sampled_from(TOKENS), max_size=20).map("".join) | mutated()


def attempt(read, text, **arguments):
    """What is read, or the error, which must say where it is."""
    try:
        return read(text, **arguments)
    except NotationError as error:
        found = error
    assert found.text == text
    assert 0 <= found.position <= len(text)
    return found


@settings(max_examples=300)
@given(ANY_TEXT, st.sampled_from([None, XY, EIGHT, Mesh((), ())]))
def test_any_text_is_a_layout_or_an_error_that_says_where(text, mesh):
    assert isinstance(attempt(parse, text, mesh=mesh), Layout | NotationError)


@given(ANY_TEXT)
def test_any_text_is_a_mesh_or_an_error_that_says_where(text):
    assert isinstance(attempt(parse_mesh, text), Mesh | NotationError)


@pytest.mark.parametrize(
    "unit", ["<", "<@m, [", "{},", '"', "\\", "\0", "<mesh<", '"x"=2, ', "@" + "m" * 100, "[[", "²"]
)
def test_a_million_characters_are_refused(unit):
    for start in ("", "<@m, [", '<@m, [{"', "<mesh<[", '<mesh<["x"=2], device_ids=['):
        with pytest.raises(NotationError):
            parse(start + unit * (10**6 // len(unit)), mesh=XY)


def test_a_mesh_of_countless_devices_is_read():
    text = '<mesh<["x"=900000000000000000]>, [{"x":(3)1000}]>'
    assert parse(text, shape=(5000,)).slices(7) == (slice(0, 5),)
    with pytest.raises(NotationError, match="devices"):
        parse('<mesh<["x"=900000000000000000, "y"=11]>, [{"x"}]>')


@pytest.mark.parametrize(
    ("text", "position", "message"),
    [
        ("", 0, "a Shardy sharding has '<' here; got the end at position 0"),
        ("<mash, []>", 1, "a Shardy sharding has 'mesh' here; got 'mash, \\[\\]>' at position 1"),
        ('<@m, [{"q"}]>', 7, "a sharding uses axes of its mesh; got '\"q\"}\\]>' at position 7"),
        ('<@m, [{"y":(1)3}]>', 7, "the pre-size and size of a sub-axis divide its axis"),
        ('<@m, [{"y":(0)2}]>', 7, "a sub-axis has an axis index >= 0, a pre-size >= 1"),
        ('<@m, [{"x"}, {"x"}]>', 0, "a sharding uses an axis once"),
        ('<@m, [{"x"}], replicated={"x"}>', 0, "a sharding uses an axis once"),
        ('<@m, [{"x"}], reduced={"y"}>', 13, "one list of replicated axes and one of unreduced"),
        ("<@m, [{}], unreduced={}, unreduced={}>", 24, "one list of replicated axes and one of"),
        ('<@m, [{"\\FF"}]>', 7, "a name is text in UTF-8"),
        ('<@m, [{"x\\q"}]>', 7, "a Shardy sharding has a name in double quotes here"),
        ('<mesh<["x"=2, "x"=4]>, []>', 6, "axis names are distinct"),
        ('<mesh<["x"=0]>, []>', 6, "every axis of a mesh has at least one device"),
        ('<mesh<["x"=2], device_ids=[0, 2]>, []>', 6, "a mesh with axes has the devices 0, 1, ..."),
        ('<mesh<["x"=2], device_ids=[0, 1, 2]>, []>', 6, "needs 2 distinct device ids"),
        ("<@m, []> ]", 9, "a Shardy sharding ends here; got '\\]' at position 9"),
        ('<mesh<["x"=2]>, []>', 1, "has the 8 devices of the one it is rewritten for"),
        (
            '<mesh<["z"=8], device_ids=[0, 1, 2, 4, 3, 5, 6, 7]>, [{"z"}]>',
            1,
            "how dim 0 is sharded",
        ),
    ],
)
def test_errors_say_what_is_wrong_and_where(text, position, message):
    with pytest.raises(NotationError, match=message) as caught:
        parse(text, mesh=XY)
    assert caught.value.position == position


@pytest.mark.parametrize("text", ['#sdy.sharding<@mesh, [{"x"}]>', "<mesh<[]>, [{}]>"])
def test_a_mesh_is_needed_where_the_text_has_none(text):
    with pytest.raises(NotationError, match="is read with mesh="):
        parse(text)


def test_the_shape_has_the_rank_of_the_sharding():
    with pytest.raises(NotationError, match="a spec has one entry for each dim"):
        parse('<@mesh, [{"x"}]>', shape=(4, 4), mesh=XY)


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (Layout((8,), XY, Spec.parse("S[2]0")), "Shardy cannot keep pieces of a dim together"),
        (
            Layout((8,), XY, Spec.parse("R+Pmax1")),
            "the partial results of Shardy are sums; got max",
        ),
        (Layout((5,), XY, Spec.parse("S1"), "padded"), "Shardy cuts all dims by the rule 'ceil'"),
        (
            Layout((8,), Mesh((2,), ("x",), (1, 2)), Spec.parse("S0")),
            "Shardy's devices are numbered from 0 on, in any order",
        ),
    ],
)
def test_what_shardy_cannot_say_is_refused(layout, message):
    with pytest.raises(NotationError, match=message):
        dump(layout)


@pytest.mark.parametrize("text", ['sdy.mesh @m = <["x"=2]> {a = {}', 'mesh<["x"=2]> {}'])
def test_attributes_of_a_mesh_end_and_stand_after_definitions_only(text):
    with pytest.raises(NotationError, match=r"ends with its closing brace|a Shardy mesh ends here"):
        parse_mesh(text)
