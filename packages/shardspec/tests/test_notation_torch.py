import itertools
import math
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Layout, Mesh, NotationError, Spec, shard
from shardspec.notation.torch import dump, from_placements, parse, to_placements
from shardspec.testing import EVERY_RULE, layouts
from torch.distributed import destroy_process_group, init_process_group
from torch.distributed._local_tensor import LocalTensor, LocalTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec, ShardOrderEntry
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _MaskPartial, _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

SQUARE = Mesh((2, 2), ("x", "y"))
KINDS = ("sum", "avg", "max", "min", "product")


@contextmanager
def ranks(count):
    """A process group all of whose ranks live in this process."""
    init_process_group("fake", rank=0, world_size=count, store=FakeStore())
    try:
        with LocalTensorMode(count):
            yield
    finally:
        destroy_process_group()


@st.composite
def dtensors(draw, *, even, numbers=(1, 2, 3, 4), factors=(1, 2, 3, 4)):
    """Placements, a mesh and a shape, with axes and split factors of given sizes.

    If `even`, all cuts divide the shape.
    """
    ndim = draw(st.sampled_from([1, 2, 0]))  # mostly one dim, which several axes shard
    count = draw(st.sampled_from([3, 2, 1, 0]))
    lengths = tuple(draw(st.sampled_from(numbers)) for _ in range(count))
    ids = draw(st.permutations(range(math.prod(lengths))))
    mesh = Mesh(lengths, tuple("abc"[: len(lengths)]), tuple(ids))
    kind = draw(st.sampled_from(KINDS))
    found, shape = [], [1] * ndim
    for length in lengths:
        dim = draw(st.sampled_from([*range(ndim), *range(ndim), -1, -2]))
        factor = draw(st.sampled_from(factors))
        if dim < 0:
            found.append(Replicate() if dim == -1 else Partial(kind))
            continue
        found.append(Shard(dim) if factor == 1 else _StridedShard(dim, split_factor=factor))
        shape[dim] *= length * factor
    sizes = st.sampled_from([1, 2, 0]) if even else st.integers(0, 30)
    return tuple(found), mesh, tuple(draw(sizes) * (n if even else 1) for n in shape)


def shards_of_torch(layout, placements):
    """What torch gives each device of a tensor of distinct numbers."""
    found = {}
    for device in layout.mesh.device_ids:
        local = torch.arange(math.prod(layout.shape)).reshape(layout.shape)
        coordinates = layout.mesh.coordinates(device)
        for placement, length, at in zip(placements, layout.mesh.shape, coordinates, strict=True):
            if isinstance(placement, Shard | _StridedShard):
                local = placement._select_split_tensor(local, length, at, with_padding=False)
        found[device] = local.numpy()
    return found


def shards_of_layout(layout):
    """What a layout gives each device of that tensor, apart from partial results."""
    whole = np.arange(math.prod(layout.shape)).reshape(layout.shape)
    spec = Spec(layout.spec.dims)
    return shard(Layout(layout.shape, layout.mesh, spec, layout.chunking), whole)


def check_agrees(layout, placements):
    """Assert that torch gives each device the shard that the layout gives it, from where it is."""
    ours = shards_of_layout(layout)
    for device, held in shards_of_torch(layout, placements).items():
        np.testing.assert_array_equal(ours[device], held, err_msg=f"{layout} as {placements}")
        size, start = _compute_local_shape_and_global_offset(
            layout.shape, layout.mesh.shape, layout.mesh.coordinates(device), placements
        )
        assert layout.local_shape(device) == size
        assert not held.size or layout.offsets(device) == start
    partial = {p.axis: p.kind for p in layout.spec.partial}
    said = {i: p.reduce_op for i, p in enumerate(placements) if isinstance(p, Partial)}
    assert partial == said


def unless_refused(convert, *args):
    """The result, or the error."""
    try:
        return convert(*args)
    except NotationError as error:
        return error


@given(dtensors(even=True) | dtensors(even=False) | dtensors(even=False, factors=(1, 1, 2)))
def test_a_layout_gives_the_shards_of_torch(dtensor):
    placements, mesh, shape = dtensor
    layout = unless_refused(from_placements, placements, mesh, shape)
    if isinstance(layout, Layout):
        check_agrees(layout, placements)
    else:
        assert str(layout).startswith(("placements cut along digits", "a DTensor is cut by"))


@given(dtensors(even=True, numbers=(2, 4, 1), factors=(1, 2, 4)))
def test_even_placements_with_powers_of_two_always_have_a_layout(dtensor):
    placements, mesh, shape = dtensor
    layout = from_placements(placements, mesh, shape)
    check_agrees(layout, placements)
    check_agrees(layout, to_placements(layout))


