import functools
import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardspec import (
    COLLECTIVES,
    WHOLE_AXES,
    Layout,
    Mesh,
    Partial,
    ReshardError,
    ReshardPlan,
    ShardsError,
    Spec,
    assemble,
    reshard,
    shard,
    simulate,
)
from shardspec.refine.shards import combine
from shardspec.testing import EVERY_RULE, layout_pairs

LINE = Mesh((2,), ("x",))
MOVES = layout_pairs(even=False, chunking=EVERY_RULE, sub_axes=True, strided=True)
DTYPES = ["bool", "int8", "uint64", "float16", "float32", "float64", "complex64", "S3", "M8[s]"]


def whole_layouts(pair):
    """The pair without partial results: a plan only moves data."""
    return [
        Layout(layout.shape, layout.mesh, Spec(layout.spec.dims), layout.chunking)
        for layout in pair
    ]


def plan_of(src, dst, shape=(8,), mesh=LINE, **options):
    return reshard(*(Layout(shape, mesh, Spec.parse(text)) for text in (src, dst)), **options)


def bits(array):
    return np.ascontiguousarray(array).tobytes()


# Moves


@given(MOVES, st.sampled_from(DTYPES), st.integers(0, 99))
def test_moves_keep_every_bit_of_any_dtype(pair, dtype, seed):
    src, dst = whole_layouts(pair)
    kind = np.dtype(dtype)
    raw = np.random.default_rng(seed).integers(0, 256, (*src.shape, kind.itemsize), np.uint8)
    raw = raw % 2 if dtype == "bool" else raw
    whole = raw.reshape(-1).view(kind).reshape(src.shape)  # NaNs with payloads among them
    held = simulate(reshard(src, dst), shard(src, whole))
    for device, part in shard(dst, whole).items():
        assert held[device].dtype == kind
        assert held[device].shape == part.shape
        assert bits(held[device]) == bits(part)


def test_moves_keep_payloads_of_nan_and_the_sign_of_zero():
    whole = np.array([0x7FC00001, 0xFFC0BEEF, 0x80000000, 0x7F800001], np.uint32).view(np.float32)
    for src, dst in itertools.product(["R", "S0", "S[2]0"], repeat=2):
        plan = plan_of(src, dst, (4,))
        held = simulate(plan, shard(plan.src, whole))
        parts = {device: part.view(np.uint32) for device, part in held.items()}
        assert bits(assemble(plan.dst, parts)) == bits(whole)


@given(layout_pairs(even=False, chunking=["padded"]))
def test_padding_is_zero_after_a_move(pair):
    src, dst = whole_layouts(pair)
    plan = reshard(src, dst)
    held = simulate(plan, shard(src, np.full(src.shape, 7)))
    if plan.steps:
        for device, part in shard(dst, np.full(dst.shape, 7)).items():
            np.testing.assert_array_equal(held[device], part)


@given(layout_pairs(even=False, chunking=["padded", "ceil"]), st.integers(0, 9))
def test_what_lies_in_the_padding_before_reaches_no_element(pair, seed):
    src, dst = pair
    whole = np.random.default_rng(seed).integers(-9, 9, src.shape)
    shards = shard(src, whole, seed=seed)
    for device, part in shards.items():
        inside = tuple(slice(len(i)) for i in src.indices(device))
        rubbish = np.full_like(part, 99)
        rubbish[inside] = part[inside]
        shards[device] = rubbish
    np.testing.assert_array_equal(assemble(dst, simulate(reshard(src, dst), shards)), whole)


