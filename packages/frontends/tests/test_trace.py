"""A traced step has three phases, the user's names, and the numbers of the whole batch."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import autoshard
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from frontends.errors import BatchError, UnsupportedStepError
from frontends.jax.testing import (
    EXAMPLES,
    adamw,
    assert_same,
    clipped,
    mlp,
    run_in_microbatches,
    sgd,
    tied,
)
from frontends.jax.trace.trace import Trace, trace
from frontends.step.step import APPLY, BACKWARD, FORWARD

X = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(4, 4)).astype(np.float32)


def kinds(traced: Trace, phase: int) -> Counter[str]:
    return Counter(op.kind for op in traced.step.graph.operators if op.phase == phase)


def traced(function: Callable[..., Any], *arguments: Any, microbatches: int = 2) -> Trace:
    return trace(function, arguments, batch_argnums=(-1,), microbatches=microbatches)


@pytest.mark.parametrize("microbatches", [2, 4])
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_graph_computes_what_the_step_computes(name: str, microbatches: int) -> None:
    example = EXAMPLES[name]()
    found = example.trace(microbatches)
    autoshard.verify(found.step.graph)
    ours = jax.jit(lambda *arguments: run_in_microbatches(found, arguments))(*example.arguments)
    assert_same(ours, jax.jit(example.function)(*example.arguments))


def test_phases_are_found_without_marks() -> None:
    found = adamw().trace()
    forward, backward, apply = (kinds(found, phase) for phase in (FORWARD, BACKWARD, APPLY))
    assert forward["dot_general"] == 4
    assert forward["tanh"] == 4
    assert backward["dot_general"] == 7  # four weights' gradients, three inputs'
    assert not apply["dot_general"]
    assert apply["sqrt"] == 8  # Adam's, one for each parameter
    assert not forward["sqrt"] + backward["sqrt"]


def test_what_feeds_the_loss_is_compute_and_what_reads_gradients_is_apply() -> None:
    def step(w: Any, x: Any) -> Any:
        x = jnp.sin(x)
        value, gradient = jax.value_and_grad(lambda w: jnp.sum(x @ w))(w)
        return w - jnp.exp(gradient), jnp.cos(value)

    found = traced(step, W, X)
    assert kinds(found, FORWARD)["sin"] == 1
    assert kinds(found, APPLY)["exp"] == 1
    assert kinds(found, APPLY)["cos"] == 1


def test_arguments_are_named_as_the_user_would_write_them() -> None:
    names = [a.name for a in tied().trace().arguments]
    assert names == [
        "params['embedding']",
        "params['hidden'][0]",
        "params['hidden'][1]",
        "params['hidden'][2]",
        "batch[0]",
        "batch[1]",
    ]
    assert "opt_state[0].mu[1]['w']" in [a.name for a in adamw().trace().arguments]


def test_arguments_without_a_name_get_their_number() -> None:
    def step(*everything: Any) -> Any:
        return sgd(lambda w, x: jnp.sum(x @ w))(*everything)

    names = [a.name for a in traced(step, W, X).arguments]
    assert len(set(names)) == 2
    assert names[1] == "argument1"


def test_roles_tell_parameters_from_optimizer_state_and_batch() -> None:
    found = adamw().trace()
    roles = {v.name: v.role for v in found.step.graph.values}
    assert roles["params[0]['w']"] == "parameter"
    assert roles["opt_state[0].mu[0]['w']"] == "optimizer_state"
    assert roles["batch['x']"] == "batch"


def test_results_are_stored_where_the_state_was() -> None:
    found = adamw().trace()
    aliases = {o.alias for o in found.step.graph.outputs if o.alias is not None}
    state = {a.name for a in found.arguments if not a.is_batch}
    assert aliases == state
    assert [o.whole for o in found.step.graph.outputs if o.alias is None] == [True]  # the loss


@pytest.mark.parametrize("form", ["state alone", "dict", "nested", "dict of dicts"])
def test_state_is_matched_in_whatever_the_step_returns(form: str) -> None:
    def loss(params: Any, x: Any) -> Any:
        return jnp.sum(jnp.tanh(x @ params["w"]) + params["b"])

    def step(state: Any, x: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(state["params"], x)
        params = jax.tree.map(lambda p, g: p - g, state["params"], gradient)
        new = {"params": params, "count": state["count"] + 1}
        match form:
            case "state alone":
                return new
            case "dict":
                return {"loss": value, "state": new}
            case "nested":
                return (new["count"], (value, [new["params"]]))
            case _:
                return {"metrics": {"loss": value}, **new}

    state = {"params": {"w": W, "b": W[0]}, "count": np.int32(0)}
    found = traced(step, state, X)
    aliases = {o.alias for o in found.step.graph.outputs if o.alias is not None}
    assert aliases == {"state['params']['w']", "state['params']['b']", "state['count']"}


def test_two_results_may_be_one_value() -> None:
    def step(w: Any, x: Any) -> Any:
        value, gradient = jax.value_and_grad(lambda w: jnp.sum(jnp.tanh(x @ w)))(w)
        new = w - gradient
        return new, value, value, new, w, 1.0

    found = traced(step, W, X)
    autoshard.verify(found.step.graph)
    assert_same(run_in_microbatches(found, (W, X)), jax.jit(step)(W, X))


def test_repeated_equations_are_merged_within_a_phase_but_constants_are_not() -> None:
    def loss(w: Any, x: Any) -> Any:
        mask = jnp.tril(jnp.ones((4, 4)))
        again = jnp.tril(jnp.ones((4, 4)))
        return jnp.sum(jnp.sin(x @ w) @ mask) + jnp.sum(jnp.sin(x @ w) @ again @ again)

    found = traced(sgd(loss), W, X)
    assert kinds(found, FORWARD)["sin"] == 1
    assert kinds(found, FORWARD)["iota"] == 4
    assert_same(run_in_microbatches(found, (W, X)), sgd(loss)(W, X))


def test_rematerialisation_computes_again_in_backward() -> None:
    def loss(w: Any, x: Any, wrap: Callable[..., Any]) -> Any:
        block = wrap(lambda x: jnp.sin(jnp.sin(x @ w) @ w))
        return jnp.sum(block(block(x)))

    plain = traced(sgd(lambda w, x: loss(w, x, lambda f: f)), W, X)
    remat = traced(sgd(lambda w, x: loss(w, x, jax.checkpoint)), W, X)
    assert kinds(plain, FORWARD)["sin"] == kinds(remat, FORWARD)["sin"] == 4
    assert kinds(plain, BACKWARD)["sin"] == 0
    assert kinds(remat, BACKWARD)["sin"] >= 2
    step = sgd(lambda w, x: loss(w, x, jax.checkpoint))
    assert_same(run_in_microbatches(remat, (W, X)), step(W, X))


@jax.custom_jvp
def softplus(x: Any) -> Any:
    return jnp.log1p(jnp.exp(x))


@softplus.defjvp
def softplus_jvp(primals: Any, tangents: Any) -> Any:
    return softplus(primals[0]), tangents[0] * jax.nn.sigmoid(primals[0])


@jax.custom_vjp
def doubled(x: Any) -> Any:
    return jnp.sin(x)


doubled.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (2 * g * jnp.cos(x),))


def test_calls_are_inlined_and_their_phases_found() -> None:
    inner = jax.jit(lambda w, x: doubled(softplus(x @ w)))

    def loss(w: Any, x: Any) -> Any:
        return jnp.sum(jax.nn.relu(jax.jit(inner)(w, x)))

    found = traced(jax.jit(sgd(loss)), W, X)
    calls = {"jit", "pjit", "custom_jvp_call", "custom_vjp_call", "closed_call"}
    assert calls.isdisjoint(op.kind for op in found.step.graph.operators)
    assert kinds(found, BACKWARD)["cos"] == 1
    assert_same(run_in_microbatches(found, (W, X)), sgd(loss)(W, X))


def test_arrays_that_the_step_closes_over_are_constants() -> None:
    table = jnp.asarray(W)
    found = traced(sgd(lambda w, x: jnp.sum(jnp.tanh(x @ table @ w))), W, X)
    (name,) = found.constants
    np.testing.assert_array_equal(found.constants[name], W)
    assert name in found.step.graph.inputs


def test_python_numbers_stay_weakly_typed() -> None:
    def step(w: Any, rate: Any, x: Any) -> Any:
        return w - rate * jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w)))(w)

    w, x = jnp.asarray(W, jnp.bfloat16), jnp.asarray(X, jnp.bfloat16)
    found = traced(step, w, 0.1, x)
    assert found.step.graph.value(found.results[0]).dtype == "bfloat16"


def test_the_fingerprint_tells_steps_apart() -> None:
    example = mlp()
    assert example.trace(2).step.fingerprint == mlp().trace(2).step.fingerprint
    assert example.trace(2).step.fingerprint != example.trace(4).step.fingerprint
    assert example.trace(2).step.fingerprint != mlp(width=16).trace(2).step.fingerprint
    assert example.trace(2).step.fingerprint != clipped().trace(2).step.fingerprint


def test_shapes_alone_are_enough() -> None:
    example = adamw()
    shapes = jax.eval_shape(lambda *a: a, *example.arguments)
    found = trace(example.function, shapes, batch_argnums=(2,), microbatches=2)
    assert found.step == example.trace(2).step


LINEAR = sgd(lambda w, x: jnp.sum(jnp.tanh(x @ w)))


@pytest.mark.parametrize(
    ("microbatches", "message"),
    [
        (3, r"multiple of microbatches; got x of shape \(8, 4\) and microbatches=3"),
        (16, r"multiple of microbatches"),
        (0, r"microbatches must be at least 1; got 0"),
        (-2, r"microbatches must be at least 1; got -2"),
    ],
)
def test_a_batch_is_cut_into_equal_parts(microbatches: int, message: str) -> None:
    def step(w: Any, x: Any) -> Any:
        return LINEAR(w, x)

    with pytest.raises(BatchError, match=message):
        traced(step, W, X, microbatches=microbatches)


def test_numbers_and_keys_of_a_batch_are_the_same_for_all_its_examples() -> None:
    def step(w: Any, batch: Any) -> Any:
        x = batch["x"] + jax.random.normal(batch["key"], batch["x"].shape)
        loss = sgd(lambda w, x: jnp.sum(jnp.tanh(x @ w)) / batch["n"] + batch["penalty"] * w.sum())
        return loss(w, x)

    batch = {"n": np.int32(8), "x": X, "penalty": 0.1, "key": jax.random.key(0)}
    found = traced(step, W, batch)
    assert {a.name for a in found.arguments if a.is_fed} == {
        "batch['n']",
        "batch['penalty']",
        "batch['key']",
    }
    assert_same(run_in_microbatches(found, (W, batch)), step(W, batch))


def test_rejects_microbatches_without_a_batch() -> None:
    with pytest.raises(BatchError, match=r"no argument holds one: name it by batch_argnums"):
        trace(LINEAR, (W, X), batch_argnums=(), microbatches=2)


@pytest.mark.parametrize("number", [2, -3, 5])
def test_rejects_a_batch_argument_that_is_not_there(number: int) -> None:
    with pytest.raises(BatchError, match=rf"2 arguments; got batch_argnums=\({number},\)"):
        trace(LINEAR, (W, X), batch_argnums=(number,), microbatches=2)


def test_rejects_a_step_that_returns_nothing_of_its_gradient() -> None:
    with pytest.raises(
        UnsupportedStepError, match=r"nothing of the gradient of .*test_trace.py.*: return the"
    ):
        traced(lambda w, x: LINEAR(w, x)[1], W, X)


def test_gradients_are_no_state_and_what_is_computed_of_state_is() -> None:
    def gradient_of(w: Any, x: Any) -> Any:
        return jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)

    def clipped(w: Any, x: Any) -> Any:
        gradient = gradient_of(w, x)
        return gradient / jnp.maximum(1.0, jnp.sqrt(jnp.sum(gradient**2)))

    def aliases(step: Any) -> list[str | None]:
        found = trace(step, (W, X), batch_argnums=(1,), microbatches=1)
        return [output.alias for output in found.step.graph.outputs]

    assert aliases(gradient_of) == aliases(clipped) == [None]
    assert aliases(lambda w, x: w - clipped(w, x)) == ["w"]
    assert aliases(lambda w, x: w - gradient_of(w - gradient_of(w, x), x)) == ["w"]
