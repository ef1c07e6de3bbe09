"""Every strategy that a rule allows must compute what the whole operator computes."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import shardspec
from frontends.jax import check_rules
from frontends.jax.base import _compat
from frontends.jax.lower.lower import partition_spec
from frontends.jax.rules.rules import flops_of, has_rule, rule_of, shares_of_whole, whole_share
from frontends.jax.rules.sorted_rows import (
    meshwright_multiply_groups,
    meshwright_multiply_rows,
)
from jax import lax
from jax._src.random.threefry2x32 import threefry2x32_p
from jax.ad_checkpoint import checkpoint_name
from shardspec import Mesh

MESH = Mesh((2, 2), ("x", "y"))


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def indices(high: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, high, shape).astype(np.int32)


def conv(x: Any, w: Any) -> Any:
    return lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def depthwise(x: Any, w: Any) -> Any:
    return lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=4
    )


def grouped(x: Any, w: Any) -> Any:
    return lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=2
    )


def kernel_gradient(x: Any, w: Any) -> Any:
    """A convolution with groups of its batch."""
    return jax.vjp(lambda w: depthwise(x, w), w)[1](x)


def pool(x: Any) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 1), (1, 2, 1), "VALID")


def pool_gradient(x: Any, g: Any) -> Any:
    """A maximum goes to where it was."""
    return jax.vjp(pool, x)[1](g)


def gradient_of_overlapping(x: Any, g: Any) -> Any:
    """The same where an element may be the largest of two windows."""
    windows = (1, 3, 1), (1, 2, 1), ((0, 0), (0, 1), (0, 0))
    return jax.vjp(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, *windows), x)[1](g)


def random_bits(high: Any, low: Any) -> Any:
    """Threefry's hash of a key and of positions."""
    return threefry2x32_p.bind(np.uint32(1), np.uint32(2), high, low)


A, B, C = numbers(4, 8), numbers(4, 8), numbers(8, 4)
BEGINS = np.array([[0, 1, 1, 4], [0, 0, 6, 6], [0, 2, 4, 5], [0, 1, 2, 3]], np.int32)
ENDS = np.array([[1, 1, 4, 6], [0, 6, 6, 6], [2, 4, 5, 6], [1, 2, 3, 4]], np.int32)

