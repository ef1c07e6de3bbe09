import copy
import itertools
import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shardspec import (
    Layout,
    LayoutError,
    Mesh,
    Partial,
    ShardsError,
    Spec,
    Split,
    StridedLayoutError,
    SubAxis,
    UnknownDeviceError,
    assemble,
)
from shardspec.base.axis import index
from shardspec.base.chunking import all_sizes
from shardspec.refine.shards import partial_place
from shardspec.testing import (
    EVERY_RULE,
    check_covers_once,
    check_layout,
    layout_pairs,
    layouts,
    meshes,
    specs,
)

SMALL = Mesh((2, 2), ("x", "y"))
ANY = {"sub_axes": True, "strided": True, "mixed_kinds": True, "chunking": EVERY_RULE}


def coordinate(mesh, device, axis):
    """Along an axis or a part of one, by counting."""
    place = list(mesh.device_ids).index(device)
    at = int(np.unravel_index(place, mesh.shape)[index(axis)]) if mesh.ndim else 0
    if isinstance(axis, SubAxis):
        minor = mesh.shape[axis.axis] // (axis.pre * axis.size)
        at = int(np.unravel_index(at, (axis.pre, axis.size, minor))[1])
    return at


def chunk(elements, count, i):
    step = math.ceil(len(elements) / count)
    return elements[i * step : (i + 1) * step]


