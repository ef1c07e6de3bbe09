"""Whether sums over microbatches are what the single device computes, decided by sharding rules."""

from collections.abc import Callable
from typing import Any

import autoshard
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from autoshard import Value
from frontends.errors import AccumulationError, UnsupportedStepError
from frontends.jax.testing import EXAMPLES, assert_same, mlp, run_in_microbatches
from frontends.jax.trace.trace import Trace, trace
from frontends.step.step import APPLY, IDENTITY, fingerprint, identity

RNG = np.random.default_rng(0)
W = RNG.normal(size=(4, 4)).astype(np.float32)
BATCH = {
    "x": RNG.normal(size=(8, 4)).astype(np.float32),
    "mask": (RNG.random(8) > 0.5).astype(np.float32),
    "token": RNG.integers(0, 4, 8).astype(np.int32),
}
Loss = Callable[[Any, dict[str, Any]], Any]


def rows(w: Any, batch: dict[str, Any]) -> Any:
    return jnp.tanh(batch["x"] @ w)


def traced(loss: Loss, microbatches: int = 2, has_aux: bool = False) -> Trace:
    def step(w: Any, batch: Any) -> Any:
        value, gradient = jax.value_and_grad(loss, has_aux=has_aux)(w, batch)
        return w - gradient, value

    return trace(step, (W, BATCH), batch_argnums=(1,), microbatches=microbatches)


SUMS: dict[str, Loss] = {
    "sum": lambda w, b: rows(w, b).sum(),
    "mean": lambda w, b: rows(w, b).mean(),
    "weighted by a constant": lambda w, b: 0.3 * rows(w, b).mean() - 2 * rows(w, b).sum(),
    "weighted by data": lambda w, b: (rows(w, b) * b["mask"][:, None]).sum() / 8,
    "where": lambda w, b: jnp.where(b["mask"][:, None] > 0, rows(w, b), 0.0).mean(),
    "mean over other dims first": lambda w, b: rows(w, b).mean(1).sum(),
    "softmax within examples": lambda w, b: jax.nn.log_softmax(rows(w, b))[:, 0].mean(),
    "embedding": lambda w, b: (w[b["token"]] * rows(w, b)).sum(),
    "gather along": lambda w, b: jnp.take_along_axis(rows(w, b), b["token"][:, None], 1).mean(),
    "reshape": lambda w, b: rows(w, b).reshape(-1).sum(),
    "batch last": lambda w, b: jnp.tanh(w @ b["x"].T).sum(),
    "constant": lambda w, b: rows(w, b).sum() + 0.0 * jnp.ones(len(b["x"])).mean(),
}

MIXTURES: dict[str, tuple[Loss, str]] = {
    "root of a mean": (
        lambda w, b: jnp.sqrt(jnp.mean(rows(w, b) ** 2)),
        r"operator sqrt\.\d+ .* not linear in sums over the batch",
    ),
    "batch norm": (
        lambda w, b: ((rows(w, b) - rows(w, b).mean(0)) ** 2).sum(),
        r"operator (sub|broadcast_in_dim)\.\d+ .* single examples with a sum over all of them",
    ),
    "maximum": (
        lambda w, b: rows(w, b).max(),
        r"operator reduce_max\.\d+ .* it needs all examples at once",
    ),
    "sort": (
        lambda w, b: jax.lax.sort(jax.lax.stop_gradient(rows(w, b)), dimension=0).sum() * w.sum(),
        r"operator sort\.\d+ .* it needs all examples at once",
    ),
    "cumulative": (
        lambda w, b: jnp.sin(jnp.cumsum(rows(w, b), 0)).sum(),
        r"operator cumsum\.\d+ .* it needs all examples at once",
    ),
    "reversed": (
        lambda w, b: (rows(w, b) * rows(w, b)[::-1]).sum(),
        r"operator rev\.\d+ .* it needs all examples at once",
    ),
    "contrastive": (
        lambda w, b: jnp.tanh(rows(w, b) @ rows(w, b).T).sum(),
        r"operator dot_general\.\d+ .* it combines different examples",
    ),
    "every third number of interleaved examples": (
        lambda w, b: jnp.tanh(rows(w, b).T.reshape(-1)[::3]).sum(),
        r"operator reshape\.\d+ .* interleaves examples of several microbatches",
    ),
    "counts on top of others": (
        lambda w, b: jnp.tanh(jnp.sin(w).at[b["token"]].add(rows(w, b))).sum(),
        r"operator scatter-add\.\d+ .* once for each microbatch",
    ),
    "masked mean of the model's own mask": (
        lambda w, b: (
            (rows(w, b).sum(1) * (rows(w, b)[:, 0] > 0)).sum() / (rows(w, b)[:, 0] > 0).sum()
        ),
        "it is not linear in sums over the batch",
    ),
    "weights for each example": (
        lambda w, b: (rows(w, b)[:4] * w).sum() + (rows(w, b) * jnp.tile(w, (2, 1))).sum(),
        r"operator .* is not",
    ),
    "no rule": (
        lambda w, b: jax.lax.top_k(rows(w, b).T, 2)[0].sum(),
        r"operator top_k\.\d+ .* it needs all examples at once",
    ),
}


@pytest.mark.parametrize("name", SUMS)
def test_accepts_sums_over_examples(name: str) -> None:
    found = traced(SUMS[name])
    assert found.step.summed
    computed = {n for op in found.step.graph.operators if op.phase != APPLY for n in op.outputs}
    read = {n for op in found.step.graph.operators if op.phase == APPLY for n in op.inputs}
    assert set(found.step.summed) <= computed & read


