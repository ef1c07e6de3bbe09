"""Steps of `equinox.filter_jit` and `flax.nnx.jit`: what those do, on many devices."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from costmodel import Cluster
from frontends.errors import ArgumentError, UnsupportedStepError
from frontends.jax import parallelize, plan_for
from frontends.jax.testing import assert_same

CLUSTER = Cluster.preset("two-hosts").resized(devices_per_host=2)
RNG = np.random.default_rng(0)
X, Y = (RNG.normal(size=(8, n)).astype(np.float32) for n in (4, 1))
OPTIMIZER = optax.adam(1e-2, eps=1e-2)


def test_leaves_of_filter_jit_that_are_no_arrays_are_static() -> None:
    import equinox as eqx

    def step(model: Any, opt_state: Any, x: Any, y: Any) -> Any:
        def loss(model: Any) -> Any:
            return jnp.mean((jax.vmap(model)(x) - y) ** 2)

        value, gradients = eqx.filter_value_and_grad(loss)(model)
        updates, opt_state = OPTIMIZER.update(gradients, opt_state)
        return eqx.apply_updates(model, updates), opt_state, value

    plain = eqx.filter_jit(step)
    ours = parallelize(plain, cluster=CLUSTER, batch_argnums=(2, 3), microbatches=2)
    model = eqx.nn.MLP(4, 1, 8, 2, key=jax.random.key(0))
    mine = theirs = (model, OPTIMIZER.init(eqx.filter(model, eqx.is_array)))
    for n in (8, 8, 3):
        *mine, found = ours(*mine, X[:n], Y[:n])
        *theirs, expected = plain(*theirs, X[:n], Y[:n])
        assert jax.tree.structure(mine) == jax.tree.structure(theirs)
        both = (mine, found), (theirs, expected)
        a, b = (eqx.filter(each, eqx.is_array) for each in both)
        assert_same(jax.tree.leaves(a), b, least=1e-3)
        assert mine[0].activation is model.activation
    assert len(ours.variants) == 2
    other = eqx.nn.MLP(4, 1, 8, 2, activation=jnp.tanh, key=jax.random.key(0))
    (*_, found), (*_, expected) = (f(other, theirs[1], X, Y) for f in (ours, plain))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert len(ours.variants) == 3
    planned = plan_for(plain, (*mine, X, Y), CLUSTER, batch_argnums=(2, 3), microbatches=2)
    assert planned.plan == ours.variants[0].plan
    with pytest.raises(ArgumentError, match=r"got model.activation of type .*equinox.filter_jit"):
        parallelize(step, cluster=CLUSTER)(*mine, X, Y)


def test_modules_of_nnx_are_changed_in_place() -> None:
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.first, self.norm = nnx.Linear(4, 8, rngs=rngs), nnx.BatchNorm(8, rngs=rngs)
            self.dropout, self.last = nnx.Dropout(0.2, rngs=rngs), nnx.Linear(8, 1, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.last(jnp.tanh(self.dropout(self.norm(self.first(x)))))

    def step(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
        value, gradients = nnx.value_and_grad(lambda m: jnp.mean((m(x) - y) ** 2))(model)
        optimizer.update(model, gradients)
        return value

    def fresh() -> Any:
        model = Net(nnx.Rngs(0))
        return model, nnx.Optimizer(model, OPTIMIZER, wrt=nnx.Param)

    plain = nnx.jit(step)
    ours = parallelize(plain, cluster=CLUSTER, batch_argnums=(2, 3), microbatches=1)
    mine, theirs = fresh(), fresh()
    for n in (8, 8, 3):
        found, expected = ours(*mine, X[:n], Y[:n]), plain(*theirs, X[:n], Y[:n])
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        a, b = (nnx.state(each, nnx.Not(nnx.RngState)) for each, _ in (mine, theirs))
        assert_same(jax.tree.leaves(a), b, least=1e-3)
    assert len(ours.variants) == 2
    planned = plan_for(plain, (*fresh(), X, Y), CLUSTER, batch_argnums=(2, 3), microbatches=1)
    assert planned.plan == ours.variants[0].plan
    with pytest.raises(UnsupportedStepError, match=r"give it as nnx.jit\(step\)"):
        parallelize(step, cluster=CLUSTER, batch_argnums=(2, 3))(*mine, X, Y)

    def grows(model: Any, x: Any) -> Any:
        model.more = nnx.Param(x[0])
        return step(*fresh(), x, x[:, :1])

    with pytest.raises(UnsupportedStepError, match="but not change which variables it has; arg"):
        parallelize(nnx.jit(grows), cluster=CLUSTER)(mine[0], X)


def test_modules_of_nnx_that_share_some_are_changed_together() -> None:
    from flax import nnx

    class Head(nnx.Module):
        def __init__(self, trunk: nnx.Module, rngs: nnx.Rngs) -> None:
            self.trunk, self.out = trunk, nnx.Linear(4, 1, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.out(jnp.tanh(self.trunk(x)))

    @nnx.jit
    def step(first: Any, other: Any, optimizer: Any, x: Any, y: Any) -> Any:
        value, gradients = nnx.value_and_grad(lambda m: jnp.mean((m(x) - y) ** 2))(first)
        optimizer.update(first, gradients)
        return value, other(x)  # of the trunk as it is now

    def made() -> Any:
        trunk = nnx.Linear(4, 4, rngs=nnx.Rngs(0))
        first, other = (Head(trunk, nnx.Rngs(i)) for i in (1, 2))
        return first, other, nnx.Optimizer(first, optax.sgd(0.1), wrt=nnx.Param)

    ours = parallelize(step, cluster=CLUSTER, batch_argnums=(3, 4), microbatches=1)
    mine, theirs = made(), made()
    for _ in range(2):
        assert_same(jax.tree.leaves(ours(*mine, X, Y)), step(*theirs, X, Y))
        leaves = jax.tree.leaves(nnx.state(mine))
        assert_same([jnp.asarray(leaf) for leaf in leaves], nnx.state(theirs), least=1e-3)
    assert mine[0].trunk is mine[1].trunk
