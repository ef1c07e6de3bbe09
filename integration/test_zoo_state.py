"""The first state of every model of the zoo is made sharded, saved, and restored on one device."""

import frontends.jax as mw
import jax
import numpy as np
import pytest
from zoo.cases import SMALL
from zoo.check import TWO_HOSTS

mw.init(8)  # before anything else uses JAX

DAILY = {"gpt, equinox", "gpt, flax linen"}
NAMES = [name if name in DAILY else pytest.param(name, marks=pytest.mark.nightly) for name in SMALL]


def assert_equal(ours, theirs):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("name", NAMES)
def test_sharded_state_equals_that_of_one_device_bit_for_bit_also_when_restored(name, tmp_path):
    example = SMALL[name].example()
    n_state = min(example.batch_argnums)

    def init(key):
        return example.init(key)[:n_state]

    step = mw.parallelize(
        example.step,
        cluster=TWO_HOSTS,
        batch_argnums=example.batch_argnums,
        strategy="equal_layers",
        microbatches=1,
    )
    key = jax.random.key(3)
    step.prepare(*jax.eval_shape(example.init, key))
    state, expected = step.init(init, key), jax.jit(init)(key)
    assert len({leaf.sharding.mesh for leaf in jax.tree.leaves(state)}) == 2
    assert_equal(state, expected)
    mw.save(tmp_path, 0, state)
    assert_equal(mw.restore(tmp_path, jax.eval_shape(init, key)), expected)
