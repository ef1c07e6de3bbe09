import math

import numpy as np
import pytest
from costmodel import AlpaMesh, QuantityError, UnknownNameError
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Layout, Mesh, Spec, SubAxis, reshard, reshard_whole_axes

MESH = AlpaMesh(shape=(2, 4), alpha=(1.0, 2.0), beta=(1.0, 0.1))


@pytest.mark.parametrize(
    ("kind", "axis", "cost"),
    [
        # 1000 bytes, typed in from the formulas: axis 0 of 2 devices, axis 1 of 4.
        ("all_gather", 0, 1 + 500 + 0.1),
        ("all_gather", 1, 2 + 75 + 0.1),
        ("all_reduce", 0, 1 + 1000 + 0.01),
        ("all_reduce", 1, 2 + 150 + 0.01),
        ("reduce_scatter", 0, 1 + 500 + 0.001),
        ("reduce_scatter", 1, 2 + 75 + 0.001),
        ("all_to_all", 0, 1 + 250 + 0.001),
        ("all_to_all", 1, 2 + 0.1 * 3 / 16 * 1000 * 2 + 0.001),
    ],
)
def test_a_collective_costs_what_alpa_says(kind, axis, cost):
    assert MESH.cost(kind, 1000, (axis,)) == pytest.approx(cost, abs=1e-6)


@given(d=st.integers(1, 64), n=st.integers(0, 2**40), a=st.floats(0, 1e3), b=st.floats(0, 1e3))
def test_the_formulas_hold_for_every_axis(d, n, a, b):
    mesh = AlpaMesh((d,), (a,), (b,))
    expected = {
        "all_gather": a + b * (d - 1) / d * n + 0.1,
        "all_reduce": a + 2 * b * (d - 1) / d * n + 0.01,
        "reduce_scatter": a + b * (d - 1) / d * n + 0.001,
        "all_to_all": a + b * (d - 1) / d**2 * n * d / 2 + 0.001,
    }
    for kind, cost in expected.items():
        assert mesh.cost(kind, n, (0,)) == pytest.approx(cost, rel=1e-12, abs=1e-6)


def test_objectives_of_the_mlps_in_alpas_tests():
    # tests/shard_parallel/test_mlp.py: six layers, float32, batch 256 of 32 features on a 2x2 mesh
    # with alpha (1, 1) and beta (1, 0.1): per layer a kernel's and a bias's gradient along axis 0,
    # and between layers an activation along axis 1.
    mesh = AlpaMesh((2, 2), (1, 1), (1, 0.1))
    kernel = mesh.cost("all_reduce", 32 * 32 * 4 / 2, (0,))
    bias = mesh.cost("all_reduce", 32 * 4, (0,))
    activation = mesh.cost("all_reduce", 256 * 32 * 4 / 2, (1,))
    assert 6 * (kernel + bias) + 5 * activation == pytest.approx(21265.17, abs=1e-6)
    # Model parallel, batch 32 of 256 features on a line of four.
    line = AlpaMesh((1, 4), (1, 1), (1, 1))
    assert 5 * line.cost("all_reduce", 32 * 256 * 4, (1,)) == pytest.approx(245765.05, abs=1e-6)


def test_the_compiled_solver_rounds_all_but_the_constant():
    rounded = AlpaMesh((2, 4), (1.0, 2.0), (1.0, 0.1), rounded=True)
    assert rounded.cost("all_to_all", 1000, (1,)) == pytest.approx(40 + 0.001)  # 39.5 before
    assert rounded.cost("all_gather", 1010, (1,)) == pytest.approx(78 + 0.1)  # 77.75


def test_an_all_reduce_over_two_axes_has_the_larger_coefficients_of_both():
    assert MESH.cost("all_reduce", 800, (0, 1)) == pytest.approx(2 + 2 * 7 / 8 * 800 + 0.01)


def test_arrays_have_the_costs_of_their_elements():
    costs = MESH.cost("all_gather", np.array([0.0, 1000.0]), (1,))
    assert costs.tolist() == [MESH.cost("all_gather", n, (1,)) for n in (0, 1000)]


@pytest.mark.parametrize(
    ("src", "dst", "cost"),
    [
        ("S1R", "RR", 2 + 0.1 * 3 / 4 * 1024 + 0.1),
        ("RR+P1", "RR", 2 + 0.1 * 2 * 3 / 4 * 1024 + 0.01),
        ("RR+P1", "S1R", 2 + 0.1 * 3 / 4 * 1024 + 0.001),
        ("S1R", "RS1", 2 + 0.1 * 3 / 16 * 1024 * 2 + 0.001),
        ("RR", "S1R", 0.0),
    ],
)
def test_a_step_costs_what_its_collective_does(src, dst, cost):
    mesh = Mesh((2, 4), ("x", "y"))
    layouts = (Layout((16, 16), mesh, Spec.parse(text)) for text in (src, dst))
    (step,) = reshard_whole_axes(*layouts).steps
    assert MESH.step_cost(step, 4) == pytest.approx(cost, abs=1e-6)


def test_steps_that_alpa_does_not_consider_are_out_of_the_question():
    square, line = Mesh((2, 2), ("x", "y")), Mesh((4,), ("x",))
    (swap,) = reshard(
        *(Layout((16, 16), square, Spec.parse(text)) for text in ("S0S1", "S1S0"))
    ).steps
    (part,) = reshard(
        Layout((16, 16), line, Spec(((SubAxis(0, 1, 2),), ()))),
        Layout((16, 16), line, Spec.parse("RR")),
    ).steps
    assert AlpaMesh((2, 2), (1, 1), (1, 1)).step_cost(swap, 4) == math.inf
    assert AlpaMesh((4,), (1,), (1,)).step_cost(part, 4) == math.inf


def test_rejects_a_collective_without_a_price():
    message = "Alpa prices all_gather, all_reduce, reduce_scatter, all_to_all; got 'broadcast'"
    with pytest.raises(UnknownNameError, match=message):
        MESH.cost("broadcast", 1, (0,))


def test_rejects_coefficients_that_do_not_match_the_axes():
    message = r"one beta for each axis; got shape=\(2, 2\), alpha=\(1, 1\) and beta=\(1,\)"
    with pytest.raises(QuantityError, match=message):
        AlpaMesh((2, 2), (1, 1), (1,))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (((0,), (1,), (1,)), "an axis's devices is a finite whole number >= 1; got 0"),
        (((2,), (-1,), (1,)), "alpha is a finite number >= 0; got -1"),
        (((2,), (1,), (math.inf,)), "beta is a finite number >= 0; got inf"),
    ],
)
def test_rejects_figures_out_of_range(fields, message):
    with pytest.raises(QuantityError, match=message):
        AlpaMesh(*fields)


@pytest.mark.parametrize(
    ("axes", "shown"),
    [
        ((), r"\(\)"),
        ((5,), r"\(5,\)"),
        ((-1,), r"\(-1,\)"),
        ((0, 0), r"\(0, 0\)"),
        ("0", r"\('0',\)"),
    ],
)
def test_rejects_axes_that_are_none_not_there_or_named_twice(axes, shown):
    message = f"axes of an Alpa mesh are one or more different ones of 0, 1; got {shown}"
    with pytest.raises(QuantityError, match=message):
        MESH.cost("all_reduce", 8, axes)


@pytest.mark.parametrize("n_bytes", [-1, math.nan, "8", None, 10**400])
def test_rejects_bytes_that_are_no_amount(n_bytes):
    with pytest.raises(QuantityError, match="n_bytes is a finite number >= 0; got"):
        MESH.cost("all_reduce", n_bytes, (0,))