def calls(step, held):
    """What a step with a `dim` leaves, as single calls of a collective library on whole arrays."""
    found = {}
    for group in step.groups:
        parts = [held[device] for device in group]
        if step.kind == "reduce_scatter":
            parts = [combine(step.reduction, parts)] * len(group)
        if step.kind == "all_gather":
            found |= dict.fromkeys(group, np.concatenate(parts, axis=step.dim))
            continue
        to_dim = step.dim if step.to_dim is None else step.to_dim
        ends = np.cumsum([step.dst.local_shape(device)[to_dim] for device in group])
        pieces = [np.split(part, ends[:-1], axis=to_dim) for part in parts]
        for i, device in enumerate(group):
            mine = [piece[i] for piece in pieces]
            found[device] = mine[i] if step.to_dim is None else np.concatenate(mine, step.dim)
    return found


@given(
    layout_pairs(sub_axes=True, strided=True)
    | layout_pairs(even=False, chunking=EVERY_RULE, strided=True)
)
def test_steps_with_a_dim_cut_and_join_whole_arrays_along_it(pair):
    plan = reshard(*pair)
    held = shard(plan.src, np.random.default_rng(0).integers(-99, 99, plan.src.shape))
    for step in plan.steps:
        after = simulate(ReshardPlan(step.src, step.dst, (step,)), held)
        if step.dim is not None:
            found = calls(step, held)
            for device, expected in after.items():
                np.testing.assert_array_equal(found[device], expected, err_msg=str(step))
        held = after


@pytest.mark.parametrize(
    ("src", "dst"), [("S[2]1R+P0", "S[2]10R"), ("S[2]10R", "S[2]1R"), ("RS[2]1", "RS[2]10")]
)
def test_a_step_on_the_pieces_of_a_strided_shard_has_no_dim(src, dst):
    (step,) = plan_of(src, dst, (8, 8), Mesh((2, 2), ("x", "y"))).steps
    assert step.dim is None


# Reductions


@pytest.mark.parametrize("dst", ["R", "S0", "S[2]0"])
def test_sums_of_floats_are_added_in_the_order_of_the_group(dst):
    mesh = Mesh((4,), ("x",), (3, 0, 2, 1))
    src = Layout((8,), mesh, Spec.parse("R+P0"))
    parts = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32) * 10.0 ** np.arange(8)
    parts = parts.astype(np.float32)
    shards = dict(zip(mesh.device_ids, parts, strict=True))
    expected = functools.reduce(np.add, parts)
    in_another_order = functools.reduce(np.add, parts[[1, 0, 3, 2]])
    assert bits(expected) != bits(in_another_order)
    end = Layout((8,), mesh, Spec.parse(dst))
    held = simulate(reshard(src, end), shards)
    for device in mesh.device_ids:
        assert held[device].dtype == np.float32
        assert bits(held[device]) == bits(expected[end.indices(device)])


