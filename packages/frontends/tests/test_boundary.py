"""What users see when something goes wrong: types of this package, and their own line."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from costmodel import Cluster
from frontends.errors import (
    ArgumentError,
    FrontendsError,
    InternalError,
    NotFiniteError,
    PlanError,
    RunError,
    UnsupportedStepError,
)
from frontends.jax import parallelize
from frontends.jax.lower import compile as compiling
from frontends.jax.lower import lower
from frontends.jax.testing import assert_same, sgd

CLUSTER = Cluster.preset("two-hosts").resized(devices_per_host=2)
W, X = np.eye(4, dtype=np.float32), np.ones((8, 4), np.float32)
step = sgd(lambda w, x: jnp.mean(jnp.log(x @ w) ** 2))


def chooses(w: Any, x: Any) -> Any:
    if w[0, 0] > 0:
        x = 2 * x
    return step(w, x)


def counts(w: Any, x: Any) -> Any:
    return step(w, x[: int(w[0, 0])])


def converts(w: Any, x: Any) -> Any:
    return step(w, np.asarray(x))


def masks(w: Any, x: Any) -> Any:
    return step(w, x[x[:, 0] > 0])


@pytest.mark.parametrize("function", [chooses, counts, converts, masks])
def test_asking_for_numbers_of_a_traced_array_names_the_line(function: Callable[..., Any]) -> None:
    line = function.__code__.co_firstlineno + 1
    message = rf"test_boundary.py:{line}: `.*` asks for some .*static_argnums"
    with pytest.raises(UnsupportedStepError, match=message) as caught:
        parallelize(function, cluster=CLUSTER)(W, X)
    assert isinstance(caught.value.__cause__, jax.errors.JAXTypeError | jax.errors.JAXIndexError)


def test_arrays_of_an_earlier_trace_are_named() -> None:
    kept: list[Any] = []

    def keeps(w: Any, x: Any) -> Any:
        kept.append(2 * x)
        return step(w, kept[0])

    jax.jit(keeps)(W, X)
    with pytest.raises(
        UnsupportedStepError, match=r"test_boundary.py:.* uses an array of an earlier trace"
    ):
        parallelize(keeps, cluster=CLUSTER)(W, X)


class OwnError(Exception):
    """Of the user."""


@pytest.mark.parametrize("error", [OwnError("no"), KeyError("w"), TypeError("add got bad shapes")])
def test_errors_of_the_step_itself_stay_what_they_are(error: Exception) -> None:
    def fails(w: Any, x: Any) -> Any:
        raise error

    with pytest.raises(type(error)) as caught:
        parallelize(fails, cluster=CLUSTER)(W, X)
    assert caught.value is error
    ours = parallelize(lambda w, x, ok=True: step(w, x) if ok else fails(w, x), static_argnums=2)
    ours(W, X)
    with pytest.raises(type(error)) as caught:
        ours(W, X, False)
    assert caught.value is error
    ours(W, X)


def test_results_that_are_no_arrays_are_named() -> None:
    with pytest.raises(UnsupportedStepError, match=r"takes and returns arrays, .*JAX says: .*str"):
        parallelize(lambda w, x: (step(w, x), "done"), cluster=CLUSTER)(W, X)


def test_foreign_arrays_are_refused() -> None:
    import torch

    with pytest.raises(
        ArgumentError, match=r"got x\[0\] of type torch.Tensor: convert it by .numpy\(\)"
    ):
        parallelize(step, cluster=CLUSTER)(W, (torch.ones(8, 4),))


def test_keys_of_a_dict_that_cannot_be_sorted_are_refused() -> None:
    with pytest.raises(ArgumentError, match="are trees as JAX knows them; it says"):
        parallelize(step, cluster=CLUSTER)(W, {1: X, "a": X})


def test_deleted_state_is_named() -> None:
    ours = parallelize(step, cluster=CLUSTER, donate=True)
    w, _ = ours(W, X)
    ours(w, X)
    with pytest.raises(ArgumentError, match=r"w was given away .* with donate=True"):
        ours(w, X)


def test_numbers_that_are_none_are_found_where_jax_is_asked_to() -> None:
    ours = parallelize(step, cluster=CLUSTER)
    with jax.debug_nans(True):
        ours(W, X)
        with pytest.raises(
            NotFiniteError,
            match=r"of stage 0 made numbers that are not finite, which jax_debug_nans.*: the first "
            r"is in log\.\d+ float32\[.*\], the result of log, at \S*test_boundary.py:\d+: `step",
        ):
            ours(W, -X)
        for _ in range(2):  # what is kept to look is not what the program has given away
            with pytest.raises(NotFiniteError, match=r"they are in x float32\[\d, 4\], which it r"):
                ours(W, np.nan * X)
    with jax.debug_infs(True):
        ours(W, X)
        with pytest.raises(NotFiniteError, match=r"the first is in log\.\d+ "):
            ours(W, 0 * X)


def test_an_operator_that_cannot_be_compiled_is_named_with_its_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(equation: Any, *others: Any) -> Any:
        raise ValueError("out of luck\nand more")

    monkeypatch.setattr(lower, "run_locally", fail)
    with pytest.raises(InternalError) as caught:
        parallelize(step, cluster=CLUSTER)(W, X)
    message = str(caught.value)
    assert "compiling operator dot_general." in message
    assert "test_boundary.py:" in message
    assert "in stage 0" in message
    assert "ValueError: out of luck. Please report it" in message
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_program_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = parallelize(step, cluster=CLUSTER)
    ours.compile(W, X)

    def fail(*operands: Any) -> Any:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: no memory")

    runtime = ours.compile()
    monkeypatch.setattr(
        compiling, "compile_chunks", lambda *_: [fail] * len(runtime.program.chunks)
    )
    monkeypatch.setattr("frontends.jax.run.runtime.compile_chunks", lambda *_: [fail] * 9)
    with pytest.raises(
        RunError,
        match=r"of stage 0 failed: JaxRuntimeError: RESOURCE_EXHAUSTED: no memory; the largest "
        r"values that it makes: .* float32\[.*\] \(\d+ bytes a device\), the result of \w+, "
        r"at \S*test_boundary.py",
    ):
        parallelize(step, cluster=CLUSTER)(W, X)


def test_what_fails_in_planning_is_a_type_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> Any:
        raise KeyError("val")

    monkeypatch.setattr("frontends.jax.api.plan_for.plan_traces", fail)
    with pytest.raises(InternalError, match=r"planning failed: KeyError: 'val'. Please report it"):
        parallelize(step, cluster=CLUSTER)(W, X)
    assert issubclass(InternalError, FrontendsError)


def shapes(w: Any, x: Any) -> Any:
    return step(w, x - jnp.ones((3, 3)))


def misses(w: Any, x: Any) -> Any:
    return step(w, {"x": x}["y"])


@pytest.mark.parametrize("function", [shapes, misses])
def test_what_jax_or_python_raises_in_the_step_names_the_line(function: Callable[..., Any]) -> None:
    line = function.__code__.co_firstlineno + 1
    message = rf"this one fails at \S*test_boundary.py:{line}: `return .*`: (Type|Key)Error: "
    with pytest.raises(UnsupportedStepError, match=message):
        parallelize(function, cluster=CLUSTER)(W, X)


def test_a_shape_that_does_not_fit_is_refused_at_the_call_that_has_it() -> None:
    ours = parallelize(step, cluster=CLUSTER)
    first = ours(W, X)
    with pytest.raises(
        UnsupportedStepError, match=r"test_boundary.py:\d+: `step = sgd.*dot_general"
    ):
        ours(W, X[:, :3])
    assert_same(jax.tree.leaves(ours(W, X)), jax.tree.leaves(first))


def positive(x: Any) -> Any:
    if np.any(np.asarray(x) < 0):
        raise ValueError("a negative number")
    return np.asarray(x)


@jax.custom_vjp
def checked(x: Any) -> Any:
    return jax.pure_callback(positive, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


checked.defvjp(lambda x: (checked(x), None), lambda _, gradient: (gradient,))


@pytest.mark.parametrize("n_devices", [1, 2])
@pytest.mark.filterwarnings("ignore:no sharding rule")
def test_a_callback_that_raises_is_named(n_devices: int) -> None:
    calls = sgd(lambda w, x: jnp.mean((checked(x @ w) @ w) ** 2))
    ours = parallelize(
        calls,
        cluster=Cluster.preset("virtual-cpu").resized(devices_per_host=n_devices),
        microbatches=1,
    )
    first = ours(W, X)
    message = (
        r"of stage 0 failed in pure_callback, at \S*test_boundary.py:\d+: `return jax.pure_.*`, "
        r"on dot_general\.\d+: ValueError: a negative number$"
    )
    with pytest.raises(RunError, match=message):
        ours(W, -X)
    assert_same(jax.tree.leaves(ours(W, X)), jax.tree.leaves(first))


def prints(w: Any, x: Any) -> Any:
    jax.lax.cond(x[0, 0] > 0, lambda: jax.debug.print("{}", x.sum()), lambda: None)
    return step(w, x)


def test_effects_in_branches_are_refused_with_their_lines() -> None:
    line = prints.__code__.co_firstlineno + 1
    message = rf"within a loop or a branch.*\(debug_print, at \S*test_boundary.py:{line}: `jax.lax"
    for function in (prints, jax.jit(prints)):
        with pytest.raises(UnsupportedStepError, match=message):
            parallelize(function, cluster=CLUSTER)(W, X)


def test_operators_that_cannot_be_planned_or_accumulated_name_their_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mixes = sgd(lambda w, x: jnp.mean(jnp.tanh(jnp.tanh((x @ w) @ (x @ w).T) @ x @ w)))
    with pytest.raises(
        UnsupportedStepError, match=r"it is written at \S*test_boundary.py:\d+: `mix"
    ):
        parallelize(mixes, cluster=CLUSTER, microbatches=2)(W, X)

    def fail(*arguments: Any) -> Any:
        raise KeyError("val")

    monkeypatch.setattr("frontends.jax.trace.phased_graph.Rules.of", fail)
    message = (
        r"dot_general, at \S*test_boundary.py:\d+: .*, cannot be planned on x, w: KeyError: 'val'"
    )
    with pytest.raises(UnsupportedStepError, match=message):
        parallelize(step, cluster=CLUSTER)(W, X)


def test_a_type_that_the_device_says_nothing_of_is_named() -> None:
    device = replace(CLUSTER.device, flops_per_s=(("float32", 1e9),), efficiency=())
    host = replace(CLUSTER.hosts[0], device=device)
    few = replace(CLUSTER, hosts=(host,) * CLUSTER.n_hosts)
    with pytest.raises(PlanError, match=r"states no peak for dtype 'float16'.*to its flops_per_s"):
        parallelize(step, cluster=few, microbatches=1)(W.astype(np.float16), X.astype(np.float16))


def test_meshes_of_the_step_itself_are_refused_and_hints_overruled() -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("own",))
    spec = jax.sharding.PartitionSpec("own")

    def mapped(w: Any, x: Any) -> Any:
        return step(w, jax.shard_map(lambda x: 2 * x, mesh=mesh, in_specs=spec, out_specs=spec)(x))

    def hinted(w: Any, x: Any) -> Any:
        where = jax.sharding.NamedSharding(mesh, spec)
        return step(jax.lax.with_sharding_constraint(w, where), x)

    with pytest.raises(UnsupportedStepError, match=r"test_boundary.py:.* maps over a mesh of its"):
        parallelize(mapped, cluster=CLUSTER)(W, X)
    ours = parallelize(hinted, cluster=CLUSTER)(W, X)
    assert_same(jax.tree.leaves(ours), jax.jit(hinted)(W, X))


def test_what_is_static_under_an_inner_jit_is_to_be_named() -> None:
    inner = jax.jit(lambda w, x, n: step(w, x * n), static_argnums=2)

    def outer(w: Any, x: Any, n: Any) -> Any:
        return inner(w, x, n)

    with pytest.raises(UnsupportedStepError, match="give parallelize the same static_argnums"):
        parallelize(outer, cluster=CLUSTER, batch_argnums=1)(W, X, 2)
    ours = parallelize(outer, cluster=CLUSTER, batch_argnums=1, static_argnums=2)(W, X, 2)
    assert_same(jax.tree.leaves(ours), inner(W, X, 2))
