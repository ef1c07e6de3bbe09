"""`parallelize` as users call it."""

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import frontends.jax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from costmodel import Cluster
from frontends import Plan
from frontends.errors import (
    AccumulationError,
    ArgumentError,
    BatchError,
    DeviceError,
    NoPlanError,
    PlanError,
)
from frontends.jax import parallelize, plan_for
from frontends.jax.run.verify import check_collectives
from frontends.jax.testing import adamw, mlp

CLUSTER = Cluster.preset("two-hosts").resized(devices_per_host=2)
RNG = np.random.default_rng(0)
W = jnp.asarray(RNG.normal(size=(8, 8)), jnp.float32)
X = RNG.normal(size=(8, 8)).astype(np.float32)


def step(w: Any, x: Any) -> Any:
    """One step of gradient descent."""
    value, gradient = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
    return w - 0.1 * gradient, value


def assert_equal(ours: Any, theirs: Any) -> None:
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-6)


def test_as_a_function() -> None:
    parallel = parallelize(step, cluster=CLUSTER, microbatches=2)
    assert_equal(parallel(W, X), step(W, X))
    assert parallel.plan.microbatches == 2
    assert parallel.plan.cluster == "two-hosts"


@pytest.mark.parametrize("schedule", ["zb-h1", "zb-v", "dualpipe"])
def test_runs_by_the_schedule_that_is_asked_for(schedule: str) -> None:
    example = adamw()
    parallel = parallelize(
        example.function,
        cluster=CLUSTER,
        microbatches=4,
        schedule=schedule,
        strategy="equal_layers",
        n_layers=4,
    )
    assert_equal(parallel(*example.arguments), example.function(*example.arguments))
    assert parallel.plan.schedule == schedule
    assert check_collectives(parallel.compile(*example.arguments)) >= 0
    saved = Plan.from_json(parallel.plan.to_json())
    assert saved.options == (
        ("microbatches", "4"),
        ("strategy", "'equal_layers'"),
        ("schedule", repr(schedule)),
        ("n_layers", "4"),
    )
    again = parallelize(example.function, cluster=CLUSTER, plan=saved)
    assert_equal(again(*example.arguments), example.function(*example.arguments))


def test_as_a_decorator_with_options() -> None:
    @parallelize(cluster=CLUSTER, microbatches=4, strategy="equal_layers", schedule="gpipe")
    def decorated(w: Any, x: Any) -> Any:
        return step(w, x)

    assert_equal(decorated(W, X), step(W, X))
    assert (decorated.plan.microbatches, decorated.plan.schedule) == (4, "gpipe")


def test_as_a_bare_decorator_on_the_devices_of_the_process() -> None:
    @parallelize
    def decorated(w: Any, x: Any) -> Any:
        return step(w, x)

    assert_equal(decorated(W, X), step(W, X))
    assert decorated.plan.cluster == "virtual-cpu"


def test_the_default_cluster_is_this_process() -> None:
    cluster = frontends.jax.default_cluster()
    assert (cluster.n_hosts, cluster.n_devices) == (1, jax.device_count())


def test_it_looks_like_the_function() -> None:
    parallel = parallelize(step)
    assert parallel.__name__ == "step"
    assert parallel.__doc__ == "One step of gradient descent."
    assert parallel.__wrapped__ is step


def test_repr_before_and_after_planning() -> None:
    parallel = parallelize(step, cluster=CLUSTER, microbatches=2)
    assert repr(parallel) == "<ParallelStep of step: not planned yet>"
    parallel.prepare(W, X)
    assert repr(parallel) == f"<ParallelStep of step: {parallel.plan!r}>"


def test_there_is_no_plan_before_the_first_call() -> None:
    with pytest.raises(PlanError, match=r"after its first call, or after prepare\(\*arguments\)"):
        _ = parallelize(step).plan


