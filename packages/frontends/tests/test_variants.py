"""A step that is called with something else than before does what `jax.jit` of it does."""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from costmodel import Cluster
from frontends.errors import ArgumentError
from frontends.jax import ParallelStep, parallelize
from frontends.jax.testing import EXAMPLES, assert_same
from frontends.search.held import same_homes, updated_by

CLUSTER = Cluster.preset("two-hosts").resized(devices_per_host=2)
RNG = np.random.default_rng(0)
W = RNG.normal(size=(8, 8)).astype(np.float32)
X = RNG.normal(size=(8, 8)).astype(np.float32)


def step(w: Any, x: Any, scale: Any = 1.0) -> Any:
    """One step of gradient descent."""
    value, gradient = jax.value_and_grad(lambda w: scale * jnp.mean(jnp.tanh(x @ w) ** 2))(w)
    return w - 0.1 * gradient, value


def compare(
    function: Callable[..., Any], calls: list[tuple[Any, ...]], state: Any, **options: Any
) -> ParallelStep:
    """Run `function(state, *call) -> (state, others)` both ways, one call after the other."""
    static = {"static_argnums": options.get("static_argnums", ())}
    ours, theirs = parallelize(function, cluster=CLUSTER, **options), jax.jit(function, **static)
    mine, its = jax.tree.map(jnp.array, state), state  # which may be donated
    for call in calls:
        mine, others = ours(mine, *call)
        its, expected = theirs(its, *call)
        assert jax.tree.structure((mine, others)) == jax.tree.structure((its, expected))
        for a, b in zip(
            jax.tree.leaves((mine, others)), jax.tree.leaves((its, expected)), strict=True
        ):
            assert isinstance(a, jax.Array)
            assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)
        assert_same(jax.tree.leaves((mine, others)), (its, expected))
    return ours


@pytest.mark.parametrize(("name", "donate"), [("adamw", True), ("tied", False)])
def test_short_batches_and_other_lengths_train(name: str, donate: bool) -> None:
    example = EXAMPLES[name]()

    def function(state: Any, batch: Any) -> Any:
        *state, loss = example.function(*state, batch)
        return tuple(state), loss

    calls = [(jax.tree.map(lambda x, n=n: x[:n], example.batch),) for n in (8, 3, 8, 6, 3)]
    state = (example.params, example.opt_state)
    ours = compare(function, calls, state, microbatches=4, strategy="equal_layers", donate=donate)
    assert len(ours.variants) == 3
    for variant in ours.variants[1:]:
        assert variant.is_held
        assert same_homes(variant.plan, ours.plan, updated_by(ours.plan)) == []


def test_state_that_is_other_state_is_planned_on_its_own() -> None:
    ours = parallelize(step, cluster=CLUSTER, microbatches=2)
    ours(W, X)
    with pytest.warns(UserWarning, match=r"step is planned on its own for .*got w of float32\[4,"):
        assert_same(jax.tree.leaves(ours(W[:4], X[:, :4])), step(W[:4], X[:, :4]))
    assert [variant.is_held for variant in ours.variants] == [False, False]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(jax.tree.leaves(ours(W[:4], X[:2, :4])), step(W[:4], X[:2, :4]))  # that is held
    assert [variant.is_held for variant in ours.variants] == [False, False, True]


def test_numbers_and_their_types_change() -> None:
    calls = [(X, scale) for scale in (0.5, 2, 0.25, True, np.float32(3), np.int8(2), jnp.ones(()))]
    ours = compare(step, calls, W, microbatches=2, batch_argnums=(1,))
    assert len(ours.variants) == 5


def test_weak_types_stay_weak_from_call_to_call() -> None:
    def counting(state: Any, x: Any) -> Any:
        w, rate, count = state
        w, loss = step(w, x)
        return (w.astype(jnp.bfloat16) * rate, rate * 0.5, count + 1), loss * count

    ours = compare(counting, [(X,)] * 3, (jnp.asarray(W, jnp.bfloat16), 0.5, 0), microbatches=2)
    assert len(ours.variants) == 1


def test_each_static_value_is_a_variant() -> None:
    def chosen(w: Any, x: Any, how: Any) -> Any:
        return step(w, x * how[0] if isinstance(how, tuple) else x)

    hows = [None, (1.0,), (2.0,), None, (1,), (True,), "text"]
    ours = compare(chosen, [(X, how) for how in hows], W, static_argnums=(2,), microbatches=2)
    assert len(ours.variants) == 4  # tuples compare by ==, as under jit
    with pytest.raises(ArgumentError, match=r"got how=\[1\] of type list, which has no hash: give"):
        ours(W, X, [1])


def test_static_values_of_another_type_are_others() -> None:
    def typed(w: Any, x: Any, n: Any) -> Any:
        return step(w, x * 2.0 if type(n) is bool else x)

    compare(typed, [(X, n) for n in (1, True, 1.0, 1)], W, static_argnums=(2,), microbatches=2)