CASES: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "add": (lambda a, b: a + b, (A, B)),
    "add literal": (lambda a: a + 1.0, (A,)),
    "add broadcast": (lambda a, b: lax.add_p.bind(a, b), (A, numbers(1, 8))),
    "sub": (lambda a, b: a - b, (A, B)),
    "mul": (lambda a, b: a * b, (A, B)),
    "mul literal": (lambda a: a * 2.0, (A,)),
    "div": (lambda a, b: a / b, (A, B)),
    "div literal": (lambda a: a / 3.0, (A,)),
    "neg": (lambda a: -a, (A,)),
    "tanh": (jnp.tanh, (A,)),
    "max": (jnp.maximum, (A, B)),
    "integer_pow 1": (lambda a: lax.integer_pow(a, 1), (A,)),
    "integer_pow 3": (lambda a: lax.integer_pow(a, 3), (A,)),
    "convert float": (lambda a: a.astype(jnp.bfloat16), (A,)),
    "convert int": (lambda a: a.astype(jnp.int32), (A,)),
    "bitcast": (lambda a: lax.bitcast_convert_type(a, jnp.int32), (A,)),
    "bitcast to smaller": (lambda a: lax.bitcast_convert_type(a, jnp.int16), (A,)),
    "name": (lambda a: checkpoint_name(a, "saved"), (A,)),
    "select_n": (lambda p, a, b: lax.select_n(p, a, b), (A > 0, A, B)),
    "betainc": (lax.betainc, (1 + abs(A), 1 + abs(B), 1 / (1 + abs(A)))),
    "gradient of igamma": (jax.grad(lambda a, x: lax.igamma(a, x).sum()), (1 + abs(A), abs(B))),
    "clamp": (lambda a: lax.clamp(-0.5, a, 0.5), (A,)),
    "dot": (lambda a, c: a @ c, (A, C)),
    "dot batched": (
        lambda a, b: jnp.einsum("bhqd,bhkd->bhqk", a, b),
        (numbers(2, 4, 2, 8), numbers(2, 4, 4, 8)),
    ),
    "dot two contractions": (
        lambda a, b: jnp.einsum("btk,btn->kn", a, b),
        (numbers(4, 2, 8), numbers(4, 2, 4)),
    ),
    "conv": (conv, (numbers(4, 3, 3, 4), numbers(3, 3, 4, 8))),
    "conv depthwise": (depthwise, (numbers(4, 3, 3, 4), numbers(3, 3, 1, 4))),
    "conv grouped": (grouped, (numbers(4, 3, 3, 8), numbers(3, 3, 4, 8))),
    "conv depthwise gradient": (kernel_gradient, (numbers(4, 3, 3, 4), numbers(3, 3, 1, 4))),
    "transpose": (lambda a: a.transpose(2, 0, 1), (numbers(4, 2, 8),)),
    "reshape split": (lambda a: a.reshape(4, 2, 4), (A,)),
    "reshape merge": (lambda a: a.reshape(8, 4), (numbers(4, 2, 4),)),
    "reshape with dimensions": (
        lambda a: lax.reshape(a, (8, 4), dimensions=(2, 0, 1)),
        (numbers(4, 2, 4),),
    ),
    "reshape with dimensions, split": (
        lambda a: lax.reshape(a, (4, 2, 2, 2), dimensions=(1, 2, 0)),
        (numbers(4, 4, 2),),
    ),
    "reshape ones": (lambda a: a.reshape(4, 1, 8), (A,)),
    "squeeze": (lambda a: a.squeeze(1), (numbers(4, 1, 8),)),
    "broadcast_in_dim": (lambda a: lax.broadcast_in_dim(a, (4, 8, 2), (1,)), (numbers(8),)),
    "broadcast_in_dim one": (lambda a: lax.broadcast_in_dim(a, (4, 8), (0, 1)), (numbers(4, 1),)),
    "iota": (lambda: lax.broadcasted_iota(jnp.int32, (4, 8), 1), ()),
    "reduce_sum": (lambda a: a.sum(1), (A,)),
    "reduce_max": (lambda a: a.max(0), (A,)),
    "reduce_min": (lambda a: a.min((0, 1)), (A,)),
    "reduce_prod": (lambda a: a.prod(1), (A,)),
    "reduce_and": (lambda a: lax.reduce_and_p.bind(a, axes=(0,)), (A > 0,)),
    "argmax": (lambda a: lax.argmax(a, 1, jnp.int32), (A,)),
    "cumsum": (lambda a: lax.cumsum(a, 1), (A,)),
    "cummax": (lambda a: lax.cummax(a, 0), (A,)),
    "sort": (lambda a: lax.sort(a, dimension=1), (A,)),
    "split": (lambda a: lax.split(a, (4, 4), 1), (A,)),
    "concatenate": (lambda a, b: lax.concatenate([a, b], 0), (A, B)),
    "concatenate along numpy's dim": (lambda a, b: lax.concatenate([a, b], np.int64(0)), (A, B)),
    "rev": (lambda a: lax.rev(a, (1,)), (A,)),
    "pad zero": (lambda a: lax.pad(a, 0.0, ((0, 0, 0), (1, 1, 0))), (A,)),
    "pad one": (lambda a: lax.pad(a, 1.0, ((2, 0, 0), (0, 0, 0))), (A,)),
    "slice": (lambda a: lax.slice(a, (0, 2), (4, 6)), (A,)),
    "dynamic_slice": (
        lambda a, i: lax.dynamic_slice(a, (i, jnp.int32(0)), (2, 8)),
        (A, np.int32(1)),
    ),
    "dynamic_update_slice": (
        lambda a, u, i: lax.dynamic_update_slice(a, u, (i, jnp.int32(0))),
        (A, numbers(2, 8), np.int32(1)),
    ),
    "gather rows": (lambda a, i: a[i], (numbers(16, 8), indices(16, 4, 2))),
    "gather along": (
        lambda a, i: jnp.take_along_axis(a, i, 1),
        (A, indices(8, 4, 2)),
    ),
    "scatter-add rows": (lambda a, i, u: a.at[i].add(u), (numbers(16, 8), indices(16, 4), A)),
    "scatter rows": (
        lambda a, i, u: a.at[i].set(u),
        (numbers(16, 8), np.arange(4, dtype=np.int32), A),
    ),
    **{
        f"gather rows, {mode}": (
            lambda a, i, mode=mode: jnp.nan_to_num(a.at[i].get(mode=mode), nan=7.0),
            (numbers(16, 8), np.array([[3, 99, 15], [0, 7, 16]], np.int32)),
        )
        for mode in ("fill", "clip")
    },
    **{
        f"scatter-{'add' if adds else 'max'} rows, {mode}": (
            lambda a, i, u, mode=mode, adds=adds: (
                a.at[i].add(u, mode=mode) if adds else a.at[i].max(u, mode=mode)
            ),
            (numbers(16, 8), np.array([3, 99, 15, 3], np.int32), A),
        )
        for mode in ("drop", "clip")
        for adds in (True, False)
    },
    "gather elements": (
        lambda a, i, j: a[i, j],
        (numbers(16, 8), indices(16, 4), indices(8, 4)),
    ),
    "gather rows by bytes": (
        lambda a, i: lax.gather_p.bind(
            a,
            i,
            dimension_numbers=lax.GatherDimensionNumbers((1,), (0,), (0,)),
            slice_sizes=(1, 8),
            indices_are_sorted=False,
            unique_indices=False,
            mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS,
            fill_value=None,
        ),
        (numbers(16, 8), indices(16, 4, 1).astype(np.uint8)),
    ),
    "erf_inv": (lax.erf_inv, (A / 10,)),
    "reduce_precision": (lambda a: lax.reduce_precision(a, 5, 10), (A,)),
    "zeta": (lambda a: lax.zeta(a, 2.0), (A + 9.0,)),
    "scatter-max rows": (lambda a, i, u: a.at[i].max(u), (numbers(16, 8), indices(16, 4), A)),
    "pool": (pool, (numbers(4, 8, 4),)),
    "pool sum": (
        lambda a: lax.reduce_window(a, 0.0, lax.add, (1, 3), (1, 1), ((0, 0), (1, 1))),
        (A,),
    ),
    "pool gradient": (pool_gradient, (numbers(4, 8, 4), numbers(4, 4, 4))),
    "overlapping pool gradient": (gradient_of_overlapping, (numbers(4, 8, 4), numbers(4, 4, 4))),
    "random bits": (random_bits, (np.zeros((4, 8), np.uint32), indices(99, 4, 8).astype("uint32"))),
    "fft": (lambda a: jnp.real(jnp.fft.rfft(a)), (A,)),
    "complex": (lambda a, b: jnp.conj(lax.complex(a, b)), (A, B)),
    "eigh": (lambda a: lax.linalg.eigh(a), (np.eye(3) * 2 + np.ones((4, 3, 3), np.float32),)),
    "svd": (lambda a: lax.linalg.svd(a, compute_uv=False), (numbers(4, 3, 2),)),
    "lu": (lambda a: lax.linalg.lu(a)[0], (numbers(4, 3, 3),)),
    "qr": (lambda a: lax.linalg.qr(a, full_matrices=False), (numbers(4, 3, 2),)),
    "eig": (lambda a: lax.linalg.eig(a), (numbers(4, 3, 3),)),
    "schur": (lambda a: lax.linalg.schur(a), (numbers(4, 3, 3),)),
    "tridiagonal_solve": (
        lambda a, b: lax.linalg.tridiagonal_solve(a, a + 9, a, b),
        (numbers(4, 3), numbers(4, 3, 2)),
    ),
    "pivots": (lambda p: lax.linalg.lu_pivots_to_permutation(p, 4), (indices(3, 4, 3),)),
    "total order": (lambda a, b: lax.lt_to_p.bind(a, b), (A, B)),
    "reduce_xor": (lambda a: lax.reduce_xor(a, (1,)), (indices(9, 4, 8),)),
    "scatter-sub rows": (lambda a, i, u: a.at[i].subtract(u), (numbers(16, 8), indices(16, 4), A)),
    "top_k": (lambda a: lax.top_k(a, 2), (A,)),
    "cholesky": (
        lambda a: jax.lax.linalg.cholesky_p.bind(a),
        (np.eye(3, dtype=np.float32) + numbers(4, 1, 1) ** 2,),
    ),
    "triangular_solve": (
        lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True),
        (np.tril(numbers(4, 3, 3)) + 2 * np.eye(3, dtype=np.float32), numbers(4, 3, 2)),
    ),
    "scan": (
        lambda w, h, x: lax.scan(lambda h, x: (jnp.tanh(h @ w + x), h), h, x),
        (numbers(8, 8), A, numbers(3, 4, 8)),
    ),
    "scan that sums": (
        lambda g, h, x: lax.scan(lambda c, x: ((c[0] + x.T @ c[1], x * 0.5), x.sum(0)), (g, h), x),
        (numbers(8, 8), A, numbers(3, 4, 8)),
    ),
    "scan that only adds": (
        lambda g, x: lax.scan(lambda g, x: (g + jnp.outer(x, x), jnp.sin(x)), g, x),
        (numbers(8, 8), A),
    ),
    "scan that adds rows and elements": (
        lambda g, h, x: lax.scan(lambda c, x: ((c[0] + x.sum(), c[1] + x), x), (g, h), x),
        (numbers(), numbers(4), numbers(8, 4)),
    ),
    "while": (
        lambda x: lax.while_loop(lambda c: c[1] < 3, lambda c: (jnp.sin(c[0]), c[1] + 1), (x, 0)),
        (A,),
    ),
    "while of each": (
        jax.vmap(lambda x: lax.while_loop(lambda x: jnp.sum(abs(x)) > 1.0, lambda x: x / 2, x)),
        (A,),
    ),
    "cond": (
        lambda i, a, b: lax.cond(i > 0, lambda a, b: (a + b, a), lambda a, b: (a * b, b), a, b),
        (np.int32(1), A, B),
    ),
    "rows of groups": (
        lambda a, b, begins, ends: meshwright_multiply_rows(a, b, begins, ends, precision=None),
        (numbers(4, 6, 8), numbers(4, 8, 2), BEGINS, ENDS),
    ),
    "groups of rows": (
        lambda a, b, begins, ends: meshwright_multiply_groups(a, b, begins, ends, precision=None),
        (numbers(4, 6, 8), numbers(4, 6, 2), BEGINS, ENDS),
    ),
    "no rule": (lambda a: lax.linalg.hessenberg(a), (numbers(4, 4),)),
}