@pytest.mark.parametrize("take", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_step_is_not_copied(take: Callable[[Any], Any]) -> None:
    with pytest.raises(ArgumentError, match=r"got step: parallelize the function again, with plan"):
        take(parallelize(step, cluster=CLUSTER))


def test_repr_counts_variants() -> None:
    parallel = parallelize(step, cluster=CLUSTER, microbatches=2)
    parallel.prepare(W, X)
    parallel.prepare(W, X[:3])
    assert repr(parallel) == f"<ParallelStep of step: {parallel.plan!r}, 2 variants>"
    first, second = parallel.variants
    assert repr(first) == f"<Variant (first): {parallel.plan!r}>"
    assert repr(second) == f"<Variant (x=float32[3,8]): {second.plan!r}>"


def test_a_plan_is_made_once_and_takes_new_values() -> None:
    parallel = parallelize(step, cluster=CLUSTER, microbatches=2)
    parallel(W, X)
    plan = parallel.plan
    assert_equal(parallel(2 * W, X[::-1]), step(2 * W, X[::-1]))
    assert parallel.plan is plan


def test_state_goes_round_and_round() -> None:
    example = mlp()
    parallel = parallelize(example.function, cluster=CLUSTER, microbatches=2)
    ours = theirs = (example.params, example.opt_state)
    for _ in range(3):
        *ours, loss = parallel(*ours, example.batch)
        *theirs, expected = example.function(*theirs, example.batch)
        assert_equal(loss, expected)
    assert_equal(tuple(ours), tuple(theirs))
    assert check_collectives(parallel.compile(*example.arguments)) >= 0


class State(NamedTuple):
    weights: Any
    count: Any


def test_the_batch_may_come_first_and_state_may_be_one_tuple() -> None:
    def first(batch: Any, state: State) -> State:
        weights, _ = step(state.weights, batch["x"])
        return State(weights, state.count + 1)

    parallel = parallelize(first, cluster=CLUSTER, microbatches=2, batch_argnums=(0,))
    state = State(W, 0)
    assert_equal(parallel({"x": X}, state), jax.jit(first)({"x": X}, state))
    state = parallel({"x": X}, state)
    assert isinstance(state, State)
    assert int(parallel({"x": X}, state).count) == 2


def test_shapes_are_enough_to_plan() -> None:
    shapes = jax.ShapeDtypeStruct(W.shape, W.dtype), jax.ShapeDtypeStruct(X.shape, X.dtype)
    planned = plan_for(step, shapes, CLUSTER, microbatches=2)
    assert planned.plan == plan_for(step, (W, X), CLUSTER, microbatches=2).plan
    assert planned.plan.step == planned.trace.step.fingerprint


def test_a_given_plan_is_used() -> None:
    plan = plan_for(step, (W, X), CLUSTER, microbatches=4).plan
    parallel = parallelize(step, cluster=CLUSTER, plan=plan)
    assert_equal(parallel(W, X), step(W, X))
    assert parallel.plan == plan


def test_rejects_a_plan_of_another_step() -> None:
    plan = plan_for(step, (W, X), CLUSTER, microbatches=2).plan
    other = parallelize(lambda w, x: step(w, jnp.sin(x)), cluster=CLUSTER, plan=plan)
    with pytest.raises(PlanError, match=r"one is for step [0-9a-f]{16}, and the function is step"):
        other(W, X)
    with pytest.raises(PlanError, match="arguments of the shapes that it was planned for"):
        plan_for(step, (W, X[:4]), CLUSTER, plan=plan)


def test_rejects_what_cannot_be_cut_into_microbatches() -> None:
    with pytest.raises(BatchError, match="multiple of microbatches"):
        parallelize(step, cluster=CLUSTER, microbatches=3)(W, X)
    with pytest.raises(AccumulationError, match="Use microbatches=1"):
        parallelize(
            lambda w, x: jax.grad(lambda w: jnp.sum(jnp.tanh(jnp.tanh(x - (x @ w).mean()) @ w)))(w),
            cluster=CLUSTER,
            microbatches=2,
        )(W, X)


def test_runs_without_microbatches_if_none_were_asked_for_and_none_can_be() -> None:
    def masked(w: jax.Array, x: jax.Array) -> jax.Array:
        return jax.grad(lambda w: jnp.sum(jnp.tanh(jnp.tanh(x - (x @ w).mean()) @ w)))(w)

    parallel = parallelize(masked, cluster=CLUSTER)
    with pytest.warns(UserWarning, match="planned without microbatches: .* sum over its examples"):
        result = parallel(W, X)
    assert parallel.plan.microbatches == 1
    np.testing.assert_allclose(np.asarray(result), np.asarray(masked(W, X)), rtol=1e-5)


@pytest.mark.parametrize("n_layers", [1, 3])
def test_a_saved_plan_runs_whatever_layers_it_was_made_with(n_layers: int, tmp_path: Path) -> None:
    made = parallelize(step, cluster=CLUSTER, microbatches=2, n_layers=n_layers)
    expected = made(W, X)
    made.plan.save(tmp_path / "plan.json")
    again = parallelize(step, cluster=CLUSTER, plan=Plan.load(tmp_path / "plan.json"))
    for ours, theirs in zip(jax.tree.leaves(again(W, X)), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
    assert again.plan == made.plan


def test_an_empty_parameter_is_carried_along() -> None:
    def with_empty(params: Any, x: Any) -> Any:
        loss = lambda p: jnp.mean(jnp.tanh(x @ p["w"]) ** 2) + jnp.sum(p["empty"])  # noqa: E731
        return jax.tree.map(lambda p, g: p - g, params, jax.grad(loss)(params))

    params = {"w": W, "empty": jnp.ones((0, 3))}
    parallel = parallelize(with_empty, cluster=CLUSTER, microbatches=2)
    ours, theirs = parallel(params, X), with_empty(params, X)
    assert ours["empty"].shape == (0, 3)
    np.testing.assert_allclose(np.asarray(ours["w"]), np.asarray(theirs["w"]), rtol=1e-5)


@pytest.mark.parametrize("microbatches", [None, 1, 2])
def test_rejects_an_empty_batch(microbatches: int | None) -> None:
    with pytest.raises(BatchError, match=r"at least one example.*got x of shape \(0, 8\)"):
        parallelize(step, cluster=CLUSTER, microbatches=microbatches)(W, X[:0])


def test_arguments_may_be_named() -> None:
    parallel = parallelize(step, cluster=CLUSTER, microbatches=2)
    named = parallel(W, x=X)
    for ours, theirs in zip(jax.tree.leaves(named), jax.tree.leaves(parallel(W, X)), strict=True):
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


def test_arguments_may_have_no_place() -> None:
    def named(w: Any, *, scale: Any, x: Any) -> Any:
        return step(w, scale * x)

    parallel = parallelize(named, cluster=CLUSTER, microbatches=2)
    assert_equal(parallel(W, x=X, scale=2.0), step(W, 2.0 * X))
    assert_equal(parallel(W, scale=3.0, x=X), step(W, 3.0 * X))
    with pytest.raises(TypeError, match="too many positional arguments"):
        parallel(W, X, 2.0)
    with pytest.raises(TypeError, match="unexpected keyword argument 'y'"):
        parallel(W, scale=2.0, x=X, y=X)


def test_static_arguments_choose_what_the_step_does() -> None:
    def either(w: Any, x: Any, sign: str, *, power: int = 1) -> Any:
        return step(w, (x if sign == "plus" else -x) ** power)

    options: dict[str, Any] = {"cluster": CLUSTER, "microbatches": 2, "static_argnames": "power"}
    for sign, chosen in (("plus", X**3), ("minus", (-X) ** 3)):
        parallel = parallelize(either, static_argnums=2, **options)
        assert_equal(parallel(W, X, sign, power=3), step(W, chosen))
        assert_equal(parallel(W, x=X, sign=sign, power=3), step(W, chosen))
    assert_equal(parallel(W, X, "minus", power=2), step(W, X**2))


def test_batch_argnums_count_all_arguments() -> None:
    def turned(kind: str, x: Any, w: Any) -> Any:
        return step(w, x)

    parallel = parallelize(
        turned, cluster=CLUSTER, microbatches=4, static_argnums=(0,), batch_argnums=(1,)
    )
    assert_equal(parallel("some", X, W), step(W, X))
    assert parallel.planned.trace.arguments[0].is_batch
    with pytest.raises(BatchError, match=r"none that is static; got batch_argnums=\(0,\)"):
        parallelize(turned, cluster=CLUSTER, static_argnums=(0,), batch_argnums=(0,))("", X, W)


@jax.tree_util.register_dataclass
@dataclass
class Model:
    weights: Any
    activation: str = field(metadata={"static": True})


def test_state_may_be_a_dataclass() -> None:
    def train(model: Model, x: Any) -> Any:
        def loss(model: Model) -> Any:
            return jnp.mean(getattr(jnp, model.activation)(x @ model.weights) ** 2)

        value, gradient = jax.value_and_grad(loss)(model)
        return jax.tree.map(lambda w, g: w - 0.1 * g, model, gradient), {"loss": value}

    parallel = parallelize(train, cluster=CLUSTER, microbatches=2)
    model, theirs = Model(W, "sin"), Model(W, "sin")
    for _ in range(2):
        model, metrics = parallel(model, X)
        theirs, expected = train(theirs, X)
        assert_equal(metrics, expected)
    assert_equal(model, theirs)
    other = Model(W, "tanh")
    assert_equal(parallel(other, X), train(other, X))


@pytest.mark.parametrize("strategy", ["equal_layers", "zero"])
def test_donated_state_is_gone_and_its_memory_taken_again(strategy: str) -> None:
    example = adamw()
    parallel = parallelize(
        example.function, cluster=CLUSTER, microbatches=2, strategy=strategy, donate=True
    )
    given = jax.tree.map(jnp.array, (example.params, example.opt_state))  # copies, to be given away
    *expected, _ = example.function(*example.arguments)
    for _ in range(3):
        *state, _ = parallel(*given, example.batch)
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(given))
        if expected:
            assert_equal(tuple(state), tuple(expected))
        given, expected = state, []
    places = addresses(given)
    *state, _ = parallel(*given, example.batch)
    assert addresses(state) == places


def addresses(tree: Any) -> set[int]:
    """Where the shards of all but scalars lie in memory."""
    leaves = (leaf for leaf in jax.tree.leaves(tree) if leaf.ndim)
    return {s.data.unsafe_buffer_pointer() for leaf in leaves for s in leaf.addressable_shards}


def test_state_is_kept_unless_it_is_donated() -> None:
    example = adamw()
    parallel = parallelize(example.function, cluster=CLUSTER, microbatches=2)
    *state, _ = parallel(*example.arguments)
    first = parallel(*state, example.batch)
    assert_equal(parallel(*state, example.batch), first)
    given = example.params, example.opt_state, state
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(given))