def test_what_is_static_for_a_function_in_jit_need_not_be_said_again() -> None:
    def chosen(w: Any, x: Any, mode: str, n: int = 1) -> Any:
        return step(w, getattr(jnp, mode)(x) * n)

    jitted = jax.jit(chosen, static_argnums=3, static_argnames="mode")
    ours = parallelize(jitted, cluster=CLUSTER, batch_argnums=1, microbatches=2)
    for mode, n in (("sin", 2), ("cos", 2), ("sin", 2), ("sin", 3)):
        found, expected = ours(W, X, mode=mode, n=n), jitted(W, X, mode=mode, n=n)
        assert_same(jax.tree.leaves(found), expected)
    assert len(ours.variants) == 3


def test_other_structures_of_the_batch_are_variants() -> None:
    def function(w: Any, batch: Any) -> Any:
        x = sum(leaf for leaf in jax.tree.leaves(batch))
        return step(w, x if isinstance(batch, list) else 2 * x)

    calls: list[tuple[Any, ...]] = [
        ([X],),
        ([X, X],),
        ({"a": X, "b": None},),
        ([X, None],),
        ((X,),),
    ]
    assert len(compare(function, calls, W, microbatches=2).variants) == 5


def test_another_configuration_of_jax_is_a_variant() -> None:
    def function(w: Any, x: Any) -> Any:
        return step(w, x + jnp.arange(8) * 1.5 + jax.random.normal(jax.random.key(3), (8,)))

    ours, theirs = parallelize(function, cluster=CLUSTER, microbatches=2), jax.jit(function)
    assert_same(jax.tree.leaves(ours(W, X)), theirs(W, X))
    for context in (
        jax.enable_x64(True),
        jax.default_matmul_precision("float32"),
        jax.default_prng_impl("unsafe_rbg"),  # which jit does not ask for
        jax.enable_x64(True),
    ):
        with context:
            assert_same(jax.tree.leaves(ours(W, X)), theirs(W, X))
    assert len(ours.variants) == 3
    assert len({str(variant.planned.trace.step.graph) for variant in ours.variants}) > 1


def test_a_warning_says_once_what_keeps_changing() -> None:
    ours = parallelize(step, cluster=CLUSTER, microbatches=1, most_variants=2)
    for n in (1, 2):
        ours.prepare(W, X[:n])
    with pytest.warns(
        UserWarning, match=r"planned and compiled 3 times, .*: x \(float32\[2,8\], float32\[3,8\]"
    ):
        ours.prepare(W, X[:3])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours.prepare(W, X[:4])
    assert len(ours.variants) == 4


def test_what_closes_over_is_frozen_as_under_jit() -> None:
    factor = [1.0]

    def function(w: Any, x: Any) -> Any:
        return step(w, x * factor[0])

    ours, theirs = parallelize(function, cluster=CLUSTER, microbatches=2), jax.jit(function)
    for value, n in ((1.0, 8), (2.0, 8), (2.0, 4), (3.0, 8), (3.0, 4)):
        factor[0] = value
        assert_same(jax.tree.leaves(ours(W, X[:n])), theirs(W, X[:n]))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ("text", r"got x of type str: list an argument that chooses .* static_argnums"),
        ({"a": X, "f": jnp.tanh}, r"got x\['f'\] of type .*: .*equinox.partition does it"),
        (np.array(["a"]), r"got x of type numpy.ndarray"),
        (2**40, r"got x of type int: give an array of a dtype that JAX has"),
        (jax.ShapeDtypeStruct((8, 8), jnp.float32), r"got x as a shape without numbers: prepare"),
    ],
)
def test_leaves_that_jax_does_not_compute_with_are_refused(x: Any, message: str) -> None:
    ours = parallelize(step, cluster=CLUSTER)
    with pytest.raises(ArgumentError, match=message):
        ours(W, x)
    assert ours.variants == ()


def test_a_step_is_not_called_in_jit() -> None:
    ours = parallelize(step, cluster=CLUSTER, microbatches=2)
    ours(W, X)
    with pytest.raises(ArgumentError, match="w is traced by jit, grad or vmap: call the step out"):
        jax.jit(ours)(W, X)


def test_a_number_in_the_batch_may_change() -> None:
    def function(w: Any, batch: Any) -> Any:
        return step(w, batch["x"], batch["scale"])

    calls = [({"x": X[:n], "scale": scale},) for n, scale in ((8, 0.5), (8, 2.5), (3, 1))]
    assert len(compare(function, calls, W).variants) == 2


