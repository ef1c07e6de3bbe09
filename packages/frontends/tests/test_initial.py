"""The first state: made where it is kept, equal to one device's."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from costmodel import Cluster
from frontends.errors import PlanError
from frontends.jax import ParallelStep, parallelize

CLUSTER = Cluster.preset("two-hosts").resized(devices_per_host=4)
WIDTH = 512
NAMES = ("first", "second", "third", "last")
OPTIMIZER = optax.adamw(1e-2, eps=1e-2)
KEY = jax.random.key(1)
BATCH = jax.ShapeDtypeStruct((16, WIDTH), jnp.float32)


def init(key: jax.Array) -> tuple[Any, Any]:
    """Weights by several distributions, and what the optimizer starts with."""
    keys = jax.random.split(key, len(NAMES))
    make = (
        lambda key, shape: jax.random.normal(key, shape) * (2 / WIDTH) ** 0.5,
        jax.nn.initializers.truncated_normal(0.02),
        jax.nn.initializers.glorot_uniform(),
        jax.nn.initializers.he_normal(dtype=jnp.bfloat16),
    )
    shape = (WIDTH, WIDTH)
    params = {n: m(k, shape) for n, m, k in zip(NAMES, make, keys, strict=True)}
    return params, OPTIMIZER.init(params)


def train_step(params: Any, opt_state: Any, batch: Any) -> tuple[Any, Any, Any]:
    def loss_of(params: Any) -> Any:
        hidden = batch
        for name in NAMES:
            hidden = jnp.tanh(hidden @ params[name].astype(jnp.float32))
        return jnp.mean(hidden**2)

    loss, gradients = jax.value_and_grad(loss_of)(params)
    updates, opt_state = OPTIMIZER.update(gradients, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def parallel(strategy: str) -> ParallelStep:
    return parallelize(train_step, cluster=CLUSTER, microbatches=2, strategy=strategy)


@functools.cache
def planned(strategy: str) -> ParallelStep:
    """A step that has a plan, and what it compiled for other tests."""
    step = parallel(strategy)
    step.abstract_state(init, KEY, batch=BATCH)
    return step


@pytest.mark.parametrize("strategy", ["equal_layers", "zero", "megatron"])
def test_state_is_that_of_one_device_bit_for_bit(strategy: str) -> None:
    """Random numbers and what is computed from each alone; a sum over a sharded dim may round."""
    step = planned(strategy)
    state, theirs = step.init(init, KEY), jax.jit(init)(KEY)
    assert jax.tree.structure(state) == jax.tree.structure(theirs)
    for ours, expected in zip(jax.tree.leaves(state), jax.tree.leaves(theirs), strict=True):
        assert (ours.dtype, ours.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(expected))
    *_, loss = step(*state, jnp.ones(BATCH.shape))
    *_, expected = train_step(*theirs, jnp.ones(BATCH.shape))
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_a_step_takes_state_as_it_lies() -> None:
    step = planned("equal_layers")
    state = step.init(init, KEY)
    *again, _ = step(*state, jnp.ones(BATCH.shape))
    homes = {leaf.sharding.mesh for leaf in jax.tree.leaves(state)}
    assert len(homes) == len(step.plan.stages) == 2
    for before, after in zip(jax.tree.leaves(state), jax.tree.leaves(tuple(again)), strict=True):
        is_counter = before.ndim == 0  # whole on one device, to be read
        assert is_counter or after.sharding.is_equivalent_to(before.sharding, before.ndim)


def test_no_device_holds_more_than_its_part() -> None:
    step = planned("zero")
    before = {id(array) for array in jax.live_arrays()}
    state = step.init(init, KEY)
    made = [array for array in jax.live_arrays() if id(array) not in before]
    whole = [leaf for leaf in jax.tree.leaves(state) if leaf.ndim]
    n_devices = len(jax.tree.leaves(state)[0].sharding.device_set)
    for array in (*made, *whole):
        if array.ndim:
            parts = {shard.data.nbytes for shard in array.addressable_shards}
            assert parts == {array.nbytes // n_devices} or array.nbytes < 1000
    shardings = jax.tree.map(lambda leaf: leaf.sharding, step.abstract_state(init, KEY))
    program = jax.jit(init, out_shardings=shardings).lower(KEY).compile()
    scratch_bytes = program.memory_analysis().temp_size_in_bytes
    assert scratch_bytes < whole[0].nbytes, "of one of four weights"


def test_abstract_state_tells_what_init_makes() -> None:
    step = planned("equal_layers")
    state, shapes = step.init(init, KEY), step.abstract_state(init, KEY)
    for shape, leaf in zip(jax.tree.leaves(shapes), jax.tree.leaves(state), strict=True):
        assert (shape.shape, shape.dtype, shape.sharding) == (leaf.shape, leaf.dtype, leaf.sharding)


class State(NamedTuple):
    weights: Any
    key: Any
    count: Any


def noisy(batch: Any, state: State) -> State:
    key, now = jax.random.split(state.key)

    def loss(w: Any) -> Any:
        return jnp.mean(jnp.tanh(batch @ w + jax.random.normal(now, w.shape[1:])) ** 2)

    return State(state.weights - jax.grad(loss)(state.weights), key, state.count + 1)


def first(key: jax.Array) -> State:
    return State(jax.random.normal(key, (8, 8)), jax.random.fold_in(key, 1), jnp.zeros((), int))


def test_state_may_be_one_argument_and_hold_keys() -> None:
    step = parallelize(noisy, cluster=CLUSTER, microbatches=2, batch_argnums=(0,))
    batch = np.ones((8, 8), np.float32)
    state, theirs = step.init(first, KEY, batch=batch), first(KEY)
    shapes = step.abstract_state(first, KEY)
    assert (shapes.key.dtype, shapes.key.sharding) == (state.key.dtype, state.key.sharding)
    for _ in range(2):
        assert jnp.array_equal(jax.random.key_data(state.key), jax.random.key_data(theirs.key))
        np.testing.assert_allclose(state.weights, theirs.weights, rtol=1e-5, atol=1e-6)
        state, theirs = step(batch, state), noisy(batch, theirs)
    assert int(state.count) == 2


def test_state_may_be_some_of_the_arguments_once_there_is_a_plan() -> None:
    def scaled(params: Any, opt_state: Any, scale: Any, *, batch: Any) -> Any:
        return train_step(params, opt_state, scale * batch)

    step = parallelize(scaled, cluster=CLUSTER, microbatches=2, strategy="zero")
    with pytest.raises(PlanError, match="has 3 arguments of state and 1 of batch"):
        step.init(init, KEY, batch=BATCH)
    shapes = jax.eval_shape(init, KEY)
    step.prepare(*shapes, 2.0, batch=BATCH)
    params, opt_state = step.init(init, KEY)
    ones = np.ones(BATCH.shape, np.float32)
    *_, loss = step(params, opt_state, 2.0, batch=ones)
    *_, expected = train_step(*init(KEY), 2 * ones)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    only = step.init(lambda key: init(key)[0], KEY)
    assert jax.tree.map(lambda p: p.sharding, only) == jax.tree.map(lambda p: p.sharding, params)


def test_rejects_other_state_than_planned() -> None:
    step = parallel("zero")
    with pytest.raises(PlanError, match=r"give it, or its shapes, as batch=, or call prepare"):
        step.init(init, KEY)
    step = planned("zero")
    with pytest.raises(PlanError, match="or a tuple of its first ones; got"):
        step.init(lambda key: {"first": key}, KEY)
    with pytest.raises(PlanError, match=r"params\['first'\] of float32\[3\] instead of float32\[5"):
        step.init(lambda key: {**init(key)[0], "first": jnp.ones(3)}, KEY)


def test_rejects_a_step_whose_arguments_are_not_known() -> None:
    step = parallelize(lambda *arguments: train_step(*arguments), cluster=CLUSTER)
    with pytest.raises(PlanError, match="does not say how many arguments it takes: first call"):
        step.init(init, KEY, batch=BATCH)