def test_rejects_an_unknown_option() -> None:
    with pytest.raises(
        TypeError, match=r"has the options cluster, .*, microbatches, .*; got meshes"
    ):
        parallelize(step, cluster=CLUSTER, meshes=2)


def test_rejects_an_unknown_schedule() -> None:
    with pytest.raises(PlanError, match=r"a schedule is one of gpipe, 1f1b, .*got 'zigzag'"):
        parallelize(step, cluster=CLUSTER, schedule="zigzag")(W, X)


def test_says_when_nothing_fits_the_memory() -> None:
    host = CLUSTER.resized(n_hosts=1)
    with pytest.raises(NoPlanError, match="no plan fits 300 B a device"):
        parallelize(step, cluster=host, microbatches=2, memory_bytes=300, advise=False)(W, X)


def test_rejects_a_cluster_with_more_devices_than_there_are() -> None:
    cluster = CLUSTER.resized(n_hosts=8)
    parallel = parallelize(step, cluster=cluster, microbatches=1, strategy="data_parallel")
    x = np.ones((32, 8), np.float32)
    with pytest.raises(DeviceError, match=r"the plan uses device \d+, but JAX has \d+ cpu devices"):
        parallel(W, x)


@pytest.mark.parametrize("n_devices", [0, -1])
def test_init_needs_devices(n_devices: int) -> None:
    with pytest.raises(DeviceError, match=f"at least one device; got n_devices={n_devices}"):
        frontends.jax.init(n_devices)


def test_init_may_be_called_again_for_as_many_devices_or_fewer() -> None:
    devices = jax.devices()
    frontends.jax.init(len(devices))
    frontends.jax.init(1)
    assert jax.devices() == devices


def run_python(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300
    )
    return done.stdout.strip()


def test_init_gives_the_process_devices() -> None:
    assert (
        run_python("import frontends.jax, jax; frontends.jax.init(3); print(jax.device_count())")
        == "3"
    )


def test_init_is_too_late_once_jax_has_started_with_fewer_devices() -> None:
    program = (
        "import frontends.jax, frontends, jax\n"
        "jax.devices()\n"
        "try: frontends.jax.init(5)\n"
        "except frontends.DeviceError as error: print(error)\n"
    )
    assert "JAX has already started, with 1 devices, and cannot have 5 any more" in run_python(
        program
    )


def test_importing_starts_no_devices() -> None:
    program = (
        "import frontends.jax, sys; from frontends.jax.base import _compat; "
        "print(_compat.is_initialized())"
    )
    assert run_python(program) == "False"


def test_importing_the_package_does_not_import_jax() -> None:
    assert run_python("import frontends, sys; print('jax' in sys.modules)") == "False"