@pytest.mark.filterwarnings("ignore:no sharding rule for scan")
def test_a_batch_in_one_array_that_is_filled_anew() -> None:
    """As soon as a call returns, though nothing has waited for what it computes."""
    held = np.zeros(8 * 8 + 16, np.float32)  # JAX takes in place what begins at a multiple of 64
    start = -held.ctypes.data % 64 // 4
    batch = held[start : start + 64].reshape(8, 8)

    def function(w: Any, x: Any) -> Any:
        late = jax.lax.fori_loop(0, 100_000, lambda i, y: jnp.sin(y) + 1e-9 * i, w)
        return step(w + 0 * late, x)

    one = Cluster.preset("virtual-cpu").resized(devices_per_host=1)
    ours = parallelize(function, cluster=one, microbatches=1)
    for i in range(3):
        batch[...] = X * i
        found = ours(W, batch)
        batch[...] = np.nan
        assert_same(jax.tree.leaves(found), jax.jit(function)(W, X * i))


def test_what_is_returned_may_be_combined() -> None:
    """Results of two stages, of two variants, and state with either, as after `jit`."""

    def function(state: Any, x: Any) -> Any:
        def loss(state: Any) -> Any:
            first = jnp.tanh(x @ state["a"])
            return jnp.mean((first @ state["b"]) ** 2), jnp.mean(first**2)

        (value, aside), gradient = jax.value_and_grad(loss, has_aux=True)(state)
        return jax.tree.map(lambda w, g: w - 0.1 * g, state, gradient), (value, aside)

    options: dict[str, Any] = {"strategy": "equal_layers", "microbatches": 2}
    ours, theirs = parallelize(function, cluster=CLUSTER, **options), jax.jit(function)
    mine = its = {"a": W, "b": W}
    total = expected = jnp.float32(0)
    for n in (8, 2, 8):
        mine, (value, aside) = ours(mine, X[:n])
        total = total + value * aside + jnp.stack([value, aside]).sum() + mine["a"].sum()
        its, (value, aside) = theirs(its, X[:n])
        expected = expected + value * aside + value + aside + its["a"].sum()
        assert (value.committed, total.shape) == (False, ())
    assert len(ours.plan.stages) == 2
    assert_same([total], [expected])


@pytest.mark.parametrize("n_devices", [1, 2])
def test_state_that_is_one_array_twice_is_given_away_once(n_devices: int) -> None:
    def function(state: Any, x: Any) -> Any:
        w, loss = step(state["w"], x)
        return {"w": w, "mean": 0.9 * state["mean"] + 0.1 * w, "first": state["first"]}, loss

    cluster = Cluster.preset("virtual-cpu").resized(devices_per_host=n_devices)
    ours = parallelize(function, cluster=cluster, donate=True)
    w = jnp.array(W)
    state = {"w": w, "mean": w, "first": w}
    expected = jax.jit(function)(jax.tree.map(np.asarray, state), X)
    assert_same(jax.tree.leaves(ours(state, X)), expected)


def test_a_step_runs_where_jit_is_disabled() -> None:
    def scanned(w: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            out, _ = jax.lax.scan(lambda h, _: (jnp.tanh(h @ w), None), x, length=2)
            return jnp.mean(out**2)

        value, gradient = jax.value_and_grad(loss)(w)
        return w - 0.1 * gradient, value

    ours = parallelize(scanned, cluster=CLUSTER, microbatches=2)
    with jax.disable_jit():
        first = ours(W, X)
    assert_same(jax.tree.leaves(first), jax.jit(scanned)(W, X))
    assert_same(jax.tree.leaves(ours(W, X)), jax.jit(scanned)(W, X))


@jax.tree_util.register_pytree_node_class
class Checked:
    """A node of the user's that is made of arrays only, as `jmp.DynamicLossScale` is."""

    def __init__(self, scale: Any) -> None:
        assert isinstance(scale, float | np.ndarray | jax.Array)
        self.scale = scale

    def tree_flatten(self) -> tuple[Any, None]:
        return (self.scale,), None

    @classmethod
    def tree_unflatten(cls, aux: None, children: Any) -> Any:
        return cls(*children)


def test_nodes_that_check_what_they_are_made_of() -> None:
    def scaled(state: Any, x: Any) -> Any:
        w, scale = state
        w, value = step(w, x, scale.scale)
        return (w, Checked(scale.scale * 2)), value

    ours = parallelize(scaled, cluster=CLUSTER, microbatches=2)
    mine, its = [(jnp.array(W), Checked(jnp.float32(0.5)))] * 2
    for _ in range(2):
        mine, found = ours(mine, X)
        its, expected = jax.jit(scaled)(its, X)
        assert_same(jax.tree.leaves((mine, found)), (its, expected))


def test_a_step_of_state_alone_trains_on_what_it_closes_over() -> None:
    def alone(w: Any) -> Any:
        return step(w, X)

    found = parallelize(alone, cluster=CLUSTER)(jnp.array(W))
    assert_same(jax.tree.leaves(found), jax.jit(alone)(W))
