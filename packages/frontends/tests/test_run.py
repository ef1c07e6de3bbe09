"""The oracle: whatever a plan chooses, the parallel step is the single device's step.

Random plans put every layout, conversion, cut and transfer to use that a planner might choose, and
many that it never would. Adam's epsilon is large in the examples: `frontends.jax.testing` says why.
"""

import os
import random
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pipesched
import pytest
from costmodel import Cluster
from frontends.errors import AccumulationError, BatchError, DeviceError
from frontends.jax import parallelize
from frontends.jax.lower.compile import Submeshes
from frontends.jax.run.runtime import Runtime
from frontends.jax.testing import EXAMPLES, Example, mlp, steps
from frontends.jax.trace.trace import Capture, trace
from frontends.layers.layers import layer
from frontends.layers.recompute import recomputed
from frontends.layers.replicas import copied_as
from frontends.plan.plan_fields import REMATS, Remat
from frontends.plan.schedule import names_that_run
from frontends.testing import random_plan
from hypothesis import given, settings
from hypothesis import strategies as st
from shardspec import Mesh

MESHES = {
    1: (Mesh((2, 2), ("x", "y"), (0, 1, 2, 3)),),
    2: (Mesh((2, 2), ("x", "y"), (0, 1, 2, 3)), Mesh((2,), ("x",), (4, 5))),
    4: (Mesh((2,), ("x",), (0, 1)), Mesh((1,), ("x",), (4,))) * 2,
    "v": tuple(Mesh((2,), ("x",), ids) for ids in ((0, 1), (4, 5), (4, 5), (0, 1))),
    3: (
        Mesh((2,), ("x",), (0, 1)),
        Mesh((1,), ("x",), (6,)),
        Mesh((2, 2), ("x", "y"), (2, 3, 4, 5)),
    ),
}

CASES = [
    ("mlp", 1, "gpipe"),
    ("mlp", 2, "1f1b"),
    ("adamw", 2, "eager-1f1b"),
    ("clipped", 3, "1f1b"),
    ("tied", 2, "gpipe"),
    ("tied", 3, "eager-1f1b"),
    ("skip", 3, "1f1b"),
    ("gpt", 2, "1f1b"),
]
SCHEDULES = [
    ("mlp", 2, "zb-h1"),
    ("clipped", 2, "zb-h2"),
    ("tied", 2, "zb-1p"),
    ("skip", 2, "zb-auto"),
    ("mlp", 4, "interleaved-1f1b"),
    ("skip", 4, "looped-bfs"),
    ("mlp", "v", "zb-v"),
    ("tied", "v", "v-half"),
    ("clipped", "v", "v-min"),
    ("mlp", "v", "dualpipe-v"),
    ("clipped", 2, "dualpipe"),
    ("tied", 2, "chimera"),
    ("skip", 4, "chimera"),
]


