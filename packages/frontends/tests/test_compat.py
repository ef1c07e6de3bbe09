"""Every private corner of JAX that we lean on still does what we lean on it for."""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from frontends.jax.base import _compat
from frontends.jax.trace.prng import KeyExpansion
from jax import lax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.extend.core import jaxpr_as_fun
from launching import run

X = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)


@jax.custom_jvp
def shifted(x: Any) -> Any:
    return jnp.sin(x)


@shifted.defjvp
def shifted_jvp(primals: Any, tangents: Any) -> Any:
    return shifted(primals[0]), tangents[0] * jnp.cos(primals[0])


@jax.custom_vjp
def doubled(x: Any) -> Any:
    return jnp.sin(x)


doubled.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (2 * g * jnp.cos(x),))


@jax.custom_batching.custom_vmap
def batched_by_hand(x: Any) -> Any:
    return jnp.sin(x)


batched_by_hand.def_vmap(lambda _, is_batched, x: (jnp.sin(x), is_batched[0]))


def halved(x: Any) -> Any:
    return jax.custom_derivatives.linear_call(
        lambda r, x: x / r, lambda r, g: g / r, jnp.float32(2), x
    )


@custom_partitioning
def as_gspmd_likes(x: Any) -> Any:
    return jnp.sin(x)


as_gspmd_likes.def_partition(
    partition=lambda *_: None,
    infer_sharding_from_operands=lambda *_: None,
    sharding_rule="i j -> i j",
)


def nested(x: Any) -> Any:
    inner = jax.jit(lambda x: shifted(x) + jnp.asarray(X))
    return jax.checkpoint(jax.jit(lambda x: doubled(inner(x)) @ inner(x)))(x).sum()


def kinds(closed: _compat.ClosedJaxpr) -> list[str]:
    return [equation.primitive.name for equation in closed.jaxpr.eqns]


