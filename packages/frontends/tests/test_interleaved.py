"""Steps whose examples move from dim to dim run in microbatches, and are the same as in one."""

from math import prod

import autoshard
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from frontends.errors import AccumulationError
from frontends.jax.testing import assert_same, run_in_microbatches, sgd
from frontends.jax.trace.trace import Capture
from frontends.step.examples import Join, Place
from frontends.step.interleaved import Reordering, pieces_apart
from frontends.testing import rearranged, rearrangements
from hypothesis import given, settings
from hypothesis import strategies as st

RNG = np.random.default_rng(0)
W = RNG.normal(size=(4, 4)).astype(np.float32) / 2
X = RNG.normal(size=(4, 3, 4)).astype(np.float32)


def moved(array, move):
    return array.reshape(move.apart).transpose(move.order).reshape(move.result)


@given(st.lists(st.integers(1, 4), max_size=2), st.integers(1, 4), st.integers(1, 4))
def test_the_new_order_has_the_examples_first_and_can_be_undone(before, outer, examples):
    shape = (*before, outer * examples, 2)
    how = Reordering({"x": Place(len(before), outer)}, frozenset(), {}, {})
    old = np.broadcast_to(np.tile(np.arange(examples), outer)[:, None], shape)
    new = moved(old, how.to_new("x", shape))
    assert (new == np.repeat(np.arange(examples), outer)[:, None]).all()
    numbered = np.arange(prod(shape)).reshape(shape)
    there = moved(numbered, how.to_new("x", shape))
    assert (moved(there, how.to_old("x", shape)) == numbered).all()


def test_pieces_are_ranges_of_equal_size():
    join = Join.of(1, ["whole"], 12, [("a", 0, 4), ("b", 4, 12)])
    assert join == Join(1, 3, ("whole",), (("a", 0, 1), ("b", 1, 2)))
    assert Join.of(0, ["whole"], 12, [("a", 0, 12)]) is None
    assert join.outer({"a": Place(1, 2)}) == join.outer({"b": Place(1, 4)}) == 2
    assert join.outer({"whole": Place(1, 6)}) == 2
    assert join.outer({"whole": Place(1, 2)}) is None, "a piece has part of the examples"
    assert join.outer({"a": Place(0, 1)}) is None, "other dims hold the examples"
    assert join.outer({"a": Place(1, 1), "b": Place(1, 1)}) is None, "b has them twice, or once"
    assert dict(join.places(1)) == {"whole": Place(1, 3), "a": Place(1, 1), "b": Place(1, 2)}
    assert pieces_apart((5, 12, 7), 1, 3, 2) == (5, 2, 3, 2, 7)


def step_of(moves):
    def loss(w, x):
        keys = iter(jax.random.split(jax.random.key(1), len(moves)))
        keep = lambda shape: jax.random.bernoulli(next(keys), 0.7, shape)  # noqa: E731
        return jnp.mean(rearranged(moves, x, w, jnp, keep) ** 2)

    return sgd(loss)


@settings(max_examples=settings().max_examples // 5)
@given(rearrangements(), st.sampled_from([1, 2, 4]))
def test_random_steps_that_move_their_examples_run_in_microbatches(moves, microbatches):
    step = step_of(moves)
    trace = Capture(step, (W, X), (1,)).at(microbatches)
    autoshard.verify(trace.step.graph)
    assert_same(run_in_microbatches(trace, (W, X)), step(W, X), tolerance=1e-5, least=1e-3)


def test_nothing_changes_where_no_dim_interleaves_examples():
    step = step_of((("product", 0), ("merge", 0), ("tanh", 0)))
    kinds = [op.kind for op in Capture(step, (W, X), (1,)).at(1).step.graph.operators]
    assert "transpose" not in kinds[: kinds.index("tanh")]


@pytest.mark.parametrize("microbatches", [1, 2])
def test_what_needs_the_old_order_gets_it(microbatches):
    """Rows are picked by their places, and returned in their order."""

    def step(w, x):
        def loss(w):
            rows = (x.swapaxes(0, 1).reshape(-1, 4) @ w) ** 2
            both = jnp.concatenate([rows, jnp.sin(rows)])
            picked = rows[::5].sum() + both[::7].sum() + both[2:2].sum()
            return rows.sum() + (picked if microbatches == 1 else 0.0), (rows, both)

        (value, rows), gradient = jax.value_and_grad(loss, has_aux=True)(w)
        return w - gradient, value, rows

    trace = Capture(step, (W, X), (1,)).at(microbatches)
    assert_same(run_in_microbatches(trace, (W, X)), step(W, X), tolerance=1e-5)


def test_pairs_of_examples_are_refused():
    def loss(w, x):
        rows = jnp.concatenate([x, x + 1]).mean(1) @ w
        return jax.nn.logsumexp(jnp.tanh(rows @ rows.T) @ rows @ w.T)

    with pytest.raises(AccumulationError, match=r"rows @ rows\.T"):
        Capture(sgd(loss), (W, X), (1,)).at(2)