def holds(layout, device, dim):
    """The elements of a dim that a device holds, one by one, from the definition of the rules."""
    mesh, n, rule = layout.mesh, layout.shape[dim], layout.rules[dim]
    parts = [
        (entry.factor, range(entry.factor))
        if isinstance(entry, Split)
        else (mesh.length(entry), [coordinate(mesh, device, entry)])
        for entry in layout.spec.dims[dim]
    ]
    total = math.prod(count for count, _ in parts)
    held = []
    for place in itertools.product(*(places for _, places in parts)):
        piece = list(range(n))
        flat = 0
        for (count, _), i in zip(parts, place, strict=True):
            flat = flat * count + i
            if rule == "nested":
                piece = chunk(piece, count, i)
            elif rule == "balanced":
                piece = [int(e) for e in np.array_split(piece, count)[i]]
        if rule in ("ceil", "padded"):
            piece = [e for e in piece if e // math.ceil(n / total) == flat]
        elif isinstance(rule, tuple):
            piece = piece[sum(rule[:flat]) : sum(rule[: flat + 1])]
        held += piece
    return held


@given(layouts(**ANY))
def test_a_device_holds_what_the_rules_give_it(layout):
    for device in layout.mesh.device_ids:
        found = [of_dim.tolist() for of_dim in layout.indices(device)]
        assert found == [holds(layout, device, dim) for dim in range(len(layout.shape))]


@given(layouts(**ANY))
def test_shards_cover_the_tensor_exactly_once_in_each_replica_group(layout):
    check_covers_once(layout)


@given(layouts(**ANY))
def test_runs_boxes_slices_offsets_shapes_and_bytes_are_of_one_shard(layout):
    check_layout(layout)


@given(layouts(even=True, **ANY))
def test_even_layouts_have_equal_shards(layout):
    check_covers_once(layout)
    shapes = {layout.local_shape(device) for device in layout.mesh.device_ids}
    if not any(isinstance(rule, tuple) for rule in layout.rules):
        assert layout.is_even
        assert len(shapes) == 1


@given(layouts(chunking=EVERY_RULE))
def test_even_means_equal_shards(layout):
    held = {
        tuple(len(of_dim) for of_dim in layout.indices(device)) for device in layout.mesh.device_ids
    }
    if layout.is_even:
        assert len(held) == 1
    elif math.prod(layout.shape):
        assert len(held) > 1


@given(layouts(**ANY))
def test_padded_dims_have_equal_room_for_whole_chunks(layout):
    for dim, rule in enumerate(layout.rules):
        room = [layout.local_shape(device)[dim] for device in layout.mesh.device_ids]
        if rule == "padded":
            splits = math.prod(e.factor for e in layout.spec.dims[dim] if isinstance(e, Split))
            chunks = math.ceil(layout.shape[dim] / math.prod(layout.cuts[dim]))
            assert set(room) == {chunks * splits}


@given(layouts(**ANY))
def test_replicas_hold_the_same_and_differ_from_all_others(layout):
    groups = layout.replica_groups()
    assert sorted(itertools.chain(*groups)) == sorted(layout.mesh.device_ids)
    used = [axis for dim in range(layout.spec.ndim) for axis in layout.spec.sharding_of(dim)]
    used += [p.axis for p in layout.spec.partial]
    places = [
        {tuple(coordinate(layout.mesh, device, axis) for axis in used) for device in group}
        for group in groups
    ]
    assert all(len(place) == 1 for place in places)
    assert len(set(map(frozenset, places))) == len(groups) == layout.mesh.axis_size(used)


@given(layouts(**ANY))
def test_layouts_are_values(layout):
    same = Layout(list(layout.shape), layout.mesh, layout.spec, list(layout.chunking))
    assert (same, hash(same), eval(repr(layout))) == (layout, hash(layout), layout)
    for copied in (copy.copy(layout), copy.deepcopy(layout), pickle.loads(pickle.dumps(layout))):
        assert (copied, hash(copied)) == (layout, hash(layout))


@given(layouts(**ANY))
def test_equal_cuts_are_equal_layouts(layout):
    cuts = zip(layout.shape, layout.rules, layout.cuts, strict=True)
    sizes = ["padded" if c[1] == "padded" else all_sizes(*c) for c in cuts]
    assert Layout(layout.shape, layout.mesh, layout.spec, sizes) == layout


@given(layouts(**ANY))
def test_names_of_axes_change_nothing_but_the_mesh(layout):
    mesh = layout.mesh
    names = tuple(f"renamed {name}" for name in mesh.axis_names)
    renamed = Layout(
        layout.shape, Mesh(mesh.shape, names, mesh.device_ids), layout.spec, layout.rules
    )
    assert renamed.is_equivalent(layout)
    assert (renamed.spec, renamed.rules, renamed.cuts) == (layout.spec, layout.rules, layout.cuts)
    assert renamed.replica_groups() == layout.replica_groups()


@given(layouts(**ANY), st.data())
def test_permuting_devices_permutes_shards(layout, data):
    mesh = layout.mesh
    ids = tuple(data.draw(st.permutations(mesh.device_ids)))
    other = Layout(layout.shape, Mesh(mesh.shape, mesh.axis_names, ids), layout.spec, layout.rules)
    for a, b in zip(mesh.device_ids, ids, strict=True):
        assert layout.runs(a) == other.runs(b)
        assert layout.local_shape(a) == other.local_shape(b)


@given(layouts(**ANY), st.data())
def test_a_submesh_that_leaves_out_unused_axes_holds_the_same(layout, data):
    mesh = layout.mesh
    used = {*layout.spec.axes, *layout.spec.partial_axes}
    where = {
        name: data.draw(st.integers(0, mesh.shape[axis] - 1))
        for axis, name in enumerate(mesh.axis_names)
        if axis not in used
    }
    smaller = mesh.submesh(where)
    at = {axis: smaller.axis(name) for axis, name in enumerate(mesh.axis_names) if axis in used}
    within = Layout(layout.shape, smaller, renumbered(layout.spec, at), layout.rules)
    for device in smaller.device_ids:
        assert within.runs(device) == layout.runs(device)
        assert within.local_shape(device) == layout.local_shape(device)


def renumbered(spec, at):
    def moved(entry):
        match entry:
            case Split():
                return entry
            case SubAxis(axis, pre, size):
                return SubAxis(at[axis], pre, size)
            case _:
                return at[entry]

    dims = tuple(tuple(map(moved, entries)) for entries in spec.dims)
    return Spec(dims, tuple(Partial(moved(p.axis), p.kind) for p in spec.partial))


@st.composite
def rewritten(draw):
    """A layout, and one on the same devices with its mesh's axes in another order, or split."""
    layout = draw(layouts(max_rank=2, **ANY))
    mesh = layout.mesh
    order = draw(st.permutations(range(mesh.ndim)))
    ids = tuple(mesh.grid.transpose(order).reshape(-1).tolist())
    turned = Mesh([mesh.shape[a] for a in order], [mesh.axis_names[a] for a in order], ids)
    spec = renumbered(layout.spec, {axis: at for at, axis in enumerate(order)})
    rules = [
        layout.rules[dim] if draw(st.booleans()) else draw(st.sampled_from(("ceil", "nested")))
        for dim in range(len(layout.shape))
    ]
    rules = [
        rule if isinstance(rule, str) or len(rule) == math.prod(parts) else "ceil"
        for rule, parts in zip(rules, layout.cuts, strict=True)
    ]
    return layout, Layout(layout.shape, turned, spec, rules)


def any_shards(layout, seed):
    """Shards of any tensor: of equal parts devices hold the same, beyond that nothing is fixed."""
    rng, parts = np.random.default_rng(seed), {}
    held = {}
    for device in layout.mesh.device_ids:
        place = partial_place(layout, device)
        part = parts.setdefault(place, rng.uniform(1.5, 4, layout.shape))
        part = part[np.ix_(*layout.indices(device))]
        held[device] = np.zeros(layout.local_shape(device))
        held[device][tuple(map(slice, part.shape))] = part
    return held


def repeated(layout):
    """The layout of many such tensors, along one more dim."""
    spec = Spec((*layout.spec.dims, ()), layout.spec.partial)
    return Layout((*layout.shape, 60), layout.mesh, spec, (*layout.rules, "ceil"))


def means_the_same(a, b):
    """Whether all shards of one layout are shards of the other, and of the same tensor."""
    a, b = repeated(a), repeated(b)
    for src, dst in ((a, b), (b, a)):
        held = any_shards(src, seed=0)
        try:
            if not np.allclose(assemble(dst, held), assemble(src, held)):
                return False
        except ShardsError:
            return False
    return True


PAIRS = layout_pairs(max_rank=1, max_length=2, even=False, new_partial=True, **ANY)


@settings(max_examples=2 * settings().max_examples)
@given(st.one_of(rewritten(), PAIRS).filter(lambda pair: math.prod(pair[0].shape)))
def test_equivalent_means_that_the_shards_of_one_are_those_of_the_other(pair):
    a, b = pair
    assert a.is_equivalent(b) is b.is_equivalent(a) is means_the_same(a, b)


EIGHT = Mesh((8,), ("x",))
GRID = Mesh((2, 4), ("a", "b"))


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (Layout((9,), EIGHT, Spec.parse("S0")), Layout((9,), GRID, Spec.parse("S01")), True),
        (Layout((9,), EIGHT, Spec.parse("S0")), Layout((9,), GRID, Spec.parse("S10")), False),
        (
            Layout((8,), EIGHT, Spec.parse("S(0:(2)4)+P(0:(1)2)")),
            Layout((8,), GRID, Spec.parse("S1+P0")),
            True,
        ),
        (Layout((8,), EIGHT, Spec.parse("R+P0")), Layout((8,), GRID, Spec.parse("R+P0+P1")), True),
        (
            Layout((8,), GRID, Spec.parse("R+Pmax0+P1")),
            Layout((8,), GRID, Spec.parse("R+P0+Pmax1")),
            False,
        ),
        (
            Layout((8,), SMALL, Spec.parse("R+P0+Pavg1")),
            Layout((8,), SMALL, Spec.parse("R+Pavg0+P1")),
            True,
        ),
        (
            Layout((8,), GRID, Spec.parse("R+P0+Pavg1")),
            Layout((8,), GRID, Spec.parse("R+Pavg0+P1")),
            False,
        ),
        (
            Layout((5,), SMALL, Spec.parse("S01"), "padded"),
            Layout((5,), SMALL, Spec.parse("S01")),
            False,
        ),
        (Layout((5,), EIGHT, Spec.parse("S0")), Layout((6,), EIGHT, Spec.parse("S0")), False),
        (Layout((5,), EIGHT, Spec.parse("R")), Layout((5,), SMALL, Spec.parse("R")), False),
    ],
)
def test_equivalent_layouts(a, b, same):
    assert a.is_equivalent(b) is b.is_equivalent(a) is same