@given(dtensors(even=False, factors=(1,)))
def test_plain_shards_always_have_a_layout(dtensor):
    placements, mesh, shape = dtensor
    layout = from_placements(placements, mesh, shape)
    check_agrees(layout, placements)
    assert to_placements(layout) == placements


@given(layouts(even=True))
def test_even_layouts_of_whole_axes_always_have_placements(layout):
    placements = to_placements(layout)
    check_agrees(layout, placements)
    assert from_placements(placements, layout.mesh, layout.shape).is_equivalent(layout)


@given(
    layouts(sub_axes=True, strided=True, mixed_kinds=True, chunking=EVERY_RULE)
    | layouts(strided=True, chunking=["nested"])
    | layouts(even=True, sub_axes=True, strided=True)
)
def test_placements_give_the_shards_of_their_layout(layout):
    placements = unless_refused(to_placements, layout)
    if not isinstance(placements, NotationError):
        check_agrees(layout, placements)
        assert from_placements(placements, layout.mesh, layout.shape).is_equivalent(layout)


@given(layouts(chunking=["nested"]))
def test_a_shard_order_is_the_order_of_the_axes_in_a_dim(layout):
    order = tuple(ShardOrderEntry(d, axes) for d, axes in enumerate(layout.spec.dims) if axes)
    placements = [Replicate()] * layout.mesh.ndim
    for partial in layout.spec.partial:
        placements[partial.axis] = Partial(partial.kind)
    for dim, axes in order:
        for axis in axes:
            placements[axis] = Shard(dim)
    assert from_placements(placements, layout.mesh, layout.shape, order) == layout
    text = DTensorSpec.format_shard_order_str(tuple(placements), order)
    assert parse(text, shape=layout.shape, mesh=layout.mesh) == layout


@given(dtensors(even=True, factors=(1, 2), numbers=(2, 4)))
def test_text_is_what_torch_prints(dtensor):
    placements, mesh, shape = dtensor
    layout = from_placements(placements, mesh, shape)
    assert dump(layout) == repr(to_placements(layout))
    short = ", ".join(map(str, placements))
    printed = [repr(placements), f"[{short}]", short, "".join(map(str, placements))]
    assert [parse(text, shape=shape, mesh=mesh) for text in printed] == [layout] * 4


@given(dtensors(even=True))
def test_the_smallest_even_shape_is_taken_if_none_is_given(dtensor):
    placements, mesh, shape = dtensor
    layout = unless_refused(from_placements, placements, mesh, shape)
    if isinstance(layout, Layout):
        found = parse(repr(placements), mesh=mesh)
        assert found.spec.dims == layout.spec.dims[: found.spec.ndim]
        assert found.shape == tuple(math.prod(cuts) for cuts in found.cuts)
        assert not any(layout.spec.dims[found.spec.ndim :])


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("(Shard(dim=0), Replicate())", "S0"),
        ("(Shard(0), Shard(1),)", "S0S1"),
        ("[ Shard ( -1 ) , R ]", "RS0"),
        ("_StridedShard(0, split_factor=2), S(dim=0)", "S10"),
        ("_S(0, 2)R", "S[2]0"),
        ("S(0)_S(0, 3)", "S0[3]1"),
        ("_S(0, 2)_S(0, 4)", "S[2]0[2]1"),
        ("S(0)[1]S(0)[0]", "S10"),
        ("(Partial(), P)", "()+P0+P1"),
        ("Partial('max'), Partial(reduce_op=\"max\")", "()+Pmax0+Pmax1"),
        ("Partial(avg) Partial(sum)", "()+Pavg0+P1"),
        ("RR", "R"),
    ],
)
def test_reads_what_programs_write(text, spec):
    spec = Spec.parse(spec)
    assert parse(text, shape=(48, 48)[: spec.ndim], mesh=SQUARE).spec == spec


@pytest.mark.parametrize(
    ("shape", "mesh_shape", "placements", "spec"),
    [
        ((8,), (2, 4), (_StridedShard(0, split_factor=4), Shard(0)), "S10"),
        ((6, 4), (2, 3), (Shard(1), _StridedShard(0, split_factor=2)), "S[2]1S0"),
        ((8,), (4, 2), (_StridedShard(0, split_factor=2), Replicate()), "S[2]0"),
        ((8,), (2, 4), (_StridedShard(0, split_factor=2), Shard(0)), "S(1:(1)2)0(1:(2)2)"),
        ((7, 5), (2, 4), (Shard(0), Shard(0)), "S01R"),
        ((7,), (4, 2), (_StridedShard(0, split_factor=2), Shard(0)), "S10"),
        ((12,), (4, 2), (Shard(0), _StridedShard(0, split_factor=3)), "S0[3]1"),
        ((0, 3), (2, 2, 2), (Shard(1), Replicate(), Shard(0)), "S2S0"),
    ],
)
def test_a_real_dtensor_lies_as_its_layout_says(shape, mesh_shape, placements, spec):
    size = math.prod(mesh_shape)
    grid = torch.tensor([i for i in (3, 1, 0, 2, 7, 5, 4, 6) if i < size]).reshape(mesh_shape)
    whole = torch.arange(math.prod(shape)).reshape(shape)
    with ranks(size):
        mesh = DeviceMesh("cpu", grid)
        local = distribute_tensor(whole, mesh, placements, src_data_rank=None).to_local()
    layout = from_placements(placements, mesh, shape)
    assert layout.spec == Spec.parse(spec)
    assert layout.mesh.axis_names == ("dim_0", "dim_1", "dim_2")[: len(mesh_shape)]
    for rank, held in shards_of_layout(layout).items():
        np.testing.assert_array_equal(held, local._local_tensors[rank].numpy())


