"""Batches made of examples, in one process; test_resume.py has several."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from costmodel import Cluster
from frontends.errors import BatchError, PlanError
from frontends.jax import ParallelStep, parallelize
from frontends.jax.state.data import rows_of_process
from frontends.program.instructions import Load

CLUSTER = Cluster.preset("two-hosts").resized(devices_per_host=1)
WEIGHTS = jnp.eye(3)


def step(weights: Any, batch: Any) -> Any:
    def loss(weights: Any) -> Any:
        return jnp.mean((batch["x"] @ weights - batch["y"]) ** 2)

    return weights - 0.1 * jax.grad(loss)(weights)


def batch_of(numbers: Any) -> dict[str, Any]:
    rows = np.repeat(np.asarray(numbers, np.float32)[:, None], 3, 1)
    return {"x": rows, "y": rows.copy()}


EXAMPLES = [{name: np.full(3, i, np.float32) for name in ("x", "y")} for i in range(10)]


@pytest.fixture(scope="module")
def parallel() -> ParallelStep:
    planned = parallelize(step, cluster=CLUSTER, microbatches=2)
    planned.prepare(WEIGHTS, batch_of(range(4)))
    return planned


def numbers_of(batch: Any) -> list[int]:
    assert jax.tree.structure(batch) == jax.tree.structure(EXAMPLES[0])
    np.testing.assert_array_equal(batch["x"], batch["y"])
    return [int(number) for number in batch["x"][:, 0]]


def test_batches_have_the_order_of_the_examples_again_and_again(parallel: ParallelStep) -> None:
    batches = list(itertools.islice(parallel.feed(EXAMPLES), 3))
    assert [numbers_of(b) for b in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 3]]
    ours = theirs = WEIGHTS
    for batch in batches:
        ours, theirs = parallel(ours, batch), step(theirs, batch)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_a_seed_orders_each_epoch_anew(parallel: ParallelStep) -> None:
    first, second, third = (
        [numbers_of(batch) for batch in itertools.islice(parallel.feed(EXAMPLES, seed=seed), 4)]
        for seed in (1, 1, 2)
    )
    assert first == second != third
    for epoch in (first[:2], first[2:]):
        assert len({number for numbers in epoch for number in numbers}) == 8
    assert first[:2] != first[2:]


def test_it_starts_where_a_run_goes_on(parallel: ParallelStep) -> None:
    every = list(itertools.islice(parallel.feed(EXAMPLES, seed=3), 5))
    later = list(itertools.islice(parallel.feed(EXAMPLES, seed=3, start=3), 2))
    assert [numbers_of(b) for b in later] == [numbers_of(b) for b in every[3:]]


def test_several_arguments_of_batch_come_as_a_tuple() -> None:
    def two(x: Any, weights: Any, y: Any) -> Any:
        return step(weights, {"x": x, "y": y})

    parallel = parallelize(two, cluster=CLUSTER, microbatches=2, batch_argnums=(0, 2))
    whole = batch_of(range(4))
    parallel.prepare(whole["x"], WEIGHTS, whole["y"])
    pairs = [(e["x"], e["y"]) for e in EXAMPLES]
    x, y = next(iter(parallel.feed(pairs)))
    np.testing.assert_array_equal(x, whole["x"])
    np.testing.assert_array_equal(y, whole["y"])


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        (EXAMPLES[:3], "one batch at least; got 3 examples for batches of 4"),
        ([{"x": np.zeros(3)}] * 4, "has the structure of the batch that the step was planned for"),
        (
            [{"x": np.zeros(2), "y": np.zeros(3)}] * 4,
            r"got batch\['x'\] of float64\[2\] instead of float32\[3\]",
        ),
        (
            [{"x": np.zeros(3), "y": np.zeros(3, complex)}] * 4,
            r"got batch\['y'\] of complex128\[3\] instead of float32\[3\]",
        ),
    ],
    ids=["few", "structure", "shape", "type"],
)
def test_rejects_examples_that_make_no_batch(
    parallel: ParallelStep, examples: Any, message: str
) -> None:
    with pytest.raises(BatchError, match=message):
        next(iter(parallel.feed(examples)))


def test_rejects_a_step_that_it_cannot_make_batches_for() -> None:
    parallel = parallelize(
        lambda w, batch: step(w, {"x": batch["x"] * batch["scale"], "y": batch["y"]}),
        cluster=CLUSTER,
        microbatches=1,
    )
    with pytest.raises(PlanError, match="a step has a plan after its first call"):
        parallel.feed(EXAMPLES)
    parallel.prepare(WEIGHTS, batch_of(range(4)) | {"scale": np.float32(2.0)})
    with pytest.raises(
        BatchError, match=r"one row for each example; got batch\['scale'\] of shape \(\)"
    ):
        parallel.feed(EXAMPLES)


def test_rows_are_needed_for_devices_and_for_what_is_computed_on_the_whole_batch() -> None:
    def masked(weights: Any, batch: Any) -> Any:
        def loss(weights: Any) -> Any:
            errors = jnp.sum((batch["x"] @ weights - batch["y"]) ** 2)
            return errors / jnp.sum(batch["mask"])

        return weights - 0.1 * jax.grad(loss)(weights)

    parallel = parallelize(masked, cluster=CLUSTER, microbatches=2)
    others = {"mask": np.ones(4, np.float32), "unread": np.ones((4, 2), np.float32)}
    runtime = parallel.compile(WEIGHTS, batch_of(range(4)) | others)
    trace = parallel.planned.trace
    rows = rows_of_process(runtime, trace)
    found = {trace.arguments[i].name: list(needed) for i, needed in rows.items()}
    assert found.pop("batch['unread']") == []
    loaded = {item.slot.value for item in runtime.program.instructions if isinstance(item, Load)}
    assert "batch['mask']" not in loaded
    assert set(map(tuple, found.values())) == {(0, 1, 2, 3)}


def test_examples_that_are_added_to_a_microbatch_are_among_its_own() -> None:
    cluster = Cluster.preset("two-hosts").resized(n_hosts=1, devices_per_host=3)
    parallel = parallelize(step, cluster=cluster, microbatches=2, dp=3)
    runtime = parallel.compile(WEIGHTS, batch_of(range(10)))
    trace = parallel.planned.trace
    assert trace.rows["batch['x']"] == [0, 1, 2, 3, 4, 4, 5, 6, 7, 8, 9, 9]
    assert {tuple(rows) for rows in rows_of_process(runtime, trace).values()} == {(*range(10),)}
    ours = theirs = WEIGHTS
    for batch in itertools.islice(parallel.feed(EXAMPLES), 3):
        ours, theirs = parallel(ours, batch), step(theirs, batch)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