def test_parts_that_are_all_of_an_axis_are_the_axis():
    parts = (SubAxis(0, 1, 2), SubAxis(0, 2, 4))
    assert Layout((8,), EIGHT, Spec((parts,))) == Layout((8,), EIGHT, Spec.parse("S0"))
    whole = Layout((8,), EIGHT, Spec(((),), tuple(map(Partial, parts))))
    assert whole == Layout((8,), EIGHT, Spec.parse("R+P0"))


@given(
    specs(Mesh((2, 3, 4), ("x", "y", "z")), 2, sub_axes=True, strided=True),
    st.sampled_from(EVERY_RULE[:4]),
)
def test_shards_are_exact_where_floats_are_not(spec, rule):
    """Dims past 2**53: the sizes of all pieces add up, and no piece is off by one."""
    mesh = Mesh((2, 3, 4), ("x", "y", "z"))
    layout = Layout((2**60 + 1, 2**55 + 3), mesh, spec, rule)
    axes = [axis for dim in range(2) for axis in spec.sharding_of(dim)]
    for group in mesh.groups(tuple(axes)):
        for dim, n in enumerate(layout.shape):
            runs = sorted({run for device in group for run in layout.runs(device)[dim]})
            assert [runs[0][0], runs[-1][1]] == [0, n]
            assert all(stop == start for (_, stop), (start, _) in itertools.pairwise(runs))
    check_layout(layout)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (0, 3), (1, 1)])
