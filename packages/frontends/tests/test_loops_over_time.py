"""Loops that are not written out are split by the dims that their bodies can be split by."""

from collections.abc import Callable
from typing import Any

import frontends.jax as mw
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from costmodel import Cluster
from frontends.errors import AccumulationError
from frontends.jax.base.loops import MOST_ITERATIONS
from frontends.jax.rules.rules import rule_of
from frontends.jax.rules.xla import XLA
from frontends.jax.testing import assert_same, run_in_microbatches, sgd
from frontends.jax.trace.pad import runs_on
from frontends.jax.trace.trace import Capture, trace
from frontends.step.kernels import with_kernels
from jax import lax

N = MOST_ITERATIONS + 2
CLUSTER = Cluster.preset("two-hosts").resized(devices_per_host=2)
X = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
W = 0.7 * np.random.default_rng(1).normal(size=(2, 4, 4)).astype(np.float32)


def cell(w: Any, h: Any, x: Any) -> Any:
    return jnp.tanh(h @ w[0] + x @ w[1])


def recurrent(w: Any, x: Any, **options: Any) -> Any:
    """States after all steps, and after each; its inputs fade away."""
    inputs = x[None] * jnp.linspace(1.0, 0.0, N).reshape(N, *[1] * x.ndim)

    def step(h: Any, x: Any) -> Any:
        h = cell(w, h, x)
        return h, h

    return lax.scan(step, jnp.zeros_like(x), inputs, **options)


def with_loss_inside(w: Any, x: Any, begin: Any = 0.0) -> Any:
    def step(carry: Any, _: Any) -> Any:
        h, loss = carry
        h = cell(w, h, x)
        return (h, loss + jnp.sum(h**2)), None

    return lax.scan(step, (jnp.zeros_like(x), begin), None, length=N)[0][1]


def with_keys(w: Any, x: Any, is_of_examples: bool = False) -> Any:
    """A dropout in each step, of all examples alike or of each."""
    shape = x.shape[not is_of_examples :]

    def step(carry: Any, _: Any) -> Any:
        h, key = carry
        key, own = jax.random.split(key)
        return (cell(w, h, x) * jax.random.bernoulli(own, 0.9, shape), key), None

    return lax.scan(step, (jnp.zeros_like(x), jax.random.key(3)), None, length=N)[0][0]


def with_branches(w: Any, x: Any) -> Any:
    def step(h: Any, i: Any) -> Any:
        return lax.cond(i % 3 == 0, lambda h: cell(w, h, x), lambda h: jnp.sin(h @ w[1]), h), None

    return lax.scan(step, jnp.ones_like(x), jnp.arange(N))[0]


def with_a_loop_inside(w: Any, x: Any) -> Any:
    inner = lambda h, _: (cell(w, h, x), None)  # noqa: E731
    step = lambda h, _: (0.9 * lax.scan(inner, h, None, length=2)[0], None)  # noqa: E731
    return lax.scan(step, jnp.zeros_like(x), None, length=N)[0]


def with_positions(w: Any, x: Any) -> Any:
    def inner(h: Any, _: Any) -> Any:
        return cell(w, h, x) * (1 + 0.1 * jnp.arange(len(x))[:, None]), None

    step = lambda h, _: (lax.scan(inner, h, None, length=2)[0], None)  # noqa: E731
    return lax.scan(step, jnp.zeros_like(x), None, length=N)[0]


def with_states_apart(w: Any, x: Any) -> Any:
    """Two recurrences of which neither reads the other."""
    faded = x * jnp.linspace(1.0, 0.0, N)[:, None, None]

    def step(states: Any, x: Any) -> Any:
        h, g = states
        return (cell(w, h, x), 0.9 * jnp.sin(g)), jnp.ones_like(h)

    (h, g), ones = lax.scan(step, (jnp.zeros_like(x), x), faded)
    return h * g * ones.mean(0)


def in_a_branch(w: Any, x: Any, other: Callable[[Any], Any] = jnp.zeros_like) -> Any:
    """Factors of a matrix of each example, if weights are positive (issue 29)."""
    h = jnp.tanh(x @ w[0])
    matrices = h[:, :, None] * h[:, None, :] + 2 * jnp.eye(4)
    return lax.cond(w.sum() > -9, jax.vmap(jnp.linalg.cholesky), other, matrices)


def halved_until_small(x: Any, by: Any = 0.5) -> Any:
    """How often depends on the example."""
    return lax.while_loop(lambda x: jnp.sum(jnp.abs(x)) > 0.5, lambda x: x * by, x)


