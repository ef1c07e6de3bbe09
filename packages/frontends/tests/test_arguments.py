"""What `plan_for` is given: options that mean nothing are refused."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from costmodel import Cluster
from frontends.errors import BatchError, PlanError
from frontends.jax import plan_for

CLUSTER = Cluster.preset("two-hosts").resized(devices_per_host=2)
W = jnp.ones((8, 8))
X = np.ones((8, 8), np.float32)


def step(w: Any, x: Any) -> Any:
    """One step of gradient descent."""
    value, gradient = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
    return w - 0.1 * gradient, value


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cluster": "two-hosts"}, r"cluster is a Cluster; got cluster='two-hosts'"),
        ({"plan": "plan.json"}, r"plan is a Plan; got plan='plan.json': Plan.load"),
        ({"pin": [("a", "b")]}, r"pin is a Mapping; got pin=\[\('a', 'b'\)\]"),
        ({"memory_bytes": "1GiB"}, r"memory_bytes is a whole number .*got memory_bytes='1GiB'"),
        ({"n_layers": 0}, r"n_layers is a whole number from 1 on, or None; got n_layers=0"),
        ({"microbatches": "2"}, r"microbatches is how many .*got microbatches='2'"),
        ({"microbatches": True}, r"got microbatches=True"),
        ({"microbatches": 2.0}, r"got microbatches=2.0"),
        ({"batch_argnums": "1"}, r"batch_argnums is the number .*got batch_argnums='1'"),
    ],
)
def test_what_cannot_be_planned_with_is_refused_before_anything_is_traced(
    options: dict[str, Any], message: str
) -> None:
    def untraceable(*arguments: Any) -> None:
        raise AssertionError

    with pytest.raises((PlanError, BatchError), match=message):
        plan_for(untraceable, (W, X), **({"cluster": CLUSTER} | options))


def test_one_number_is_batch_argnums_too() -> None:
    planned = plan_for(step, (W, X), CLUSTER, microbatches=2, batch_argnums=1)
    assert planned.plan == plan_for(step, (W, X), CLUSTER, microbatches=2).plan
    with pytest.raises(BatchError, match="got microbatches=4, and the plan has 2"):
        plan_for(step, (W, X), CLUSTER, microbatches=4, plan=planned.plan)


@pytest.mark.parametrize(
    ("pin", "message"),
    [
        ("S9R", r"a stage's mesh has axes 0 to 1; got 'S9R' for 'w'"),
        (4, r"on 4 devices make \d at most; got 4 for 'w'"),
    ],
)
def test_pins_that_no_stage_can_have_are_refused_before_the_search(
    pin: str | int, message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        plan_for(step, (W, X), CLUSTER, microbatches=2, pin={"w": pin})