@pytest.mark.parametrize("rule", ["ceil", "nested", "balanced", "padded"])
def test_small_tensors_have_shards_too(shape, rule):
    mesh = Mesh((1, 4), ("x", "y"), (6, 2, 9, 4))
    for dims in itertools.product([(), (0,), (1,), (0, 1), (Split(2), 1)], repeat=len(shape)):
        used = [e for entries in dims for e in entries if not isinstance(e, Split)]
        if len(set(used)) == len(used):
            layout = Layout(shape, mesh, Spec(dims), rule)
            check_covers_once(layout)
            check_layout(layout)


def test_explicit_sizes_that_differ_are_not_even():
    layout = Layout((4,), Mesh((2,), ("x",)), Spec.parse("S0"), ((3, 1),))
    assert not layout.is_even
    assert [layout.local_bytes(1), layout.local_bytes(1, 0), layout.local_bytes(1, 1)] == [3, 3, 1]
    assert layout.rules == ((3, 1),)
    assert Layout((4,), Mesh((2,), ("x",)), Spec.parse("S0"), ((2, 2),)).rules == ("ceil",)


def test_the_largest_strided_shard_is_not_rounded_up():
    layout = Layout((5,), Mesh((2,), ("x",)), Spec.parse("S[2]0"))
    assert [layout.runs(d) for d in (0, 1)] == [(((0, 2), (4, 5)),), (((2, 4),),)]
    assert layout.local_bytes(1) == 3


def test_a_strided_shard_starts_at_its_first_element():
    layout = Layout((3,), Mesh((2,), ("x",)), Spec.parse("S[2]0"), ((0, 1, 2, 0),))
    assert (layout.offsets(0), layout.offsets(1)) == ((1,), (0,))


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
    padded = Layout((5, 2), SMALL, Spec.parse("S0R"), "padded")
    assert str(padded) == "(5, 2) as S0R on (2, 2), chunks padded, ceil"


@given(meshes(), st.data())
def test_numpy_integers_and_lists_are_taken(mesh, data):
    spec = data.draw(specs(mesh, 2))
    layout = Layout(np.array([5, 8]), mesh, spec, ["ceil", np.str_("balanced")])
    assert layout == Layout((5, 8), mesh, spec, ("ceil", "balanced"))
    assert {type(n) for n in layout.shape} == {int}
    assert type(layout.local_bytes(np.int64(4))) is int
    explicit = Layout([3], Mesh([2], ["x"]), Spec([[0]]), [np.array([1, 2])])
    assert explicit == Layout((3,), Mesh((2,), ("x",)), Spec.parse("S0"), ((1, 2),))
    assert isinstance(hash(explicit), int)