@pytest.mark.parametrize("name", MIXTURES)
def test_refuses_what_mixes_examples_and_names_the_operator(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it does if layers follow, so that there is no first pass."""
    loss, message = MIXTURES[name]
    monkeypatch.setattr("frontends.jax.trace.trace.made_by_first_pass", lambda *_, **__: {})
    with pytest.raises(AccumulationError, match=message):
        traced(loss)


@pytest.mark.parametrize("name", MIXTURES)
def test_what_mixes_examples_runs_in_two_passes(name: str) -> None:
    loss, message = MIXTURES[name]
    if name == "counts on top of others":  # it reads a matrix of weights
        with pytest.raises(AccumulationError, match=message):
            traced(loss)
        return
    found = traced(loss)
    assert found.first_pass is not None
    value, gradient = jax.value_and_grad(loss)(W, BATCH)
    assert_same(run_in_microbatches(found, (W, BATCH)), (W - gradient, value), tolerance=1e-5)


@pytest.mark.parametrize("microbatches", [2, 4])
def test_what_is_only_returned_may_mix_examples(microbatches: int) -> None:
    def loss(w: Any, b: dict[str, Any]) -> Any:
        y = rows(w, b)
        of_each = (y**2).sum(1)
        centred = of_each - of_each.mean()
        return of_each.mean(), {
            "largest": of_each.max(),
            "where": jnp.argmax(of_each),
            "is finite": jnp.all(jnp.isfinite(y)),
            "in order": jnp.sort(of_each),
            "median": jnp.quantile(of_each, 0.5),
            "centred": centred,
            "of both": jnp.where(jnp.any(y > 0.9), centred, -centred) + jnp.sum(w**2),
            "norm": jnp.sqrt((y**2).sum()),
            "per example": of_each > 0.5,
        }

    found = traced(loss, microbatches, has_aux=True)
    autoshard.verify(found.step.graph)
    value, gradient = jax.value_and_grad(loss, has_aux=True)(W, BATCH)
    assert_same(run_in_microbatches(found, (W, BATCH)), (W - gradient, value), tolerance=1e-5)


@pytest.mark.parametrize("name", MIXTURES)
def test_one_microbatch_may_mix_examples(name: str) -> None:
    loss, _ = MIXTURES[name]
    assert traced(loss, microbatches=1).step.summed == ()


def test_refuses_weights_for_each_example() -> None:
    def step(w: Any, batch: Any) -> Any:
        gradient = jax.grad(lambda w: jnp.sum(w["each"] * rows(w["all"], batch)))(w)
        return jax.tree.map(lambda p, g: p - g, w, gradient)

    weights = {"all": W, "each": np.ones((8, 4), np.float32)}
    with pytest.raises(AccumulationError, match=r"all examples alike; .* w\['each'\], of shape"):
        trace(step, (weights, BATCH), batch_argnums=(1,), microbatches=2)


def test_accepts_other_results_that_are_sums() -> None:
    def loss(w: Any, batch: dict[str, Any]) -> Any:
        logits = rows(w, batch)
        right = jnp.argmax(logits, 1) == batch["token"]
        return logits.sum(), {"accuracy": right.mean(), "right": right.sum()}

    found = traced(loss, has_aux=True)
    dtypes = [found.step.graph.value(name).dtype for name in found.step.summed]
    assert "int32" in dtypes


def test_what_does_not_depend_on_the_batch_is_not_summed() -> None:
    def loss(w: Any, batch: dict[str, Any]) -> Any:
        return rows(w, batch).sum(), jnp.sum(w**2)

    found = traced(loss, has_aux=True)
    aux = next(op for op in found.step.graph.operators if op.name == found.results[2])
    assert aux.kind == IDENTITY
    assert not set(aux.inputs) & set(found.step.summed)


def test_a_penalty_on_the_weights_is_added_once() -> None:
    def loss(w: Any, batch: dict[str, Any]) -> Any:
        return rows(w, batch).mean() + 0.1 * jnp.sum(w**2)

    found = traced(loss)
    phases = {(op.kind, op.phase) for op in found.step.graph.operators}
    assert {("integer_pow", APPLY), ("add", APPLY), ("add_any", APPLY)} <= phases


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_gradient_and_the_loss_are_summed(name: str) -> None:
    example = EXAMPLES[name]()
    step = example.trace().step
    graph = step.graph
    shapes = sorted(graph.value(n).shape for n in step.summed)
    assert shapes == sorted([*(p.shape for p in jax.tree.leaves(example.params)), ()])


def test_identity_hands_a_value_on() -> None:
    operator = identity(Value("a", (2, 3), "float32"), "b")
    assert (operator.inputs, operator.outputs, operator.phase) == (("a",), ("b",), APPLY)
    assert operator.rule.linear == ((0,),)


def test_fingerprints_depend_on_names_and_microbatches() -> None:
    graph = mlp().trace().step.graph
    assert fingerprint(graph, 2) == fingerprint(graph, 2) != fingerprint(graph, 4)
    assert len(fingerprint(graph, 2)) == 16
    autoshard.verify(graph)


def test_accumulation_errors_are_errors_of_the_step() -> None:
    assert issubclass(AccumulationError, UnsupportedStepError)
    assert issubclass(AccumulationError, ValueError)
