"""The gradient of a max-pool is that of the primitive, and takes no memory besides."""

from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from frontends.jax.base._compat import JaxprEqn
from frontends.jax.base.pooling import can_unroll, unrolled
from frontends.jax.trace.local import run_locally
from jax import lax
from shardspec import Mesh, Spec

Shape = tuple[int, ...]


def equation_of(
    shape: Shape,
    window: Shape,
    strides: Shape,
    padding: Any,
    op: Any = lax.max,
    dtype: Any = jnp.float32,
) -> JaxprEqn:
    """The primitive that differentiates a pool."""
    ends = jnp.finfo(dtype) if jnp.dtype(dtype).name.endswith("fn") else None  # has no infinity
    low, high = (ends.min, ends.max) if ends else (-np.inf, np.inf)
    start = np.asarray(low if op is lax.max else high, dtype)
    pooled, pull = jax.vjp(
        lambda x: lax.reduce_window(x, start, op, window, strides, padding), jnp.zeros(shape, dtype)
    )
    equations = jax.make_jaxpr(pull)(pooled).jaxpr.eqns
    (found,) = [eqn for eqn in equations if eqn.primitive.name == "select_and_scatter_add"]
    return found


def shapes_of(equation: JaxprEqn) -> list[Shape]:
    return [v.aval.shape for v in equation.invars]


def run_primitive(equation: JaxprEqn, *operands: Any) -> Any:
    return jax.jit(lambda *args: equation.primitive.bind(*args, **equation.params))(*operands)


def run_unrolled(equation: JaxprEqn, source: Any, operand: Any) -> Any:
    assert can_unroll(equation.params)
    return jax.jit(lambda *args: unrolled(*args, equation.params))(source, operand)


def here(equation: JaxprEqn) -> Any:
    """The equation as a device runs it that has the whole of its operands."""
    specs = [Spec.parse("R" * len(shape)) for shape in shapes_of(equation)]
    return lambda *args: run_locally(equation, args, specs, specs[:1], Mesh((1,), ("x",)))[0]


@pytest.mark.parametrize("op", [lax.max, lax.min], ids=["max", "min"])
@pytest.mark.parametrize(
    ("window", "values"),
    [
        ((3,), (0.0, 1.0, 2.0, np.inf, -np.inf, np.nan)),
        ((2, 2), (0.0, 1.0, np.inf, -np.inf, np.nan)),
        ((1, 3, 2), (0.0, 1.0, np.nan)),
        ((2, 2, 2), (0.0, 1.0)),
        ((1,), (0.0, np.nan)),
    ],
    ids=str,
)
def test_of_each_window_that_there_is_the_primitives_element_is_chosen(
    op: Any, window: Shape, values: tuple[float, ...]
) -> None:
    tiles = np.array([*product(values, repeat=int(np.prod(window)))], np.float32)
    operand = tiles.reshape(-1, *window[1:])
    equation = equation_of(operand.shape, window, window, "VALID", op)
    shape = shapes_of(equation)[0]
    source = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    expected = run_primitive(equation, source, operand)
    assert np.count_nonzero(expected) == source.size
    np.testing.assert_array_equal(run_unrolled(equation, source, operand), expected)


@pytest.mark.parametrize(
    ("shape", "window", "strides", "padding"),
    [
        pytest.param((2, 9, 8, 3), (1, 3, 3, 1), (1, 2, 2, 1), "SAME", id="overlapping"),
        pytest.param((2, 9, 8, 3), (1, 3, 2, 1), (1, 1, 1, 1), "VALID", id="everywhere"),
        pytest.param((31,), (2,), (3,), "VALID", id="apart"),
        pytest.param((30,), (4,), (2,), ((3, 1),), id="padded before"),
        pytest.param((30,), (3,), (3,), ((0, 6),), id="windows outside"),
        pytest.param((31,), (2,), (2,), "VALID", id="one over"),
        pytest.param((31,), (2,), (2,), "SAME", id="one short"),
        pytest.param((3, 3, 3, 3), (2, 2, 2, 2), (1, 1, 1, 1), "SAME", id="all dims"),
    ],
)
@pytest.mark.parametrize("op", [lax.max, lax.min], ids=["max", "min"])
def test_gradients_are_added_in_the_primitives_order(
    shape: Shape, window: Shape, strides: Shape, padding: Any, op: Any
) -> None:
    equation = equation_of(shape, window, strides, padding, op)
    rng = np.random.default_rng(0)
    source = rng.normal(size=shapes_of(equation)[0]).astype(np.float32)
    for values in ([0, 1, 2], [-np.inf, 0, np.inf, np.nan]):
        operand = rng.choice(np.array(values, np.float32), shape)
        expected = run_primitive(equation, source, operand)
        np.testing.assert_array_equal(run_unrolled(equation, source, operand), expected)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e5m2", "float8_e4m3fn"])
@pytest.mark.parametrize("op", [lax.max, lax.min], ids=["max", "min"])
def test_padding_is_never_chosen_in_small_types(name: str, op: Any) -> None:
    dtype = jnp.dtype(name)
    equation = equation_of((2, 9, 9, 3), (1, 3, 3, 1), (1, 2, 2, 1), "SAME", op, dtype)
    source, operand = (
        np.random.default_rng(i).integers(-2, 3, size=shape).astype(dtype)
        for i, shape in enumerate(shapes_of(equation))
    )
    ours = run_unrolled(equation, source, operand)
    assert ours.dtype == dtype
    np.testing.assert_array_equal(
        np.asarray(ours, np.float32),
        np.asarray(run_primitive(equation, source, operand), np.float32),
    )


def test_large_windows_are_left_to_the_primitive() -> None:
    equation = equation_of((4, 34), (1, 17), (1, 17), "VALID")
    assert not can_unroll(equation.params)
    source, operand = (
        np.random.default_rng(0).normal(size=shape).astype(np.float32)
        for shape in shapes_of(equation)
    )
    expected = run_primitive(equation, source, operand)
    np.testing.assert_array_equal(here(equation)(source, operand), expected)


@pytest.mark.parametrize(
    ("window", "strides", "padding", "most"),
    [
        pytest.param((1, 2, 2, 1), (1, 2, 2, 1), "VALID", 0.01, id="tiles"),
        pytest.param((1, 4, 4, 1), (1, 4, 4, 1), "VALID", 0.02, id="large tiles"),
        pytest.param((1, 3, 3, 1), (1, 2, 2, 1), "SAME", 1.1, id="overlapping and padded"),
    ],
)
def test_no_places_are_laid_out(window: Shape, strides: Shape, padding: str, most: float) -> None:
    equation = equation_of((2, 64, 64, 16), window, strides, padding)
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes_of(equation)]
    memory = jax.jit(here(equation)).lower(*shapes).compile().memory_analysis()
    assert memory.temp_size_in_bytes <= most * memory.output_size_in_bytes
