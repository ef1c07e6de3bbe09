"""A step in microbatches computes the numbers of the whole batch, or is refused."""

from collections.abc import Callable
from typing import Any

import autoshard
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from frontends.errors import AccumulationError
from frontends.jax.testing import assert_same, run_in_microbatches, sgd, steps
from frontends.jax.trace.trace import Trace, trace
from hypothesis import event, given, settings
from jax import lax

X = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(4, 4)).astype(np.float32)


def traced(function: Callable[..., Any], *arguments: Any, microbatches: int = 2) -> Trace:
    return trace(function, arguments, batch_argnums=(-1,), microbatches=microbatches)


@pytest.mark.parametrize(
    "loss",
    [
        lambda w, x: jnp.sum((x @ w) ** 2),
        lambda w, x: jnp.mean((x @ w) ** 2),
        lambda w, x: jnp.mean(jnp.sum((x @ w) ** 2, 1)),
        lambda w, x: jnp.sum((x @ w) ** 2) / len(x),
        lambda w, x: jnp.sum((x @ w) ** 2) * (3 / x.shape[0]),
        lambda w, x: jnp.sum((x @ w) ** 2) / np.float32(x.shape[0]),
        lambda w, x: jnp.sum((x @ w) ** 2) / jnp.float32(x.shape[0]),
        lambda w, x: jnp.sum((x @ w) ** 2) / jnp.sqrt(x.shape[0]),
        lambda w, x: jnp.sum((x @ w) ** 2) / jnp.array(x.shape[0]),
        lambda w, x: jnp.mean((x @ w) ** 2) + 0.1 * jnp.sum(w**2),
        lambda w, x: jnp.exp(0.1 * jnp.sum(w**2)) * jnp.mean((x @ w) ** 2) + 1.0,
        lambda w, x: jnp.sum((x @ w) ** 2 * jnp.full(len(x), 1 / len(x))[:, None]),
    ],
    ids=[
        "sum",
        "mean",
        "mean of sums",
        "len",
        "factor",
        "numpy",
        "jnp scalar",
        "sqrt",
        "jnp array",
        "penalty",
        "factor and offset",
        "weights",
    ],
)
def test_means_and_sums_give_the_gradient_of_the_whole_batch(loss: Callable[..., Any]) -> None:
    step = sgd(loss)
    found = traced(step, W, X)
    assert_same(run_in_microbatches(found, (W, X)), step(W, X))


MASK = (np.arange(8) % 3 > 0).astype(np.float32)

WHOLE: dict[str, Callable[[Any, Any], Any]] = {
    "masked mean": lambda w, x: jnp.sum(jnp.tanh(x @ w).sum(1) * MASKED(x)) / MASKED(x).sum(),
    "safe masked mean": lambda w, x: (
        jnp.sum(jnp.tanh(x @ w).sum(1) * MASKED(x)) / jnp.maximum(MASKED(x).sum(), 1.0)
    ),
    "where mean": lambda w, x: jnp.mean(jnp.tanh(x @ w), where=MASKED(x)[:, None] > 0),
    "statistics of the batch": lambda w, x: jnp.sum(jnp.tanh(((x - x.mean(0)) / x.std(0)) @ w)),
    "order of the batch": lambda w, x: jnp.sum(jnp.tanh(x[jnp.argsort(x[:, 0])] @ w) ** 3),
    "positions": lambda w, x: jnp.sum(jnp.tanh(x @ w) * jnp.arange(len(x))[:, None]),
    "another program": lambda w, x: jnp.sum(jnp.tanh(x @ w) if len(x) > 4 else jnp.sin(x @ w)),
    "another exponent": lambda w, x: jnp.sum(lax.integer_pow(x @ w, len(x))),
    "another array": lambda w, x: jnp.sum(jnp.tanh(x @ w) * np.arange(len(x), dtype="f")[:, None]),
    "size one": lambda w, x: jnp.mean(jnp.tanh(x @ w)[:, None, :] * jnp.ones((len(x), 1, 4))),
}
"""Losses that read the batch as a whole, but no weights when they do."""


def MASKED(x: Any) -> Any:  # noqa: N802
    return (x[:, 0] > 0).astype(jnp.float32)


@pytest.mark.parametrize("microbatches", [2, 8])
@pytest.mark.parametrize("name", WHOLE)
def test_what_reads_no_weights_may_read_the_whole_batch(name: str, microbatches: int) -> None:
    step = sgd(WHOLE[name])
    found = traced(step, W, X, microbatches=microbatches)
    autoshard.verify(found.step.graph)
    assert_same(run_in_microbatches(found, (W, X)), step(W, X))


def filled(h: Any) -> Any:
    """Copies of the sum over all examples, one for each of them."""
    return jnp.broadcast_to(h.sum(0), h.shape)


RETURNED: dict[str, Callable[[Any], Any]] = {
    "copies": filled,
    "differences from the sum": lambda h: h - filled(h),
    "both": lambda h: (filled(h), h - filled(h)),
    "normalized": lambda h: (h - h.mean(0)) / jnp.std(h, 0),
    "several": lambda h: (h - (m := filled(h)), (2 * m - h).max(), jnp.sum(2 * m, 0)),
    "copies of copies": lambda h: h - jnp.repeat(filled(h)[:2], 4, 0),
}


@pytest.mark.parametrize("name", RETURNED)
def test_what_is_only_returned_may_combine_examples_with_sums_of_all(name: str) -> None:
    def step(w: Any, x: Any) -> Any:
        def loss_of(w: Any) -> Any:
            return jnp.mean((x @ w) ** 2), RETURNED[name](x @ w)

        (loss, told), gradient = jax.value_and_grad(loss_of, has_aux=True)(w)
        return w - gradient, loss, told

    ours = run_in_microbatches(traced(step, W, X, microbatches=4), (W, X))
    assert_same(ours, step(W, X), tolerance=1e-4)


def test_results_for_each_example_are_put_together() -> None:
    def step(w: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            y = jnp.tanh(x @ w)
            return jnp.sum(y), {"rows": y, "columns": y.T, "signs": y > 0, "sizes": x[:, 0]}

        (value, aux), gradient = jax.value_and_grad(loss, has_aux=True)(w)
        return w - gradient, value, aux, aux["rows"].std()

    found = traced(step, W, X, microbatches=4)
    autoshard.verify(found.step.graph)
    assert_same(run_in_microbatches(found, (W, X)), step(W, X))


@settings(max_examples=settings().max_examples // 2)
@given(steps())
def test_whatever_is_accepted_computes_the_whole_batch(drawn: tuple[Any, tuple[Any, Any]]) -> None:
    step, arguments = drawn
    try:
        found = traced(step, *arguments)
    except AccumulationError:
        event("refused")
        return
    event("accepted")
    autoshard.verify(found.step.graph)
    ours = run_in_microbatches(found, arguments)
    assert_same(ours, step(*arguments), tolerance=1e-4, least=0.1)  # sums may cancel
