"""Experts without capacity sort the rows of a batch; each example can sort its own instead."""

import autoshard
import frontends.jax as mw
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from costmodel import Cluster
from frontends.errors import AccumulationError
from frontends.jax.testing import assert_same, run_in_microbatches, sgd
from frontends.jax.trace.trace import Capture
from frontends.step.sorted_rows import RowNumbers, RowOrder
from frontends.testing import routed, routings
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

EXPERTS, WAYS, WIDTH = 4, 2, 8
RNG = np.random.default_rng(0)
CLUSTER = Cluster.preset("two-hosts").resized(devices_per_host=2)
SAME = {"tolerance": 1e-5, "least": 1e-3}


def numbers(*shape):
    return RNG.normal(size=shape).astype(np.float32)


WEIGHTS = {
    "router": numbers(WIDTH, EXPERTS),
    "up": numbers(EXPERTS, WIDTH, 16) / 3,
    "down": numbers(EXPERTS, WIDTH, 16) / 3,
    "bias": numbers(EXPERTS, 16) / 3,
    "square": numbers(EXPERTS, WIDTH, WIDTH) / 3,
}


class Library:
    """What `routed` needs of JAX."""

    argsort, arange = staticmethod(jnp.argsort), staticmethod(jnp.arange)

    @staticmethod
    def widened(places, width):
        return jnp.broadcast_to(places[:, None], (len(places), width))

    @staticmethod
    def add(rows, places):
        return jnp.zeros_like(rows).at[places].add(rows)

    @staticmethod
    def put(rows, places):
        return jnp.zeros_like(rows).at[places].set(rows)

    @staticmethod
    def product(rows, experts, keys):
        return lax.ragged_dot(rows, experts, jnp.bincount(keys, length=EXPERTS))


@settings(max_examples=settings().max_examples // 8)
@given(routings(), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]))
def test_random_routings_are_the_same_or_refused(moves, microbatches, tokens):
    def loss(weights, x):
        rows = x.reshape(-1, WIDTH) @ weights["square"][1]
        keys = lax.top_k(rows @ weights["router"], WAYS)[1][:, 0]
        made = routed(moves, rows, weights["square"], keys, Library)
        return sum(jnp.mean(value * value / (1 + value * value)) for value in made)

    step, x = sgd(loss), numbers(4, tokens, WIDTH)
    try:
        trace = Capture(step, (WEIGHTS, x), (1,)).at(microbatches)
    except AccumulationError:
        assert microbatches > 1
        return
    autoshard.verify(trace.step.graph)
    assert_same(run_in_microbatches(trace, (WEIGHTS, x)), jax.jit(step)(WEIGHTS, x), **SAME)


def _counted(keys):
    return jnp.bincount(keys, length=EXPERTS)


def _one_hot(keys):
    return jax.nn.one_hot(keys, EXPERTS, dtype=jnp.int32).sum(0)


def _equal(keys):
    return (keys[:, None] == jnp.arange(EXPERTS)).sum(0)


def _scattered(keys):
    return jnp.zeros(EXPERTS, jnp.int32).at[keys].add(1)