LOSSES: dict[str, Callable[[Any, Any], Any]] = {
    "last state": lambda w, x: jnp.sum(recurrent(w, x)[0] ** 2),
    "all states": lambda w, x: jnp.mean(recurrent(w, x)[1] ** 2),
    "backwards": lambda w, x: jnp.sum(recurrent(w, x, reverse=True)[1] ** 3),
    "recomputed": lambda w, x: jnp.sum(
        lax.scan(jax.checkpoint(lambda h, _: (cell(w, h, x), None)), x, None, length=N)[0]
    ),
    "one example at a time": lambda w, x: jnp.sum(jax.vmap(lambda x: recurrent(w, x)[0])(x) ** 2),
    "loss inside": with_loss_inside,
    "dropout alike": lambda w, x: jnp.sum(with_keys(w, x) ** 2),
    "dropout of each example": lambda w, x: jnp.sum(with_keys(w, x, is_of_examples=True) ** 2),
    "positions in a loop inside": lambda w, x: jnp.sum(with_positions(w, x)),
    "states apart": lambda w, x: jnp.sum(with_states_apart(w, x)),
    "branches": lambda w, x: jnp.sum(with_branches(w, x) ** 2),
    "a loop inside": lambda w, x: jnp.sum(with_a_loop_inside(w, x) ** 2),
    "examples one by one": lambda w, x: jnp.sum(
        lax.map(lambda row: jnp.tanh(row @ w[0]) @ w[1], jnp.tile(x, (N, 1)))
    ),
    "until each example ends": lambda w, x: jnp.sum(
        x @ w[0] * lax.stop_gradient(jax.vmap(halved_until_small)(x @ w[1]))
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loop_computes_the_same_in_microbatches(name: str) -> None:
    step = sgd(LOSSES[name])
    found = trace(step, (W, X), batch_argnums=(1,), microbatches=2)
    assert {"scan", "while"}.intersection(op.kind for op in found.step.graph.operators)
    assert_same(run_in_microbatches(found, (W, X)), jax.jit(step)(W, X))


@pytest.mark.parametrize("name", LOSSES)
def test_a_loop_computes_the_same_with_padding(name: str) -> None:
    step = sgd(LOSSES[name])
    found = Capture(step, (W, X), (1,)).at(1, 12)
    assert_same(run_in_microbatches(found, (W, X)), jax.jit(step)(W, X))


@pytest.mark.parametrize("name", ["dropout of each example", "loss inside", "branches"])
def test_devices_run_the_loop_on_their_examples(name: str) -> None:
    step = sgd(LOSSES[name])
    parallel = mw.parallelize(step, cluster=CLUSTER, strategy="data_parallel", microbatches=2)
    assert_same(parallel(W, X), jax.jit(step)(W, X))
    assert parallel.plan.unsharded == ()
    parallel.verify(W, X)
    reduced = [c.value for c in parallel.plan.stages[0].collectives if c.kind == "all_reduce"]
    assert any(value.startswith("scan") for value in reduced)


def test_iterations_that_only_add_are_split() -> None:
    x = np.random.default_rng(0).normal(size=(2 * N, 4)).astype(np.float32)
    step = sgd(lambda w, x: jnp.sum(lax.map(lambda row: jnp.tanh(row @ w[0]) @ w[1], x)))
    parallel = mw.parallelize(step, cluster=CLUSTER, strategy="data_parallel", microbatches=2)
    assert_same(parallel(W, x), jax.jit(step)(W, x), tolerance=1e-4)
    verified = parallel.verify(W, x)
    assert verified.n_collectives > 0


def test_what_a_loop_adds_to_counts_once() -> None:
    step = sgd(lambda w, x: with_loss_inside(w, x, 1.0))
    found = trace(step, (W, X), batch_argnums=(1,), microbatches=1)
    assert_same(run_in_microbatches(found, (W, X)), jax.jit(step)(W, X))
    with pytest.raises(AccumulationError, match="scan"):
        trace(step, (W, X), batch_argnums=(1,), microbatches=2)
    step = sgd(lambda w, x: with_loss_inside(w, x, jnp.sum(w)))
    with pytest.raises(AccumulationError, match=r"add reduce_sum.* once for each microbatch"):
        trace(step, (W, X), batch_argnums=(1,), microbatches=2)
    parallel = mw.parallelize(step, cluster=CLUSTER, strategy="data_parallel", microbatches=1)
    assert_same(parallel(W, X), jax.jit(step)(W, X))


def test_a_loop_launches_the_kernels_of_its_body_in_each_iteration() -> None:
    def launched(function: Callable[..., Any], kind: str) -> list[float]:
        found = trace(function, (W, X), batch_argnums=(1,), microbatches=1)
        graph = with_kernels(found.step.graph, XLA)
        return [op.accesses.launches for op in graph.operators if op.accesses and op.kind == kind]

    def product(w: Any, x: Any, length: int = N) -> Any:
        first = w[0]
        return lax.scan(lambda h, _: (jnp.sin(h @ first) + 1, None), x, None, length=length)[0]

    def in_pairs(w: Any, x: Any) -> Any:
        return lax.scan(lambda h, _: (product(w, h, 2), None), x, None, length=N)[0]

    (n,) = launched(product, "scan")
    assert n == 2 * N  # a product, and a loop over its elements
    assert launched(in_pairs, "scan") == [2 * n + N]  # and it takes a weight out of two


def kinds(function: Callable[..., Any], *operands: Any) -> set[str]:
    """The kinds of the factors of the loop in a function, but for those that stay whole."""
    equations = jax.make_jaxpr(function)(*operands).jaxpr.eqns
    (loop,) = [e for e in equations if e.primitive.name in ("scan", "while")]
    return {factor.kind for factor in rule_of(loop).factors} - {"whole"}


def test_a_loop_that_mixes_examples_is_not_split_by_them() -> None:
    def centered(x: Any) -> Any:
        return lax.scan(lambda h, _: (h - h.mean(0), None), x, None, length=N)[0]

    def normalised(x: Any) -> Any:
        return lax.scan(lambda h, _: (h / h.sum(), None), x, None, length=N)[0]

    def counted(x: Any) -> Any:
        return lax.while_loop(lambda c: jnp.max(c[0]) > 0.1, lambda c: (c[0] / 2, c[1] + 1), (x, 0))

    (loop,) = jax.make_jaxpr(centered)(X).jaxpr.eqns
    assert str(rule_of(loop)) == "(a,b)->(c,b) {a=8 whole, b=4, c=8 whole}"
    assert kinds(normalised, X) == kinds(counted, X) == set()
    assert kinds(jax.vmap(halved_until_small), X) == {"parallel"}


def test_a_branch_may_make_copies_but_not_positions_of_examples() -> None:
    step = sgd(lambda w, x: jnp.mean(in_a_branch(w, x) ** 2))
    found = trace(step, (W, X), batch_argnums=(1,), microbatches=2)
    assert "cond" in {op.kind for op in found.step.graph.operators}
    assert_same(run_in_microbatches(found, (W, X)), jax.jit(step)(W, X))

    def positions(like: Any) -> Any:
        return jnp.arange(len(like), dtype=like.dtype)[:, None, None] + jnp.ones((1, 4, 4))

    step = sgd(lambda w, x: jnp.mean(in_a_branch(w, x, positions) ** 2))
    found = trace(step, (W, X), batch_argnums=(1,), microbatches=2)
    assert found.first_pass is not None
    assert_same(run_in_microbatches(found, (W, X)), jax.jit(step)(W, X))


def test_examples_that_are_added_may_be_in_a_loop_that_ends() -> None:
    def runs(function: Callable[..., Any]) -> bool:
        (loop,) = jax.make_jaxpr(function)(X).jaxpr.eqns
        return runs_on(loop, [(10, 4)], [(10, 4)])

    assert runs(lambda x: lax.scan(lambda h, _: (jnp.sin(h), None), x, None, length=N)[0])
    assert not runs(jax.vmap(halved_until_small))


def test_examples_of_a_while_loop_end_alone_only_if_they_stay_as_they_are() -> None:
    def all_go_on(x: Any) -> Any:
        """Examples that have ended go on while others do."""
        return lax.while_loop(lambda x: jnp.any(jnp.abs(x).sum(1) > 0.5), lambda x: x / 2, x)

    def others_go_on(x: Any) -> Any:
        """Other examples than the condition says."""
        return lax.while_loop(
            lambda x: jnp.any(jnp.abs(x).sum(1) > 0.5),
            lambda x: jnp.where((jnp.abs(x).sum(1) > 0.4)[:, None], x / 2, x),
            x,
        )

    def same(x: Any) -> Any:
        """As `vmap` writes it."""
        return lax.while_loop(
            lambda x: jnp.any(jnp.abs(x).sum(1) > 0.5),
            lambda x: lax.select_n(
                lax.broadcast_in_dim(jnp.abs(x).sum(1) > 0.5, (8, 4), (0,)), x, x / 2
            ),
            x,
        )

    assert kinds(all_go_on, X) == kinds(others_go_on, X) == set()
    assert kinds(same, X) == {"parallel"}
