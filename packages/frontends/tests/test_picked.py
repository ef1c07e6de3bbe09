"""One element of each row is picked row by row, so that rows can be split."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from frontends.errors import AccumulationError
from frontends.jax.base.picked import by_rows
from frontends.jax.testing import assert_same, run_in_microbatches, sgd
from frontends.jax.trace.trace import Capture

RNG = np.random.default_rng(0)
N, TOKENS = 8, 3
W = RNG.normal(size=(4, 5)).astype(np.float32)
BATCH = {
    "x": RNG.normal(size=(N, TOKENS, 4)).astype(np.float32),
    "action": RNG.integers(-5, 5, N),
    "word": RNG.integers(0, 5, (N, TOKENS)),
}


def hidden(w, b):
    return jnp.tanh(b["x"] @ w)


LOSSES = {
    "value of an action": lambda w, b: (hidden(w, b)[:, 0][jnp.arange(N), b["action"]] ** 2).mean(),
    "last token": lambda w, b: (hidden(w, b)[jnp.arange(N), b["word"][:, 0] % 3] ** 3).sum(),
    "likelihood of labels": lambda w, b: (
        -jax.nn.log_softmax(hidden(w, b))[
            jnp.arange(N)[:, None], jnp.arange(TOKENS), b["word"]
        ].mean()
    ),
    "token of each word": lambda w, b: (
        hidden(w, b)[jnp.arange(N)[:, None], b["word"] % TOKENS, b["word"]] ** 2
    ).sum(),
    "rows in the second dim": lambda w, b: (
        hidden(w, b).swapaxes(0, 1)[b["word"][:, 0] % TOKENS, jnp.arange(N)] ** 2
    ).sum(),
    "written": lambda w, b: (hidden(w, b)[:, 0].at[jnp.arange(N), b["action"]].set(0.5) ** 3).sum(),
    "added": lambda w, b: (
        hidden(w, b)[:, 0].at[jnp.arange(N), b["action"]].add(b["x"][:, 1, 0]) ** 3
    ).sum(),
    "diagonals": lambda w, b: (hidden(w, b)[:, jnp.arange(3), jnp.arange(3)] ** 2).sum(),
}


@pytest.mark.parametrize("microbatches", [1, 4])
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_that_picks_one_element_of_each_row_runs_in_microbatches(name, microbatches):
    step = sgd(LOSSES[name])
    trace = Capture(step, (W, BATCH), (1,)).at(microbatches)
    assert_same(run_in_microbatches(trace, (W, BATCH)), step(W, BATCH), tolerance=1e-5)


def gathers(function, *arguments):
    program = by_rows(jax.make_jaxpr(function)(*arguments))
    return [e.params["dimension_numbers"] for e in program.jaxpr.eqns if "gather" in str(e)]


@pytest.mark.parametrize(
    "pick",
    [
        lambda x, i: x[jnp.arange(N - 1), i[1:]],
        lambda x, i: x[jnp.arange(1, N + 1) % N, i],
        lambda x, i: x[i % N, i],
        lambda x, i: x[jnp.arange(N)[::-1], i],
    ],
    ids=["fewer rows", "the next rows", "any rows", "the last row first"],
)
def test_other_indices_are_left_as_they_are(pick):
    x, i = BATCH["x"][:, :, 0], np.arange(N) % TOKENS
    (numbers,) = gathers(pick, x, i)
    assert (numbers.operand_batching_dims, numbers.start_index_map) == ((), (0, 1))


def test_a_count_that_begins_anew_is_no_count():
    many = np.arange(600.0).reshape(200, 3)
    i = np.arange(200) % 3
    (numbers,) = gathers(lambda x, i: x[jnp.arange(200, dtype=jnp.int32), i], many, i)
    assert numbers.operand_batching_dims == (0,)
    again = lambda: jnp.arange(200).astype(jnp.int8).astype(jnp.int32)  # noqa: E731
    (numbers,) = gathers(lambda x, i: x[again(), i], many, i)
    assert numbers.operand_batching_dims == ()


def test_rows_that_are_all_counted_keep_one_index():
    (numbers,) = gathers(lambda x: x[jnp.arange(3), jnp.arange(3)], np.eye(3))
    assert (numbers.operand_batching_dims, numbers.start_index_map) == ((0,), (1,))


def test_elements_of_other_rows_are_refused():
    def loss(w, b):
        others = hidden(w, b)[(jnp.arange(N) + 1) % N, b["action"] % TOKENS]
        return (jnp.tanh(others @ w.T) ** 2).mean()

    with pytest.raises(AccumulationError, match=r"gather\.\d+ .* needs all examples at once"):
        Capture(sgd(loss), (W, BATCH), (1,)).at(2)