@pytest.mark.parametrize("case", CASES)
def test_every_strategy_equals_the_whole_operator(case: str) -> None:
    function, operands = CASES[case]
    tried = check_rules(function, *operands)
    assert bool(tried) == (case != "no rule")


def test_partial_sums_pass_what_is_linear_and_stop_at_literals() -> None:
    def linear(function: Callable[..., Any], *operands: np.ndarray) -> object:
        return rule_of(jax.make_jaxpr(function)(*operands).jaxpr.eqns[0]).linear

    assert linear(lambda a, b: a + b, A, B) == ((0, 1),)
    assert linear(lambda a: a + 1.0, A) == ()
    assert linear(lambda a: a * 2.0, A) == ((0,),)
    assert linear(lambda a: 2.0 / a, A) == ()


def test_a_primitive_without_a_rule_stays_whole() -> None:
    equation = jax.make_jaxpr(lambda a: lax.linalg.hessenberg(a))(numbers(4, 4)).jaxpr.eqns[0]
    assert not has_rule(equation.primitive)
    assert {factor.kind for factor in rule_of(equation).factors} == {"whole"}


def test_the_share_that_runs_whole_is_of_flops() -> None:
    def equations(function: Callable[..., Any]) -> list[Any]:
        return list(jax.make_jaxpr(function)(numbers(4, 4)).jaxpr.eqns)

    assert whole_share(equations(lambda a: a + a)) == 0.0
    assert whole_share(equations(lambda a: lax.linalg.hessenberg(a))) == 1.0
    assert whole_share(equations(lambda a: lax.linalg.hessenberg(a * 2.0))) == 0.5
    assert whole_share([]) == 0.0