@pytest.mark.parametrize(
    ("shape", "spec", "rule"),
    [
        ((4,), "RR", r"one entry for each dim; got spec RR \(2 dims\) for shape \(4,\) \(1 dims\)"),
        ((4,), "S2", r"axes of its mesh; got spec S2 for a mesh of 2 axes, shape \(2, 2\)"),
        ((4,), "S(0:(1)3)", r"axes of its mesh; .* divide its axis; got 0:\(1\)3 of an axis of 2"),
        ((4,), "R+P2", "axes of its mesh"),
    ],
)
def test_rejects_a_spec_that_does_not_fit(shape, spec, rule):
    with pytest.raises(LayoutError, match=rule):
        Layout(shape, SMALL, Spec.parse(spec))


@pytest.mark.parametrize(
    "shape", [(-1,), (2.0,), (True,), ("2",), (None,), 4, None, "44", (2**63,)]
)
def test_rejects_what_is_no_shape(shape):
    with pytest.raises(LayoutError, match="a tensor's dims have sizes >= 0; got shape "):
        Layout(shape, SMALL, Spec.parse("R"))


@pytest.mark.parametrize(
    ("mesh", "spec"),
    [(SMALL, "S0"), (SMALL, None), (SMALL, ((0,),)), ((2, 2), Spec.parse("S0")), (None, None)],
)
def test_rejects_what_is_no_mesh_or_spec(mesh, spec):
    with pytest.raises(LayoutError, match=r"a layout has a Mesh and a Spec; got mesh=.* and spec="):
        Layout((4,), mesh, spec)


@pytest.mark.parametrize("chunking", [("ceil", "ceil"), (), None, 3, (2, 2)])
def test_rejects_another_number_of_chunkings_than_dims(chunking):
    with pytest.raises(
        LayoutError, match="one chunking for each dim, or one rule for all; got chu"
    ):
        Layout((4,), SMALL, Spec.parse("S0"), chunking)


@pytest.mark.parametrize("itemsize", [-1, 0.5, None, "4", True])
def test_rejects_what_is_no_number_of_bytes(itemsize):
    with pytest.raises(LayoutError, match="a number of bytes; got itemsize="):
        Layout((4,), SMALL, Spec.parse("S0")).local_bytes(itemsize)


def test_slices_are_refused_for_shards_of_several_pieces():
    with pytest.raises(
        StridedLayoutError, match=r"of one block; got \(8,\) as S\[2\]0.*; use boxes"
    ):
        Layout((8,), SMALL, Spec.parse("S[2]0")).slices(0)


def test_names_an_unknown_device():
    layout = Layout((4,), SMALL, Spec.parse("S0"))
    asks = (layout.slices, layout.runs, layout.boxes, layout.indices, layout.offsets)
    for ask in (*asks, layout.local_shape, lambda device: layout.local_bytes(4, device)):
        for device in (9, "0", 0.0):
            with pytest.raises(UnknownDeviceError, match=f"got {device!r}, the mesh has"):
                ask(device)


def test_shapes_and_offsets_of_very_many_pieces_are_not_listed():
    layout = Layout((2**50,), Mesh((2,), ("x",)), Spec.parse(f"S[{2**40}]0"))
    assert (layout.local_shape(1), layout.offsets(1)) == ((2**49,), (2**9,))
    assert layout.local_bytes(4, device_id=1) == 2**51


def test_names_the_dims_that_are_not_even():
    mesh = Mesh((2, 2), ("x", "y"))
    layout = Layout((5, 4, 4), mesh, Spec.parse("S0S1R"), ("ceil", (3, 1), "ceil"))
    assert layout.uneven_dims == (0, 1)
    assert Layout((4, 4, 5), mesh, Spec.parse("S0S1R")).uneven_dims == ()
