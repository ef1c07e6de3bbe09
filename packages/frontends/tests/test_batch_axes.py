"""Batches whose examples are in other dims than the leading one."""

from typing import NamedTuple

import frontends.jax as mw
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from costmodel import Cluster
from frontends.base.batch_axes import BatchLeafShape, axes_of, copied
from frontends.errors import BatchError
from frontends.jax.testing import assert_same
from hypothesis import given
from hypothesis import strategies as st

CLUSTER = Cluster.preset("two-hosts").resized(devices_per_host=2)
RNG = np.random.default_rng(0)
W = {"x": RNG.normal(size=(4, 4)).astype(np.float32), "h": np.eye(4, dtype=np.float32) / 2}
TOKENS = 3


def batch(n):
    x, y = RNG.normal(size=(2, TOKENS, n, 4)).astype(np.float32)
    return {"x": x, "y": [y.swapaxes(0, 1)], "of_token": np.arange(TOKENS, dtype=np.float32)}


def step(w, batch):
    """A recurrence over the leading dim."""

    def loss(w):
        def run(h, x):
            h = jnp.tanh(x @ w["x"] + h @ w["h"])
            return h, h

        _, hidden = jax.lax.scan(run, jnp.zeros_like(batch["x"][0]), batch["x"])
        errors = (hidden - batch["y"][0].swapaxes(0, 1)) ** 2
        return jnp.mean(errors * batch["of_token"][:, None, None])

    value, gradient = jax.value_and_grad(loss)(w)
    return jax.tree.map(lambda p, g: p - 0.1 * g, w, gradient), value


@pytest.mark.parametrize("options", [{"microbatches": 4}, {"stages": 2, "microbatches": 2}])
def test_a_step_whose_batch_has_tokens_first_runs_in_microbatches(options):
    axes = {"x": 1, "of_token": None}
    ours = mw.parallelize(step, cluster=CLUSTER, batch_axes=axes, n_layers=2, **options)
    mine, its = (jax.tree.map(jnp.array, W) for _ in range(2))
    for n in (8, 8, 4):  # the last one is short
        given_ = batch(n)
        mine, value = ours(mine, given_)
        its, expected = jax.jit(step)(its, given_)
        assert_same([value], expected)
    assert_same(jax.tree.leaves(mine), its)
    assert len(ours.variants) == 2
    assert "batch['x']" not in [v.name for v in ours.planned.trace.arguments if v.is_batch]


def test_the_batch_may_be_several_arguments():
    def several(w, x, scale, y):
        return step(w, {"x": x, "y": [y], "of_token": scale})

    b = batch(8)
    arguments = W, b["x"], b["of_token"], b["y"][0]
    options = {"batch_argnums": (1, 2, 3), "batch_axes": (1, None, 0), "microbatches": 2}
    ours = mw.parallelize(several, cluster=CLUSTER, **options)
    assert_same(jax.tree.leaves(ours(*arguments)), jax.jit(several)(*arguments))


@given(st.data())
def test_each_leaf_has_the_dim_that_is_said_for_it_or_for_what_contains_it(data):
    shapes = data.draw(st.lists(st.lists(st.integers(1, 3), max_size=3), min_size=1, max_size=3))
    leaves = [BatchLeafShape(f"b[{i}]", (i,), tuple(shape)) for i, shape in enumerate(shapes)]
    said = [data.draw(st.none() | st.integers(-len(s), max(len(s) - 1, 0))) for s in shapes]
    expected = [
        None if axis is None or not shape else axis % len(shape)
        for axis, shape in zip(said, shapes, strict=True)
    ]
    assert axes_of(said, leaves) == axes_of(dict(enumerate(said)), leaves) == expected
    assert axes_of(said[:1], leaves) == [expected[0], *(0 if s else None for s in shapes[1:])]
    nested = [BatchLeafShape(leaf.name, ("in", *leaf.keys), leaf.shape) for leaf in leaves]
    assert axes_of({"in": said}, nested) == expected
    assert axes_of({"in": None}, nested) == [None] * len(leaves)


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ("x", "number of a dim for each leaf.*got 'x'"),
        (True, "number of a dim for each leaf.*got True"),
        ({"x": 3}, r"batch\['x'\] has shape \(3, 8, 4\), and batch_axes 3"),
        ({"z": 1}, r"an item at \['z'\], where the batch has none"),
        ({"y": {"z": 1}}, r"an item at \['y'\]\['z'\]"),
    ],
)
def test_other_axes_are_refused(axes, message):
    with pytest.raises(BatchError, match=message):
        mw.plan_for(step, (W, batch(8)), CLUSTER, batch_axes=axes)


def test_axes_are_those_of_the_time_when_the_step_was_made():
    axes = {"x": 1, "of_token": None}
    ours = mw.parallelize(step, cluster=CLUSTER, batch_axes=axes, microbatches=2)
    axes["x"] = 0
    b = batch(8)
    assert_same(jax.tree.leaves(ours(W, b)), jax.jit(step)(W, b))
    assert "batch['x']" not in [v.name for v in ours.planned.trace.arguments if v.is_batch]
    named = NamedTuple("named", [("x", int), ("of_token", None)])(1, None)
    assert copied(named) == {"x": 1, "of_token": None}


def test_state_is_made_and_loaded_where_no_leaf_leads_with_examples():
    def mean(w, x):
        value, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w)
        return w - gradient, value

    x = batch(8)["x"]
    ours = mw.parallelize(mean, cluster=CLUSTER, batch_axes=1, microbatches=2)
    w = ours.init(lambda key: jax.random.normal(key, (4, 4)), jax.random.key(0), batch=x)
    assert_same(jax.tree.leaves(ours(ours.load_state_dict(np.asarray(w)), x)), jax.jit(mean)(w, x))


def test_batches_are_not_made_of_examples_along_another_dim():
    """Examples of the shape of a row of the leading dim would be taken for tokens."""
    ours = mw.parallelize(step, cluster=CLUSTER, batch_axes={"x": 1, "of_token": None})
    ours.prepare(W, batch(8))
    with pytest.raises(BatchError, match=r"batch\['x'\] has them in dim 1: make the batches"):
        ours.feed([batch(8)] * 9)


def test_the_dim_is_named_that_microbatches_do_not_divide():
    with pytest.raises(BatchError, match=r"dim 1 must be a multiple.*batch\['x'\]"):
        mw.plan_for(
            step, (W, batch(8)), CLUSTER, batch_axes={"x": 1, "of_token": None}, microbatches=3
        )