def test_a_table_is_split_by_its_rows_and_a_loss_by_its_classes() -> None:
    def gathers(function: Callable[..., Any], *operands: np.ndarray) -> list[Any]:
        closed = _compat.inline_calls(jax.make_jaxpr(function)(*operands))
        return [e for e in closed.jaxpr.eqns if e.primitive.name in ("gather", "scatter-add")]

    (lookup,) = gathers(lambda t, i: t[i], numbers(16, 8), indices(16, 4))
    assert str(rule_of(lookup)).startswith("(b,c)(a,1)->(a,c) {a=4, b=16 sum, c=8}")
    assert "c=16 whole" in str(rule_of(lookup, masked=False))
    *_, back = gathers(jax.grad(lambda t, i: jnp.sum(t[i] ** 2)), numbers(16, 8), indices(16, 4))
    assert str(rule_of(back)).startswith("(b,c)(a,1)(a,c)->(b,c) {a=4 sum, b=16, c=8}")
    (pick,) = gathers(lambda a, i: jnp.take_along_axis(a, i, 1), A, indices(8, 4, 1))
    assert "8 sum" in str(rule_of(pick))
    (truths,) = gathers(lambda t, i: t[i], numbers(16, 8) > 0, indices(16, 4))
    assert "sum" not in str(rule_of(truths))  # truth values have none