def _unsorted(x, weights, order, run):
    """As MaxText does it."""
    made = run(jnp.take(x, order // WAYS, axis=0))
    made = jnp.take(made, jnp.argsort(order), axis=0).reshape(-1, WAYS, WIDTH)
    return jnp.einsum("tkd,tk->td", made, weights)


def _added(x, weights, order, run):
    token = jnp.repeat(jnp.arange(len(x)), WAYS)[order]
    made = run(x[token]) * weights.reshape(-1)[order, None]
    return jnp.divide(x, 2).at[token].add(made)


def _put(x, weights, order, run):
    rows = run(jnp.repeat(x, WAYS, axis=0)[order])
    made = jnp.zeros_like(rows).at[order].set(rows, unique_indices=True)
    return (made.reshape(-1, WAYS, WIDTH) * weights[..., None]).sum(1)


def experts(count, move, keep=None):
    def layer(p, x):
        rows = jnp.reshape(x, (-1, WIDTH))
        weights, chosen = lax.top_k(jax.nn.softmax(rows @ p["router"]), WAYS)
        keys = chosen.reshape(-1)
        order = jnp.argsort(keys)
        sizes = count(keys)

        def run(chosen):
            hidden = jax.nn.relu(lax.ragged_dot(chosen, p["up"], sizes) + p["bias"][keys[order]])
            hidden = hidden if keep is None else hidden * keep(hidden.shape)
            return lax.ragged_dot(hidden, p["down"].swapaxes(1, 2), sizes)

        return move(rows, weights, order, run).reshape(x.shape)

    return sgd(lambda p, x: jnp.mean(layer(p, layer(p, x)) ** 2))


@pytest.mark.parametrize("count", [_counted, _one_hot, _equal, _scattered])
@pytest.mark.parametrize("move", [_unsorted, _added, _put])
def test_experts_as_libraries_write_them_run_in_microbatches(count, move):
    step, x = experts(count, move), numbers(4, 3, WIDTH)
    trace = Capture(step, (WEIGHTS, x), (1,)).at(4)
    assert_same(run_in_microbatches(trace, (WEIGHTS, x)), jax.jit(step)(WEIGHTS, x), **SAME)


def test_numbers_of_rows_are_those_of_the_whole_batch():
    def loss(p, x):
        rows = jnp.arange(12.0)
        order = jnp.argsort(x.reshape(-1, WIDTH) @ p["router"][:, 0])
        return jnp.mean(x @ p["square"][0]) * rows.mean() + jnp.sum(rows[order] * rows) / 12**3

    step, x = sgd(loss), numbers(4, 3, WIDTH)
    trace = Capture(step, (WEIGHTS, x), (1,)).at(1)
    assert_same(run_in_microbatches(trace, (WEIGHTS, x)), jax.jit(step)(WEIGHTS, x), **SAME)


def test_copies_of_numbers_are_not_made():
    rows, columns = 10**5, 10**7  # a terabyte of copies
    table = np.broadcast_to(np.arange(rows)[:, None], (rows, columns))
    order = RowOrder(rows)
    found = RowNumbers(order, 0, order, table)
    assert found.points_into(rows, 4)
    assert not found.is_same_in_all(4)
    assert found.is_vector
    assert found.vector.is_permutation


def test_which_example_a_place_among_sorted_rows_belongs_to_is_not_known():
    batch, by_key = RowOrder(8), RowOrder(8, "sort.0", "keys")
    next_of_example = np.array([1, 0, 3, 2, 5, 4, 7, 6])
    assert RowNumbers(by_key, 0, batch, next_of_example).points_into(8, 4)
    assert not RowNumbers(batch, 0, by_key, next_of_example).points_into(8, 4)
    assert RowNumbers.of(batch, by_key).points_into(8, 4)
    in_turn = np.arange(8) % 2
    assert RowNumbers(by_key, 0, batch, in_turn).is_same_in_all(4)
    assert not RowNumbers(batch, 0, by_key, in_turn).is_same_in_all(4)


def test_a_batch_of_tokens_sorts_each_token_alone():
    step, x = experts(_counted, _unsorted), numbers(12, WIDTH)
    trace = Capture(step, (WEIGHTS, x), (1,)).at(3)
    assert_same(run_in_microbatches(trace, (WEIGHTS, x)), jax.jit(step)(WEIGHTS, x), **SAME)


def test_what_depends_on_the_order_of_all_rows_is_refused():
    def every_other(shape):
        return (jnp.arange(shape[0]) % 5 == 0)[:, None]

    step, x = experts(_counted, _unsorted, every_other), numbers(4, 3, WIDTH)
    capture = Capture(step, (WEIGHTS, x), (1,))
    assert_same(run_in_microbatches(capture.at(1), (WEIGHTS, x)), step(WEIGHTS, x), **SAME)
    with pytest.raises(AccumulationError, match=r"sort\.\d+ .* needs all examples at once"):
        capture.at(2)


@pytest.mark.parametrize(
    "options",
    [
        {"stages": 2, "microbatches": 2},
        {"stages": 1, "microbatches": 1, "pin": {"w['up']": "S0RR"}},
        {"stages": 1, "microbatches": 1, "pin": {"w['up']": "S01RR"}},
    ],
    ids=["stages", "pairs of experts", "single experts"],
)
def test_experts_are_split_by_the_batch_and_by_expert(options):
    step, x = experts(_counted, _unsorted), numbers(8, 4, WIDTH)
    planned = mw.parallelize(step, cluster=CLUSTER, **options)
    assert_same(jax.tree.leaves(planned(WEIGHTS, x)), step(WEIGHTS, x), **SAME)


def test_devices_that_share_a_batch_sort_their_own_rows():
    x = jax.ShapeDtypeStruct((2048, 16, WIDTH), jnp.float32)
    plan = mw.plan_for(
        experts(_counted, _unsorted),
        (WEIGHTS, x),
        CLUSTER,
        microbatches=1,
        strategy="data_parallel",
    ).plan
    (stage,) = plan.stages
    largest = max(w.nbytes for w in WEIGHTS.values())  # the gradient of one parameter
    assert stage.collectives
    assert max(collective.n_bytes for collective in stage.collectives) <= largest