def test_inlining_leaves_no_call_and_the_same_results() -> None:
    function = jax.value_and_grad(nested)
    closed = jax.make_jaxpr(function)(X)
    flat = _compat.inline_calls(closed)
    calls = set(_compat.BODY_OF_CALL)
    assert not calls.isdisjoint(kinds(closed))
    assert calls.isdisjoint(kinds(flat))
    for ours, theirs in zip(jaxpr_as_fun(flat)(X), function(X), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_inlining_knows_every_call_that_jax_has() -> None:
    calls = {
        "jit": jax.jit(jnp.sin),
        "custom_jvp": shifted,
        "custom_vjp": doubled,
        "checkpoint": jax.checkpoint(jnp.sin),
        "relu": jax.nn.relu,
        "gradient of checkpoint": jax.grad(lambda x: jax.checkpoint(jnp.sin)(x).sum()),
        "composite": lax.composite(jnp.sin, "sine"),
        "custom_vmap": batched_by_hand,
        "linear_call": halved,
        "custom_partitioning": as_gspmd_likes,
        "vmapped custom_vjp": jax.vmap(doubled),
        "gradient of vmapped": jax.grad(lambda x: jax.vmap(doubled)(x).sum()),
    }
    for name, function in calls.items():
        flat = _compat.inline_calls(jax.make_jaxpr(function)(X))
        for equation in flat.jaxpr.eqns:
            programs = [p for p in equation.params.values() if hasattr(p, "eqns")]
            assert not programs, f"{name} leaves {equation.primitive}"
        assert set(_compat.BODY_OF_CALL).isdisjoint(kinds(flat)), name
        np.testing.assert_allclose(jaxpr_as_fun(flat)(X)[0], function(X), rtol=1e-5)


def test_inlining_renames_what_is_called_twice() -> None:
    inner = jax.jit(lambda x: jnp.sin(x) + 1)
    flat = _compat.inline_calls(jax.make_jaxpr(lambda x: inner(inner(x)))(X))
    made = [v for equation in flat.jaxpr.eqns for v in equation.outvars]
    assert len(made) == len(set(made)) == 4


def test_name_stacks_of_calls_and_bodies_are_joined() -> None:
    flat = _compat.inline_calls(jax.make_jaxpr(jax.grad(nested))(X))
    forward = [e for e in flat.jaxpr.eqns if not _compat.is_backward(e)]
    backward = [e for e in flat.jaxpr.eqns if _compat.is_backward(e)]
    assert backward
    assert {"dot_general"} <= {e.primitive.name for e in backward}
    assert all(_compat.is_differentiated(e) for e in backward)
    assert any(_compat.is_differentiated(e) for e in forward)


def test_what_is_outside_of_a_gradient_is_not_differentiated() -> None:
    flat = _compat.inline_calls(
        jax.make_jaxpr(lambda x: jnp.exp(jax.grad(lambda x: jnp.sin(x).sum())(jnp.tan(x))))(X)
    )
    marks = {e.primitive.name: _compat.is_differentiated(e) for e in flat.jaxpr.eqns}
    assert not marks["tan"]
    assert not marks["exp"]
    assert marks["cos"]


def test_dead_code_goes_and_inputs_stay() -> None:
    closed = jax.make_jaxpr(lambda x, y: (jnp.sin(x), jnp.cos(y))[0])(X, X)
    alive = _compat.eliminate_dead_code(closed)
    assert kinds(closed) == ["sin", "cos"]
    assert kinds(alive) == ["sin"]
    assert len(alive.jaxpr.invars) == 2


def test_repeated_equations_are_found_within_a_phase_only() -> None:
    closed = jax.make_jaxpr(lambda x: jnp.sin(x) + jnp.sin(x) + lax.neg(jnp.sin(x)))(X)
    sines = [i for i, kind in enumerate(kinds(closed)) if kind == "sin"]
    same = _compat.repeated_equations(closed, [0] * len(closed.jaxpr.eqns))
    assert same == {sines[1]: sines[0], sines[2]: sines[0]}
    phases = [int(i >= sines[2]) for i in range(len(closed.jaxpr.eqns))]
    assert _compat.repeated_equations(closed, phases) == {sines[1]: sines[0]}
    merged = _compat.without_repeated(closed, same)
    assert kinds(merged).count("sin") == 1
    np.testing.assert_allclose(jaxpr_as_fun(merged)(X)[0], np.sin(X), rtol=1e-6)


def test_equations_with_other_literals_or_parameters_are_not_repeated() -> None:
    def function(x: Any) -> Any:
        return x * 2.0, x * 3.0, x.sum(0), x.sum(1), lax.integer_pow(x, 2), lax.integer_pow(x, 3)

    closed = jax.make_jaxpr(function)(X)
    assert _compat.repeated_equations(closed, [0] * len(closed.jaxpr.eqns)) == {}


def test_constants_are_not_repeated() -> None:
    closed = jax.make_jaxpr(lambda x: (x + jnp.arange(4.0), x * jnp.arange(4.0)))(X)
    flat = _compat.inline_calls(closed)
    assert _compat.repeated_equations(flat, [0] * len(flat.jaxpr.eqns)) == {}


def test_binding_runs_an_equation_with_other_parameters() -> None:
    closed = jax.make_jaxpr(lambda x: lax.broadcast_in_dim(x, (4, 4), (1,)))(X[0])
    (equation,) = closed.jaxpr.eqns
    (whole,) = _compat.bind(equation, [X[0]], dict(equation.params))
    assert whole.shape == (4, 4)
    (part,) = _compat.bind(equation, [X[0]], {**equation.params, "shape": (2, 4)})
    assert part.shape == (2, 4)
    (several,) = jax.make_jaxpr(lambda x: lax.split(x, (1, 3)))(X).jaxpr.eqns
    assert len(_compat.bind(several, [X], dict(several.params))) == 2


def test_binding_runs_control_flow() -> None:
    function = lambda x: lax.fori_loop(0, 3, lambda i, y: y * x, x)  # noqa: E731
    closed = jax.make_jaxpr(function)(X)
    values: dict[Any, Any] = dict(zip(closed.jaxpr.invars, [X], strict=True))
    for equation in closed.jaxpr.eqns:
        operands = [v.val if isinstance(v, _compat.Literal) else values[v] for v in equation.invars]
        results = _compat.bind(equation, operands, dict(equation.params))
        values.update(zip(equation.outvars, results, strict=True))
    np.testing.assert_allclose(values[closed.jaxpr.outvars[0]], X**4, rtol=1e-5)


def test_programs_without_keys_draw_the_same_numbers() -> None:
    def function(data: Any) -> Any:
        key = jax.random.wrap_key_data(data)
        first, second = jax.random.split(key)
        return jax.random.normal(first, (3,)), jax.random.key_data(jax.random.fold_in(second, 7))

    data = jax.random.key_data(jax.random.key(1))
    raw = _compat.inline_calls(jax.make_jaxpr(function)(data), KeyExpansion())
    atoms = [a for e in raw.jaxpr.eqns for a in (*e.invars, *e.outvars)]
    assert not any(jax.dtypes.issubdtype(a.aval.dtype, jax.dtypes.extended) for a in atoms)
    for ours, theirs in zip(jaxpr_as_fun(raw)(data), function(data), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_it_is_known_whether_jax_has_started() -> None:
    program = (
        "import jax; from frontends.jax.base import _compat; before = _compat.is_initialized(); "
        "jax.devices(); print(before, _compat.is_initialized())"
    )
    ended = run([sys.executable, "-c", program], deadline_s=300)
    assert ended.output.split()[-2:] == ["False", "True"]
