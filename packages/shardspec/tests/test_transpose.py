import numpy as np
import pytest
from hypothesis import given
from shardspec import Layout, LocalTranspose, Mesh, Spec, reshard, shard, simulate
from shardspec.testing import layout_pairs

SQUARE = Mesh((2, 2), ("x", "y"))


def step_between(src, dst, shape=(8, 8), mesh=SQUARE):
    (step,) = reshard(*(Layout(shape, mesh, Spec.parse(text)) for text in (src, dst))).steps
    return step


def test_parts_of_a_simple_step_are_what_numpy_splits():
    step = step_between("S0R", "RS0")
    local = np.arange(32).reshape(4, 8)
    np.testing.assert_array_equal(step.pack(0)(local), np.stack(np.split(local, 2, step.to_dim)))
    parts = np.arange(2 * 16).reshape(2, 4, 4)
    np.testing.assert_array_equal(step.unpack(0)(parts), np.concatenate(list(parts), step.dim))


def test_what_is_cut_and_joined_along_the_major_dim_stays_in_place():
    assert step_between("RR", "S0R").pack(0).is_reshape
    assert not step_between("RR", "RS0").pack(0).is_reshape
    assert step_between("S0R", "RR").unpack(0).is_reshape
    assert not step_between("RS0", "RR").unpack(0).is_reshape


@pytest.mark.parametrize(
    ("src", "dst", "packs", "unpacks"),
    [
        ("RR", "S0R", True, False),
        ("S0R", "RR", False, True),
        ("S0R", "RS0", True, True),
        ("RR+P0", "S0R", True, False),
        ("RR+P0", "RR", False, False),
        ("S0S1", "S1S0", False, False),
        ("S0S1", "RS01", False, False),
    ],
)
def test_only_steps_that_cut_pack_and_only_those_that_join_unpack(src, dst, packs, unpacks):
    step = step_between(src, dst)
    assert ((step.pack(0) is not None), (step.unpack(0) is not None)) == (packs, unpacks)


def test_uneven_parts_are_no_blocks():
    line = Mesh((4,), ("x",))
    assert step_between("S0", "R", (6,), line).unpack(0) is None
    assert step_between("R", "S0", (6,), line).pack(0) is None


def test_an_uneven_dim_that_stays_has_the_size_that_each_device_has():
    step = step_between("S0S1", "S0R", (5, 4))
    assert step.unpack(0).shape == (3, 4)
    assert step.unpack(3).shape == (2, 4)


@given(layout_pairs(sub_axes=True, strided=True))
def test_one_all_to_all_of_contiguous_parts_does_what_the_step_says(pair):
    """The collective itself knows no dims: row `i` of a device's parts goes to place `i`."""
    plan = reshard(*pair)
    whole = np.arange(np.prod(plan.src.shape, dtype=int)).reshape(plan.src.shape)
    for step in plan.steps:
        if step.kind != "all_to_all":
            continue
        src, dst = (Layout(s.shape, s.mesh, Spec(s.spec.dims)) for s in (step.src, step.dst))
        held = shard(src, whole)
        expected = shard(dst, whole)
        for group in step.groups:
            rows = [step.pack(device)(held[device]) for device in group]
            for place, device in enumerate(group):
                received = np.stack([row[place] for row in rows])
                np.testing.assert_array_equal(step.unpack(device)(received), expected[device])


def test_transposes_are_values_that_read_well():
    order = step_between("S0R", "RS0").pack(0)
    assert order == eval(repr(order))
    assert order == LocalTranspose((1, 4, 2, 4), (2, 0, 1, 3), (2, 4, 4))


def test_simulated_plans_agree_with_direct_slicing_after_packing():
    plan = reshard(*(Layout((8, 8), SQUARE, Spec.parse(s)) for s in ("S01R", "RS0")))
    whole = np.arange(64).reshape(8, 8)
    held = simulate(plan, shard(plan.src, whole))
    for device, expected in shard(plan.dst, whole).items():
        np.testing.assert_array_equal(held[device], expected)
