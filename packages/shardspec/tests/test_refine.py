import itertools
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from shardspec import Layout, Mesh, Spec, SubAxis
from shardspec.refine.refine import FREE, PARTIAL, refine
from shardspec.testing import EVERY_RULE, every_spec, layout_pairs

EVERYTHING = layout_pairs(
    max_length=8, new_partial=True, sub_axes=True, strided=True, mixed_kinds=True
)
ANY_SIZE = layout_pairs(even=False, chunking=EVERY_RULE)


def units_of(src, dst, shape, mesh):
    return refine(*(Layout(shape, mesh, Spec.parse(text)) for text in (src, dst)))


def check_units(units, src, dst):
    """Both layouts are the atoms on their places, and no two atoms share a digit."""
    assert units.at(units.src, units.src_kinds).is_equivalent(src)
    assert units.at(units.dst, units.dst_kinds).is_equivalent(dst)
    for places, kinds in ((units.src, units.src_kinds), (units.dst, units.dst_kinds)):
        standing = [place for place in places if place >= 0]
        assert len(set(standing)) == len(standing)
        for place, size, kind in zip(places, units.sizes, kinds, strict=True):
            assert place >= 0 or place in (FREE, PARTIAL)
            assert place < 0 or units.digits[place] == size
            assert (kind is not None) == (place == PARTIAL)


@given(EVERYTHING)
def test_atoms_on_digits_are_the_two_layouts(pair):
    units = refine(*pair)
    assume(units is not None)
    check_units(units, *pair)


@given(ANY_SIZE)
def test_atoms_on_digits_and_dims_left_out_are_the_two_layouts(pair):
    units = refine(*pair)
    assume(units is not None)
    check_units(units, *pair)


@given(EVERYTHING)
def test_atoms_make_up_the_mesh_and_digits_the_dims(pair):
    units = refine(*pair)
    assume(units is not None)
    assert units.sizes == [pair[0].mesh.length(atom) for atom in units.atoms]
    assert math.prod(units.sizes) == pair[0].mesh.size
    for n, digits, left in zip(pair[0].shape, units.order, units.left, strict=True):
        assert math.prod(units.digits[digit] for digit in digits) * left == n
    assert sorted(itertools.chain(*units.order)) == list(range(len(units.digits)))


@given(EVERYTHING, st.data())
def test_a_carved_digit_changes_no_layout(pair, data):
    units = refine(*pair)
    assume(units is not None)
    size = data.draw(st.integers(2, 4))
    left = list(units.left)
    digit = units.carve(size)
    if digit is None:
        assert units.left == left
        assert not any(n and n % size == 0 for n in left)
    else:
        assert units.digits[digit] == size
        assert math.prod(units.left) * size == math.prod(left)
    check_units(units, *pair)


@given(layout_pairs(), st.data())
def test_other_orders_of_devices_have_the_same_units(pair, data):
    mesh = pair[0].mesh
    ids = tuple(data.draw(st.permutations(mesh.device_ids)))
    other = Mesh(mesh.shape, mesh.axis_names, ids)
    moved = refine(*(Layout(layout.shape, other, layout.spec) for layout in pair))
    units = refine(*pair)
    assert (units is None) == (moved is None)
    if units is not None:
        found, expected = (
            (u.atoms, u.digits, u.order, u.left, u.src, u.dst) for u in (moved, units)
        )
        assert found == expected


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("shape", [(2, 2), (4, 2), (8, 2)], ids=lambda shape: f"{shape[0]}x2")
def test_axes_of_powers_of_two_always_have_common_units(shape, rank):
    mesh = Mesh(shape, ("x", "y"))
    layouts = [Layout((16,) * rank, mesh, spec) for spec in every_spec(mesh, rank)]
    for src, dst in itertools.product(layouts, layouts):
        units = refine(src, dst)
        assert units is not None
        check_units(units, src, dst)


def test_an_axis_is_cut_where_the_other_layout_cuts_its_dim():
    units = units_of("S01", "S10", (8,), Mesh((4, 2), ("x", "y")))
    assert units.atoms == [SubAxis(0, 1, 2), SubAxis(0, 2, 2), 1]
    assert (units.digits, units.order, units.left) == ([2, 2, 2], [[0, 1, 2]], [1])
    assert (units.src, units.dst) == ((0, 1, 2), (1, 2, 0))


def test_partial_results_cut_an_axis_as_well():
    units = units_of("R+P0", "R+P(0:(1)2)", (8,), Mesh((4,), ("x",)))
    assert units.atoms == [SubAxis(0, 1, 2), SubAxis(0, 2, 2)]
    assert (units.src, units.dst) == ((PARTIAL, PARTIAL), (PARTIAL, FREE))
    assert (units.src_kinds, units.dst_kinds) == (("sum", "sum"), ("sum", None))


@pytest.mark.parametrize(
    ("src", "dst", "shape", "mesh"),
    [
        ("S0", "S1", (6,), (2, 3)),
        ("S(0:(1)2)", "S(0:(1)3)", (6,), (6,)),
        ("S[3]0", "S0", (12,), (2,)),
        ("S0S1", "S1S0", (36, 36), (4, 6)),
    ],
)
def test_cuts_that_do_not_nest_have_no_common_units(src, dst, shape, mesh):
    assert units_of(src, dst, shape, Mesh(mesh, tuple("xyz"[: len(mesh)]))) is None


def test_an_uneven_dim_is_left_out_with_its_axes_if_it_stays():
    mesh = Mesh((2, 2), ("x", "y"))
    units = units_of("S0S1", "S0R", (5, 4), mesh)
    assert (units.atoms, units.left) == ([1], [-1, 2])
    assert units.at(units.dst, units.dst_kinds).spec == Spec.parse("S0R")
    assert units_of("S0S1", "RS1", (5, 4), mesh) is None


def test_an_uneven_dim_cut_by_another_rule_does_not_stay():
    mesh = Mesh((2, 2), ("x", "y"))
    ceil, balanced = (Layout((5,), mesh, Spec.parse("S01"), rule) for rule in ("ceil", "balanced"))
    assert refine(ceil, balanced) is None
    assert refine(balanced, balanced) is not None


def test_axes_of_length_1_are_no_atoms():
    units = units_of("S0R+P2", "S1R", (4, 4), Mesh((1, 1, 2), ("x", "y", "z")))
    assert (units.atoms, units.src, units.dst) == ([2], (PARTIAL,), (FREE,))