def _others() -> list[tuple[str, Any, str]]:
    """Schedules that neither list has, on the meshes of their placement."""
    found = []
    for name in sorted({*names_that_run()} - {name for *_, name in (*CASES, *SCHEDULES)}):
        made = pipesched.schedule_entry(name).example
        is_v = made.placement == pipesched.Placement.v(len(made.ranks))
        found.append(("mlp", "v" if is_v else 2 * made.n_stages // len(made.ranks), name))
    return found


SCHEDULES += _others()
NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
SEEDS = range(25 if NIGHTLY else 1)


def runtime(
    example: Example,
    meshes: tuple[Mesh, ...],
    seed: int = 0,
    schedule: str = "1f1b",
    microbatches: int = 2,
) -> Runtime:
    traced = example.trace(microbatches)
    layered = layer(traced.step, 4)
    plan = random_plan(layered, meshes, random.Random(seed), schedule)
    copied = copied_as(layered, plan)
    traced = traced.with_copies(copied.traced)
    return Runtime(traced, copied.layered, plan, Cluster.preset("two-hosts"))


def assert_equal(
    ours: list[Any], theirs: Any, tolerance: float = 1e-5, least: float = 1e-6
) -> None:
    """Equal up to rounding, relative to the largest number of each array, or to `least`."""
    for a, b in zip(ours, jax.tree.leaves(theirs), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert np.abs(a - b).max() <= tolerance * max(np.abs(b).max(), least)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "n_stages", "schedule"), CASES)
def test_random_plans_compute_the_single_device_step(
    name: str, n_stages: int, schedule: str, seed: int
) -> None:
    example = EXAMPLES[name]()
    run = runtime(example, MESHES[n_stages], seed, schedule)
    single = jax.jit(example.function)
    ours, theirs = list(jax.tree.leaves(example.arguments)), example.arguments
    n_batch = len(jax.tree.leaves(example.batch))
    for _ in range(2):
        results = run(ours)
        expected = single(*theirs)
        assert_equal(results, expected)
        ours = [*results[:-1], *ours[-n_batch:]]  # state and loss out, state and batch in
        theirs = (*expected[:2], example.batch)


@pytest.mark.parametrize(("name", "meshes", "schedule"), SCHEDULES)
def test_every_schedule_computes_the_single_device_step(
    name: str, meshes: Any, schedule: str
) -> None:
    example = EXAMPLES[name]()
    results = runtime(example, MESHES[meshes], 0, schedule, microbatches=4)(
        jax.tree.leaves(example.arguments)
    )
    assert_equal(results, jax.jit(example.function)(*example.arguments))


@pytest.mark.parametrize(("name", "meshes", "schedule"), SCHEDULES)
def test_every_schedule_evaluates(name: str, meshes: Any, schedule: str) -> None:
    def step(params: Any, average: Any, batch: Any) -> Any:
        x = batch["x"]
        for each in params:
            x = jnp.tanh(x @ each["w"] + each["b"])
        loss = jnp.mean((x - batch["y"]) ** 2)
        return 0.9 * average + 0.1 * loss, loss, (x**2).sum(0)

    example = replace(mlp(), function=step, opt_state=np.float32(1.0))
    results = runtime(example, MESHES[meshes], 0, schedule, microbatches=4)(
        jax.tree.leaves(example.arguments)
    )
    assert_equal(results, jax.jit(step)(*example.arguments))


def test_a_schedule_given_as_text_drives_the_run() -> None:
    found = pipesched.delay_weight_gradients(pipesched.make("1f1b", 2, 4), pipesched.Costs(1, 2))
    example = mlp()
    run = runtime(example, MESHES[2], 0, str(replace(found, name="mine")), microbatches=4)
    assert_equal(run(jax.tree.leaves(example.arguments)), example.function(*example.arguments))


@given(
    *(steps(), st.integers(0, 2**32), st.sampled_from([1, 2]), st.sampled_from([1, 2, 3])),
    st.sampled_from(REMATS),
    st.sampled_from([0, 2]),
)
@settings(max_examples=settings().max_examples // 8)  # each compiles several programs
def test_random_plans_of_random_steps(
    drawn: tuple[Any, tuple[Any, Any]],
    seed: int,
    microbatches: int,
    n_stages: int,
    remat: Remat,
    added: int,
) -> None:
    function, arguments = drawn
    padded_to = added and len(arguments[1]["x"]) // microbatches + added
    try:
        traced = Capture(function, arguments, (1,)).at(microbatches, padded_to)
    except AccumulationError:
        return
    layered = layer(traced.step, 3)
    layered = layer(recomputed(traced.step, layered.layer_of, remat), 3)
    meshes = MESHES[min(n_stages, layered.n_layers)]
    plan = random_plan(layered, meshes, random.Random(seed))
    copied = copied_as(layered, plan)
    traced = traced.with_copies(copied.traced)
    run = Runtime(traced, copied.layered, plan, Cluster.preset("two-hosts"))
    assert_equal(run(traced.flatten(arguments)), function(*arguments), 1e-4, least=0.1)


def two_stages(function: Any, arguments: tuple[Any, ...], seed: int = 0) -> Runtime:
    traced = trace(function, arguments, batch_argnums=(-1,), microbatches=2)
    layered = layer(traced.step, 4)
    plan = random_plan(layered, MESHES[2], random.Random(seed))
    copied = copied_as(layered, plan)
    traced = traced.with_copies(copied.traced)
    return Runtime(traced, copied.layered, plan, Cluster.preset("two-hosts"))


RNG = np.random.default_rng(0)
WEIGHTS = [jnp.asarray(RNG.normal(size=(8, 8), scale=0.5), jnp.float32) for _ in range(3)]
X, Y = (RNG.normal(size=(8, 8)).astype(np.float32) for _ in range(2))


def network(weights: Any, x: Any) -> Any:
    for weight in weights:
        x = jnp.tanh(x @ weight)
    return x


def test_a_step_with_something_of_everything() -> None:
    """State and batch as dicts, counters, constants, masks, a penalty, random numbers, metrics."""
    mask = np.tril(np.ones((8, 8), np.float32))

    def step(state: Any, rate: Any, batch: Any) -> Any:
        key = jax.random.wrap_key_data(state["key"])

        def loss(weights: Any) -> Any:
            noise = jax.random.normal(key, weights[0].shape)
            out = network([w + 0.01 * noise for w in weights], batch["x"] @ mask)
            kept = jnp.where(batch["keep"][:, None], out - batch["y"], 0.0)
            right = jnp.argmax(out, 1) == jnp.argmax(batch["y"], 1)
            penalty = sum(jnp.sum(w**2) for w in weights)
            return jnp.mean(kept**2) + 0.01 * penalty, {"right": right.sum(), "penalty": penalty}

        (value, aux), gradient = jax.value_and_grad(loss, has_aux=True)(state["weights"])
        return {
            "state": {
                "weights": jax.tree.map(lambda w, g: w - rate * g, state["weights"], gradient),
                "count": state["count"] + 1,
                "key": jax.random.key_data(jax.random.split(key)[0]),
                "frozen": state["frozen"],
            },
            "metrics": {"loss": value, **aux, "always": 1.5},
        }

    key = jax.random.key_data(jax.random.key(0))
    state = {"weights": WEIGHTS, "count": 0, "key": key, "frozen": X[0]}
    batch = {"x": X, "y": Y, "keep": Y[:, 0] > 0}
    run = two_stages(step, (state, 0.1, batch))
    tree = jax.tree.structure(jax.eval_shape(step, state, 0.1, batch))
    ours = theirs = (state, 0.1, batch)
    for rate in (0.1, 0.05):
        results, expected = run(jax.tree.leaves(ours)), jax.jit(step)(*theirs)
        assert_equal(results, expected)
        ours = (jax.tree.unflatten(tree, results)["state"], rate, batch)
        theirs = (expected["state"], rate, batch)


def test_bfloat16_weights_stay_bfloat16() -> None:
    def step(weights: Any, batch: Any) -> Any:
        def loss(weights: Any) -> Any:
            return jnp.mean(network(weights, batch.astype(jnp.bfloat16)).astype(jnp.float32) ** 2)

        value, gradient = jax.value_and_grad(loss)(weights)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradient), value

    weights = [w.astype(jnp.bfloat16) for w in WEIGHTS]
    results = two_stages(step, (weights, X))(jax.tree.leaves((weights, X)))
    for ours, theirs in zip(results, jax.tree.leaves(jax.jit(step)(weights, X)), strict=True):
        assert ours.dtype == theirs.dtype
        a, b = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
        assert np.abs(a - b).max() <= 2**-7 * np.abs(b).max()  # an ulp of bfloat16


def test_unchanged_microbatches_give_bitwise_equal_results() -> None:
    example = mlp()
    run = runtime(example, MESHES[2], microbatches=4)
    leaves = jax.tree.leaves(example.arguments)
    for a, b in zip(run(leaves), run(leaves), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_state_that_a_step_returned_is_taken_without_a_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    placed = []
    put = Submeshes.put
    monkeypatch.setattr(
        Submeshes, "put", lambda *given: placed.append(given[1].shape) or put(*given)
    )
    example = mlp()
    run = runtime(example, MESHES[2])
    leaves = jax.tree.leaves(example.arguments)
    results = run(leaves)
    placed.clear()
    run([*results[:-1], *leaves[-2:]])
    assert set(placed) == {(4, 8)}, "only microbatches are placed"


@pytest.mark.parametrize("donate", [False, True])
def test_few_numbers_of_state_may_be_combined_whatever_their_stages(donate: bool) -> None:
    def step(state: Any, x: Any) -> Any:
        value, gradient = jax.value_and_grad(lambda w: jnp.mean(network(w, x) ** 2))(state["w"])
        weights = jax.tree.map(lambda w, g: w - 0.1 * g, state["w"], gradient)
        first, last = (gradient[i][0, :2].sum() for i in (0, -1))
        means = {"first": state["means"]["first"] + first, "last": state["means"]["last"] + last}
        return {"w": weights, "means": means, "count": state["count"] + 1}, value

    run = parallelize(
        step,
        cluster=Cluster.preset("two-hosts").resized(devices_per_host=2),
        strategy="equal_layers",
        microbatches=2,
        n_layers=2,
        donate=donate,
    )
    ours = theirs = {"w": WEIGHTS, "means": {"first": 0.0, "last": 0.0}, "count": 0}
    ours = jax.tree.map(jnp.array, ours)
    for _ in range(3):
        (ours, _), (theirs, _) = run(ours, X), jax.jit(step)(theirs, X)
        mean, expected = (
            (s["means"]["first"] + s["means"]["last"]) / s["count"] for s in (ours, theirs)
        )
        assert_equal([mean], [expected])
    assert len({w.sharding for w in ours["w"]}) == len(run.plan.stages) == 2


def test_gradients_may_be_combined_whatever_their_stages() -> None:
    gradients_of = jax.value_and_grad(lambda weights, x: jnp.mean(network(weights, x) ** 2))
    run = parallelize(
        gradients_of,
        cluster=Cluster.preset("two-hosts").resized(devices_per_host=2),
        strategy="equal_layers",
        microbatches=2,
        n_layers=2,
    )
    optimizer = optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(0.1))

    def train(gradients_of: Any) -> Any:
        weights, opt_state = WEIGHTS, optimizer.init(WEIGHTS)
        for _ in range(2):
            _, gradients = gradients_of(weights, X)
            updates, opt_state = jax.jit(optimizer.update)(gradients, opt_state)
            weights = optax.apply_updates(weights, updates)
        return weights

    assert_equal(train(run), train(jax.jit(gradients_of)))
    assert len(run.plan.stages) == 2


def test_state_may_be_given_away() -> None:
    example = mlp()
    expected = jax.jit(example.function)(*example.arguments)
    traced = example.trace()
    layered = layer(traced.step, 4)
    plan = random_plan(layered, MESHES[2], random.Random(0))
    run = Runtime(traced, layered, plan, Cluster.preset("two-hosts"), donate=True)
    leaves = jax.tree.leaves(example.arguments)
    first = run(leaves)
    kept = [np.array(r) for r in first]
    second = run([*first[:-1], *leaves[-2:]])
    assert_equal(kept, expected)
    assert_equal(second, jax.jit(example.function)(*expected[:2], example.batch))
    assert any(array.is_deleted() for array in first[:-1])
    assert all(array.is_deleted() for array in leaves if isinstance(array, jax.Array))


def test_numpy_arguments_may_change_after_a_step() -> None:
    def step(weights: Any, frozen: Any, batch: Any) -> Any:
        loss = lambda w: jnp.mean(network(w, batch + frozen) ** 2)  # noqa: E731
        value, gradient = jax.value_and_grad(loss)(weights)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradient), frozen, value

    weights, frozen = [np.array(w) for w in WEIGHTS], np.ones(8, np.float32)
    run = two_stages(step, (weights, frozen, X))
    results = run([*weights, frozen, X])
    before = [np.array(r) for r in results]
    for array in (*weights, frozen):
        array[:] = np.nan
    for was, now in zip(before, results, strict=True):
        np.testing.assert_array_equal(was, np.asarray(now))


def test_rejects_arguments_of_other_shapes_and_types() -> None:
    run = two_stages(lambda w, x: jax.grad(lambda w: jnp.sum(network(w, x)))(w), (WEIGHTS, X))
    with pytest.raises(BatchError, match=r"got x of float32\[4, 8\] instead of float32\[8, 8\]"):
        run([*WEIGHTS, X[:4]])
    with pytest.raises(BatchError, match=r"got x of int32\[8, 8\].*plan again with parallelize"):
        run([*WEIGHTS, X.astype(np.int32)])


def test_rejects_a_plan_for_more_devices_than_there_are() -> None:
    meshes = (Mesh((2,), ("x",), (0, jax.device_count() + 3)),)
    with pytest.raises(
        DeviceError, match=r"plan uses device \d+, but JAX has \d+ cpu devices: call"
    ):
        runtime(mlp(), meshes)