@pytest.mark.parametrize("dst", ["R+P0", "R"])
def test_axes_are_added_from_the_last_to_the_first_where_the_plan_says_so(dst):
    mesh = Mesh((2, 2), ("x", "y"))
    shards = {d: np.float32([x]) for d, x in enumerate([1e8, -1e8, 3.0, 1e-8])}
    plan = plan_of("R+P0+Pavg1", dst, (1,), mesh)
    averages = [(shards[d] + shards[d + 1]) / 2 for d in (0, 2)]
    held = simulate(plan, shards)
    expected = averages if dst == "R+P0" else [averages[0] + averages[1]] * 2
    for device in range(4):
        assert bits(held[device]) == bits(expected[device // 2])


@given(layout_pairs(), st.sampled_from(["int8", "uint16", "int64", "float16", "float32"]))
def test_reductions_keep_the_dtype_and_give_what_assembling_gives(pair, dtype):
    src, dst = pair
    whole = np.random.default_rng(0).integers(0, 5, src.shape).astype(dtype)
    shards = shard(src, whole)
    held = simulate(reshard(src, dst), shards)
    assert {part.dtype for part in held.values()} == {np.dtype(dtype)}
    np.testing.assert_array_equal(assemble(dst, held), assemble(src, shards))


def test_maxima_of_booleans_are_reduced_and_scattered():
    held = simulate(
        plan_of("R+Pmax0", "S0", (2,)), {0: np.array([True, False]), 1: np.array([False, False])}
    )
    assert [held[0].tolist(), held[1].tolist()] == [[True], [False]]


@pytest.mark.parametrize(
    ("kind", "dtype", "neutral"),
    [
        ("sum", np.int8, 0),
        ("product", np.float32, 1),
        ("max", np.int8, -128),
        ("max", np.float32, -np.inf),
        ("max", np.bool_, False),
        ("min", np.uint8, 255),
        ("min", np.float32, np.inf),
        ("avg", np.int8, 1),
    ],
)
def test_partial_results_are_made_with_neutral_elements(kind, dtype, neutral):
    plan = plan_of("R", "R" + ("+P0" if kind == "sum" else f"+P{kind}0"), (1,))
    held = simulate(plan, dict.fromkeys((0, 1), np.array([1], dtype)))
    assert [held[0][0], held[1][0]] == [1, neutral]
    assert held[1].dtype == dtype


@given(layout_pairs(new_partial=True, mixed_kinds=True), st.integers(0, 9))
def test_neutral_elements_change_no_result(pair, seed):
    try:
        plan = reshard(*pair)
    except ReshardError:
        return
    whole = np.random.default_rng(seed).integers(-3, 4, pair[0].shape).astype(np.float32)
    held = simulate(plan, shard(pair[0], whole, seed=seed))
    np.testing.assert_array_equal(assemble(pair[1], held), whole)


# Whatever the collectives


@given(layout_pairs(), st.integers(0, 9))
def test_all_ways_between_two_layouts_leave_the_same(pair, seed):
    whole = np.random.default_rng(seed).integers(-9, 9, pair[0].shape)
    shards = shard(pair[0], whole, seed=seed)
    for kinds in (COLLECTIVES, COLLECTIVES - {"exchange"}, COLLECTIVES - {"transpose"}, WHOLE_AXES):
        plan = reshard(*pair, collectives=kinds, max_local_elements=max(1, whole.size))
        np.testing.assert_array_equal(assemble(pair[1], simulate(plan, shards)), whole)


def test_the_shards_given_are_not_changed():
    shards = {d: np.arange(8) for d in (0, 1)}
    for dst in ("R", "S0", "R+P0"):
        simulate(plan_of("R+P0", dst), shards)
        simulate(plan_of("R", dst), shards)
    assert all((part == np.arange(8)).all() for part in shards.values())


# Errors


@pytest.mark.parametrize("devices", [(0,), (0, 1, 2)])
def test_rejects_missing_and_foreign_devices(devices):
    shards = dict.fromkeys(devices, np.zeros(8))
    with pytest.raises(
        ShardsError, match=r"one shard; got shards of .* for the mesh's range\(0, 2\)"
    ):
        simulate(plan_of("R", "S0"), shards)


def test_rejects_a_shard_of_another_shape():
    with pytest.raises(ShardsError, match=r"device 1 has \(2,\) instead of \(1,\) in \(2,\) as S0"):
        simulate(plan_of("S0", "S0", (2,)), {0: np.zeros(1), 1: np.zeros(2)})


def test_rejects_shards_of_several_dtypes():
    with pytest.raises(ShardsError, match="all shards have one dtype; got float32, float64"):
        simulate(plan_of("S0", "R", (2,)), {0: np.zeros(1), 1: np.zeros(1, np.float32)})


def test_a_step_that_does_not_say_how_partial_results_combine_is_refused():
    src = Layout((8,), LINE, Spec(((),), (Partial(0, "sum"),)))
    (step,) = reshard(src, Layout((8,), LINE, Spec.parse("R"))).steps
    unsaid = ReshardPlan(step.src, step.dst, (replace(step, reduction=None),))
    with pytest.raises(ReshardError, match="says how they combine; got"):
        simulate(unsaid, shard(src, np.ones(8)))