def hessenberg(a: Any) -> Any:
    """An operator without a rule."""
    return lax.linalg.hessenberg(a)[0]


def test_flops_of_loops_and_branches_are_those_of_their_bodies() -> None:
    def first(function: Callable[..., Any]) -> Any:
        return jax.make_jaxpr(function)(numbers(4, 4)).jaxpr.eqns[-1]

    a_product = 2 * 4**3
    loop = first(lambda a: lax.scan(lambda x, _: (x @ x, None), a, None, length=7)[0])
    assert flops_of(loop) == 7 * a_product
    unknown = first(lambda a: lax.while_loop(lambda x: x[0, 0] < 1, lambda x: x @ x, a))
    assert a_product < flops_of(unknown) < a_product + 40  # the condition is computed, too
    branches = first(lambda a: lax.cond(a[0, 0] > 0, lambda x: x @ x, lambda x: x + 1, a))
    assert flops_of(branches) == a_product
    assert shares_of_whole([loop, branches]) == {}
    ruleless = first(lambda a: lax.scan(lambda x, _: (hessenberg(x + 1), None), a, None, 5)[0])
    assert shares_of_whole([ruleless]) == {"hessenberg": 0.5}


def test_a_grouped_convolution_is_parallel_in_its_groups() -> None:
    (equation,) = jax.make_jaxpr(depthwise)(numbers(4, 3, 3, 4), numbers(3, 3, 1, 4)).jaxpr.eqns
    parallel = [f.size for f in rule_of(equation).factors if f.kind == "parallel"]
    assert parallel == [4, 4]  # batch and channels


def test_flops_count_multiply_adds_twice() -> None:
    dot = jax.make_jaxpr(lambda a, c: a @ c)(A, C).jaxpr.eqns[0]
    assert flops_of(dot) == 2 * 4 * 8 * 4
    convolution = jax.make_jaxpr(conv)(*CASES["conv"][1]).jaxpr.eqns[0]
    assert flops_of(convolution) == 2 * (4 * 3 * 3 * 8) * (3 * 3 * 4)


def test_the_gradients_of_a_strided_convolution_take_as_much_as_itself() -> None:
    def strided(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(
            x, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def step(x: jax.Array, kernel: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.vjp(strided, x, kernel)[1](y)

    x, kernel, y = numbers(4, 8, 8, 3), numbers(3, 3, 3, 16), numbers(4, 4, 4, 16)
    convolutions = [
        flops_of(equation)
        for equation in jax.make_jaxpr(step)(x, kernel, y).jaxpr.eqns
        if equation.primitive.name == "conv_general_dilated"
    ]
    assert len(convolutions) >= 2
    assert set(convolutions) == {2 * y.size * kernel.size / 16}


def test_partition_spec_stacks_partial_sums_in_front() -> None:
    spec = shardspec.Spec.parse("S0R+P1")
    assert partition_spec(spec, MESH) == jax.sharding.PartitionSpec(("y",), ("x",), None)