@pytest.mark.parametrize(
    "spec", ["R+P0", "R+Pavg0", "R+Pmax0", "R+Pmin1", "R+Pproduct1", "S1+Pavg0", "R+Pavg0+P1"]
)
def test_partial_results_of_a_real_dtensor_combine_to_the_whole(spec):
    # Within a group in rising order: torch sorts a group's ranks, and gathers in another order.
    grid = ((1, 3, 5, 7), (0, 2, 4, 6))
    layout = Layout((4,), Mesh((2, 4), ("x", "y"), np.ravel(grid).tolist()), Spec.parse(spec))
    whole = np.array([3.0, -1.0, 2.0, 8.0])
    parts = shard(layout, whole, seed=1)
    placements = to_placements(layout)
    with ranks(8):
        mesh = DeviceMesh("cpu", torch.tensor(grid), mesh_dim_names=("x", "y"))
        local = LocalTensor({rank: torch.from_numpy(part) for rank, part in parts.items()})
        combined = DTensor.from_local(local, mesh, placements, run_check=False).full_tensor()
    assert from_placements(placements, mesh, (4,)) == layout
    for held in combined._local_tensors.values():
        np.testing.assert_array_equal(held.numpy(), whole)


@pytest.mark.parametrize("axes", [*itertools.permutations(range(3))], ids=str)
def test_an_order_of_axes_has_the_split_factors_that_torch_gives_it(axes):
    order = (ShardOrderEntry(0, axes),)
    with ranks(12):
        mesh = DeviceMesh("cpu", torch.arange(12).reshape(2, 3, 2))
        expected = DTensorSpec._convert_shard_order_to_StridedShard(order, (Shard(0),) * 3, mesh)
    layout = from_placements((Shard(0),) * 3, mesh, (12,), order)
    assert layout.spec.dims == (axes,)
    assert to_placements(layout) == expected
    assert from_placements(expected, mesh, (12,)) == layout


@pytest.mark.parametrize(
    ("text", "rule", "position"),
    [
        ("(R", "a placement is Shard", 2),
        ("(R, R", "one for each of 2 mesh axes, ends here", 5),
        ("(R)", "one for each of 2 mesh axes", 3),
        ("(R, R, R)", "one for each of 2 mesh axes", 7),
        ("(R, R) + ()", "ends here", 7),
        ("(R, Q)", "a placement is Shard", 4),
        ("(Shard(), R)", "an integer here", 7),
        ("(S(0), S(2))", "the tensor has 2 dims", 9),
        ("(S(0), S(-3))", "the tensor has 2 dims", 9),
        ("(S(dim=7), R)", "the tensor has 2 dims", 3),
        ("(_S(0), R)", "has ',' here", 5),
        ("(_S(0, 0), R)", "at least one piece", 8),
        ("(Partial(band), R)", r"combine by one of \('sum', 'max', 'min', 'product', 'avg'\)", 9),
        ("(MaskP(sum, None, 0), R)", "a placement is Shard", 1),
        ("(S(0)[0], S(0)[0])", "is taken once", 16),
        ("(S(0)[1], S(0)[2])", "counts from 0", 0),
        ("(S(0)[0], S(0))", "has all mesh axes that shard its dim", 0),
        ("(S(0)[0], _S(0, 2)[1])", "has all mesh axes that shard its dim", 0),
        ("(P(sum), P(max))", r"does not mix .*; got \['max', 'sum'\]", 0),
    ],
)
def test_text_that_says_no_layout_is_refused_where_it_stands(text, rule, position):
    with pytest.raises(NotationError, match=rule) as caught:
        parse(text, shape=(2, 2), mesh=SQUARE)
    assert (caught.value.text, caught.value.position) == (text, position)


def test_text_needs_a_mesh():
    with pytest.raises(NotationError, match="pass mesh="):
        parse("(R,)")


