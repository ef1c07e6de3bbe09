"""The check of the zoo: which differences it accepts as rounding, and which it does not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo.check import largest_difference, refer
from zoo.example import Example
from zoo.precise import precise


def test_a_difference_is_relative_to_the_largest_element_of_its_array():
    ours = {"w": jnp.array([100.0, 1.0]), "b": jnp.array([2e-9])}
    theirs = {"w": jnp.array([100.0, 2.0]), "b": jnp.array([2e-9])}
    assert largest_difference(ours, theirs, [0.0, 0.0]) == (pytest.approx(0.01), "['w']")
    with pytest.raises(AssertionError, match="same kind"):
        largest_difference(ours["b"], ours["w"], [0.0])


def test_a_difference_of_four_errors_of_one_device_is_just_tolerated():
    ours, theirs = jnp.array([3e-9]), jnp.array([-1e-9])
    assert largest_difference(ours, theirs, [1e-9])[0] == pytest.approx(1e-5)
    assert largest_difference(ours, theirs, [0.0])[0] == pytest.approx(4.0)


def test_errors_of_one_device_are_zero_where_float32_is_exact_and_otherwise_a_rounding():
    def step(w, batch):
        return w / 3, w + batch

    example = Example(step, lambda key: (jnp.float32(1), jnp.float32(2)), (1,))
    errors = refer(example, n_steps=3).errors
    assert errors[1] < 1e-7
    assert 1e-10 < errors[0] < 1e-7
    exact = Example(lambda w, batch: (w / 2, w), example.init, (1,))
    assert refer(exact, n_steps=3).errors == (0.0, 0.0)


def test_a_change_by_one_unit_in_the_last_place_counts_as_an_error():
    example = Example(
        lambda w, batch: (w * 1, batch), lambda key: (jnp.float32(1), jnp.float32(2)), (1,)
    )
    assert refer(example, n_steps=1).errors == (0.0, 0.0)
    (error, _) = refer(example, n_steps=1, nudge=True).errors
    assert error in (2.0**-23, 2.0**-24)  # the units above 1 and below 1


def test_a_gradient_that_is_zero_but_for_rounding_is_all_error():
    def step(w, batch):
        loss = lambda w: jnp.sum(jax.nn.softmax(batch + w) * jnp.arange(4.0))  # noqa: E731
        return w - jax.grad(loss)(w), loss(w)  # adding w to all logits does not change a softmax

    def init(key):
        return jnp.float32(0), jax.random.normal(key, (8, 4))

    reference = refer(Example(step, init, (1,)))
    largest = max(abs(float(result[0])) for result in reference.results)
    assert reference.errors[0] == pytest.approx(largest, rel=1e-3)


def plain(x):
    def iterate(carry, y):
        carry = jnp.sin(carry * y)
        return carry, carry / 3

    carry, ys = jax.lax.scan(iterate, x.sum(), x, reverse=True)
    doubled = jax.lax.while_loop(lambda z: z < 100, lambda z: z * 2 + x[0], carry + 1)
    chosen = jax.lax.cond(x[0] > 0, lambda z: z / 3, lambda z: -z, doubled)
    return chosen, ys, jnp.zeros(3).at[jnp.array([0, 1, 0])].add(x[:3])


def test_a_precise_step_is_the_step_in_float64():
    x = np.random.default_rng(0).random(5, np.float32) + 0.5
    with jax.enable_x64(True):
        expected = jax.jit(plain)(jnp.asarray(x, jnp.float64))
    wide = precise(plain, (x,))(x)
    for a, b in zip(jax.tree.leaves(wide), jax.tree.leaves(expected), strict=True):
        assert a.dtype == np.float64
        np.testing.assert_allclose(a, b, rtol=1e-14)
    narrow = jax.jit(plain)(x)
    assert not np.array_equal(wide[1], narrow[1])
    np.testing.assert_allclose(wide[1], narrow[1], rtol=1e-5)


def test_a_precise_step_draws_the_same_random_numbers():
    def draw(key):
        return jax.random.uniform(key, (100,)), jax.random.bernoulli(key, 0.3, (100,))

    key = jax.random.key(7)
    for drawn, expected in zip(precise(draw, (key,))(key), jax.jit(draw)(key), strict=True):
        np.testing.assert_array_equal(drawn, expected)


def test_a_precise_step_does_not_round_to_bfloat16():
    def rounded(x):
        return jnp.sum(x.astype(jnp.bfloat16) * 2)

    x = np.float32([1 / 3, 1e-4])
    assert float(precise(rounded, (x,))(x)) == 2 * float(np.float64(x[0]) + np.float64(x[1]))
