"""What runs is compared with what was promised, and a difference is found."""

import math
from dataclasses import replace

import frontends.jax as mw
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from costmodel import Cluster
from frontends import VerificationError
from frontends.jax.run.verify import check_collectives
from frontends.jax.testing import EXAMPLES, assert_same
from frontends.run.verify import RELATIVE_TOLERANCE, check_losses
from hypothesis import given
from hypothesis import strategies as st


@given(
    st.lists(st.floats(0.1, 10), min_size=1, max_size=12),
    st.lists(st.floats(-0.9, 0.9), min_size=12, max_size=12),
)
def test_losses_within_the_tolerance_are_equal(losses: list[float], noise: list[float]) -> None:
    single = [loss / (1 + RELATIVE_TOLERANCE * e) for loss, e in zip(losses, noise, strict=False)]
    assert check_losses(losses, single) <= RELATIVE_TOLERANCE


@given(
    st.lists(st.floats(0.1, 10), min_size=1, max_size=12),
    st.data(),
    st.sampled_from([1 + 2 * RELATIVE_TOLERANCE, 1 - 2 * RELATIVE_TOLERANCE, math.nan, math.inf]),
)
def test_one_wrong_loss_is_found(losses: list[float], data: st.DataObject, factor: float) -> None:
    step = data.draw(st.integers(0, len(losses) - 1))
    wrong = [loss * factor if i == step else loss for i, loss in enumerate(losses)]
    with pytest.raises(VerificationError, match=rf"; step {step + 1} has .* instead of"):
        check_losses(wrong, losses)


def test_a_loss_that_should_be_zero_must_be() -> None:
    with pytest.raises(VerificationError, match=r"step 1 has 1\.0 instead of 0\.0"):
        check_losses([1.0], [0.0])
    assert check_losses([0.0], [0.0]) == 0.0


def test_runs_of_different_length_are_not_compared() -> None:
    with pytest.raises(ValueError, match="longer"):
        check_losses([1.0], [1.0, 2.0])


def test_programs_that_communicate_otherwise_than_planned_are_found() -> None:
    def step(weight: jax.Array, batch: jax.Array) -> jax.Array:
        return weight - jax.grad(lambda w: jnp.square(jnp.tanh(batch @ w)).mean())(weight)

    arguments = (jnp.ones((8, 8)), jnp.ones((16, 8)))
    parallel = mw.parallelize(step, cluster=Cluster.preset("two-hosts:1"), strategy="data_parallel")
    runtime = parallel.compile(*arguments)
    (stage,) = runtime.plan.stages
    assert check_collectives(runtime) == len(stage.collectives) > 0
    for wrong in (stage.collectives[1:], (*stage.collectives, stage.collectives[0])):
        runtime.plan = replace(runtime.plan, stages=(replace(stage, collectives=wrong),))
        with pytest.raises(VerificationError, match="must communicate what the plan says"):
            check_collectives(runtime)


def test_a_step_is_verified_and_its_arguments_stay() -> None:
    example = EXAMPLES["adamw"]()
    cluster = Cluster.preset("two-hosts").resized(devices_per_host=2)
    options = {"cluster": cluster, "microbatches": 2, "strategy": "equal_layers"}
    step = mw.parallelize(example.function, **options, donate=True)
    params, opt_state, batch = example.arguments
    before = jax.tree.map(np.array, (params, opt_state))
    verified = step.verify(params, opt_state, batch=batch, n_steps=3)
    assert (verified.n_steps, verified.tolerance) == (3, RELATIVE_TOLERANCE)
    assert max(verified.results, verified.state) < RELATIVE_TOLERANCE
    assert verified.n_collectives == check_collectives(step.compile())
    assert str(verified).startswith("ok: 3 steps return what plain ones do")
    assert_same(jax.tree.leaves((params, opt_state)), before)

    state = step.init(lambda: (params, opt_state))  # of two stages; a step may write over it
    assert step.verify(*state, batch).state < RELATIVE_TOLERANCE
    assert_same(jax.tree.leaves(step.state_dict(state)), before)


def test_steps_that_compute_otherwise_than_plain_ones_are_found() -> None:
    calls = []

    def step(weight: jax.Array, batch: jax.Array) -> tuple[jax.Array, jax.Array]:
        calls.append(1)  # traced once for the plan, and then for one device
        scale = 1.0 if len(calls) == 1 else 1.1
        loss = lambda w: scale * jnp.square(jnp.tanh(batch @ w)).mean()  # noqa: E731
        value, gradient = jax.value_and_grad(loss)(weight)
        return weight - gradient, value

    parallel = mw.parallelize(step, cluster=Cluster.preset("two-hosts:1"), strategy="zero")
    with pytest.raises(VerificationError, match="to a relative 1e-05; step 1 has"):
        parallel.verify(jnp.ones((8, 8)), jnp.ones((16, 8)))