@pytest.mark.parametrize("dim", ["-1", "64", "9" * 18])
def test_text_needs_a_shape_for_dims_that_it_does_not_count(dim):
    with pytest.raises(NotationError, match="dims count from 0 to 63"):
        parse(f"(Shard({dim}), R)", mesh=SQUARE)


WORDS = [*"()[],=02-", "S(0)", "S(1)", "_S(0, ", "R", "Replicate()", "P(sum)", "Partial", "dim="]


@given(st.text() | st.lists(st.sampled_from(WORDS)).map("".join))
def test_any_text_is_a_layout_or_an_error_with_its_position(text):
    for shape in (None, (3, 8)):
        found = unless_refused(lambda s: parse(text, shape=s, mesh=SQUARE), shape)
        if isinstance(found, Layout):
            assert parse(dump(found), shape=found.shape, mesh=SQUARE).is_equivalent(found)
        else:
            assert found.text == text
            assert 0 <= found.position <= len(text)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 10**6,
        "(R, R" + "," * 10**6,
        "R" * 10**6,
        "S(0)[1]" * 10**5,
        " " * 10**6,
        "(R\0, R)",
        "(S(" + "9" * 10**6 + "), R)",
        "(S(٣), R)",
        f"(_S(0, {10**17}), R)",
        f"(_S(0, {10**17}), _S(0, {10**17}))",
    ],
    ids=["open", "commas", "R", "S", "spaces", "nul", "digits", "unicode", "pieces", "product"],
)
def test_long_and_odd_text_is_refused(text):
    with pytest.raises(NotationError):
        parse(text, shape=(10**9 + 7,), mesh=SQUARE)


@pytest.mark.parametrize(
    ("placements", "shape", "rule"),
    [
        ((Replicate(),), (2,), r"for each mesh axis; got \(Replicate\(\),\) for a mesh of 2"),
        ((Shard(1), Replicate()), (2,), r"one of 1 dims.*; got Shard\(dim=1\)"),
        ((Partial("band"), Replicate()), (2,), r"got Partial\(band\)"),
        ((_MaskPartial("sum"), Replicate()), (2,), "got _MaskPartial"),
        ((_StridedShard(0, split_factor=0), Replicate()), (2,), "at least one piece"),
        ((Partial("sum"), Partial("max")), (2,), "does not mix kinds"),
        (
            (_StridedShard(0, split_factor=3), Shard(0)),
            (12,),
            "a mesh axis of 2 would cut the 3 pieces that an earlier one left together",
        ),
        (
            (_StridedShard(0, split_factor=2), _StridedShard(0, split_factor=3)),
            (24,),
            "after 3 pieces a mesh axis of 2 would cut the 2 pieces",
        ),
        ((_StridedShard(0, split_factor=4), Shard(0)), (5,), "dim 0 .* cut otherwise under"),
    ],
)
def test_placements_that_say_no_layout_are_refused(placements, shape, rule):
    with pytest.raises(NotationError, match=rule):
        from_placements(placements, SQUARE, shape)


@pytest.mark.parametrize(
    ("layout", "rule"),
    [
        (Layout((4,), Mesh((4,), ("x",)), Spec.parse("S(0:(1)2)")), r"'x' .* \(Mesh.split\)"),
        (Layout((4,), Mesh((4,), ("x",)), Spec.parse("S(0:(2)2)(0:(1)2)")), "used in parts"),
        (Layout((4,), Mesh((4,), ("x",)), Spec.parse("R+P(0:(1)2)")), "used in parts"),
        (Layout((2, 2), Mesh((4,), ("x",)), Spec.parse("S(0:(1)2)S(0:(2)2)")), "used in parts"),
        (Layout((5,), SQUARE, Spec.parse("S01"), "padded"), "without padding; dim 0"),
        (Layout((5,), Mesh((4,), ("x",)), Spec.parse("S0"), "balanced"), "cut otherwise under"),
        (Layout((2,), SQUARE, Spec.parse("S0"), ((0, 2),)), "cut otherwise under"),
        (Layout((9,), Mesh((2, 4), ("x", "y")), Spec.parse("S01")), "cut otherwise under"),
        (Layout((4,), SQUARE, Spec.parse("R+P0+Pmin1")), "does not mix kinds"),
    ],
)
def test_a_layout_that_torch_has_no_words_for_is_refused(layout, rule):
    for write in (dump, to_placements):
        with pytest.raises(NotationError, match=rule):
            write(layout)


def test_uneven_dims_have_no_more_pieces_than_can_be_looked_at():
    mesh, rule = Mesh((2,), ("x",)), "at most 1048576 pieces; got 2097154 of 3 elements"
    with pytest.raises(NotationError, match=rule):
        from_placements((_StridedShard(0, split_factor=2**20 + 1),), mesh, (3,))
    with pytest.raises(NotationError, match=rule):
        dump(Layout((3,), mesh, Spec.parse(f"S[{2**20 + 1}]0")))
