"""Layers in a scan: each stage keeps the weights of its own, and users see whole arrays."""

import functools
import os
import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from costmodel import Cluster
from frontends.errors import ArgumentError, DeviceError
from frontends.jax import ParallelStep, StackedArray, parallelize, plan_for, restore, save
from frontends.jax.testing import Example, assert_same, run_in_microbatches, stacked_steps
from frontends.jax.trace.trace import Capture
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
CLUSTER = Cluster.preset("two-hosts").resized(devices_per_host=2)
N, WIDTH = 6, 32
OPTIMIZER = optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(1e-2, eps=1e-2))
RNG = np.random.default_rng(0)
BATCH = RNG.normal(size=(8, WIDTH)).astype(np.float32)
KEY = jax.random.key(2)


def first_state(key: jax.Array) -> Any:
    keys = jax.random.split(key)
    layers = {
        "norm": jnp.ones((N, WIDTH)),
        "up": jax.random.normal(keys[0], (N, WIDTH, 4 * WIDTH)) / 8,
        "down": jax.random.normal(keys[1], (N, 4 * WIDTH, WIDTH)) / 8,
    }
    return layers, OPTIMIZER.init(layers)


def train_step(layers: Any, opt_state: Any, batch: Any) -> Any:
    @jax.checkpoint
    def layer(x: Any, p: Any) -> tuple[Any, None]:
        return x + jax.nn.gelu(x * p["norm"] @ p["up"]) @ p["down"], None

    def loss_of(layers: Any) -> Any:
        return jnp.mean(lax.scan(layer, batch, layers)[0] ** 2)

    loss, gradients = jax.value_and_grad(loss_of)(layers)
    updates, opt_state = OPTIMIZER.update(gradients, opt_state, layers)
    return optax.apply_updates(layers, updates), opt_state, loss


STAGES = {1: 1, 2: ((3, 1, 2), (4, 1, 2)), 4: 4}


@functools.cache
def planned(n_stages: int = 2, donate: bool = False) -> ParallelStep:
    return parallelize(
        train_step,
        cluster=CLUSTER,
        stages=STAGES[n_stages],
        zero=0 if n_stages == 2 else None,
        microbatches=2,
        schedule="1f1b",
        donate=donate,
    )


def train(step: Callable[..., Any], state: Any, n_steps: int) -> tuple[Any, list[float]]:
    losses = []
    for _ in range(n_steps):
        *state, loss = step(*state, BATCH)
        losses.append(float(loss))
    return tuple(state), losses


@functools.cache
def trained() -> tuple[Any, list[float]]:
    """State after two steps on one device, and the losses of the next two."""
    state, _ = train(jax.jit(train_step), first_state(KEY), 2)
    return state, train(jax.jit(train_step), state, 2)[1]


def kinds(tree: Any) -> Counter[type]:
    return Counter(type(leaf) for leaf in jax.tree.leaves(tree) if leaf.ndim)


@given(stacked_steps())
@settings(max_examples=settings().max_examples // 12)
def test_random_steps_compute_the_same_on_pieces(example: Example) -> None:
    capture = Capture(example.function, example.arguments, (2,))
    apart = capture.unstacked()
    assert apart is not None
    trace = apart.at(2)
    expected = jax.jit(example.function)(*example.arguments)
    ours = run_in_microbatches(trace, example.arguments)
    assert_same(ours, expected, tolerance=2e-2 if "bfloat16" in map(str, capture.dtypes) else 1e-5)
    for leaf, cut in zip(trace.leaves, trace.cuts, strict=True):  # one element says "not used"
        if "['w']" in leaf.name and leaf.shape != (1,):
            assert cut is not None, leaf.name


def test_what_is_no_stack_of_layers_stays_whole() -> None:
    """Query, key and value do not follow each other, and time is no layer."""

    def step(w: Any, batch: Any) -> Any:
        def loss_of(w: Any) -> Any:
            q, k, v = (batch @ w[i] for i in range(3))
            return jnp.mean((jax.nn.softmax(q @ k.T) @ v) ** 2)

        loss, gradient = jax.value_and_grad(loss_of)(w)
        return w - gradient, loss

    assert Capture(step, (jnp.ones((3, 4, 4)), jnp.ones((8, 4))), (1,)).unstacked() is None


def test_a_stack_that_is_needed_whole_stays_whole_and_others_do_not() -> None:
    def step(w: Any, b: Any, batch: Any) -> Any:
        def loss_of(w: Any, b: Any) -> Any:
            out, _ = lax.scan(lambda x, p: (jnp.tanh(x @ p[0] + p[1]), None), batch, (w, b))
            return jnp.mean(out**2) + jnp.sum(lax.cumsum(b, 0))

        loss, (dw, db) = jax.value_and_grad(loss_of, (0, 1))(w, b)
        return w - dw, b - db, loss

    arguments = jnp.ones((3, 4, 4)), jnp.ones((3, 4)), jnp.ones((8, 4))
    apart = Capture(step, arguments, (2,)).unstacked()
    assert apart is not None
    w, b, _ = apart.at(1).cuts
    assert w is not None
    assert b is None


def test_what_a_step_returns_besides_its_state_leaves_stacks_apart() -> None:
    def step(w: Any, b: Any, batch: Any) -> Any:
        def loss_of(w: Any, b: Any) -> Any:
            out, _ = lax.scan(lambda x, p: (jnp.tanh(x @ p[0] + p[1]), None), batch, (w, b))
            return jnp.mean(out**2)

        loss, (dw, db) = jax.value_and_grad(loss_of, (0, 1))(w, b)
        told = {"gradient": dw, "change": -0.5 * dw, "norms": jnp.sum(dw**2, (1, 2)), "before": w}
        return w - dw, b - db, loss, told

    arguments = jnp.full((4, 8, 8), 0.1), jnp.ones((4, 8)), BATCH[:, :8]
    ours = parallelize(step, cluster=CLUSTER, stages=2, microbatches=2, schedule="1f1b")
    state: Any = arguments
    theirs: Any = arguments
    for _ in range(2):
        found, expected = ours(*state[:2], arguments[2]), jax.jit(step)(*theirs[:2], arguments[2])
        assert_same(jax.tree.leaves(found), expected)
        assert kinds(found[:2]) == {StackedArray: 2}
        assert StackedArray not in kinds(found[2:])
        state, theirs = found, expected


def test_frozen_weights_below_adapters_are_apart_too() -> None:
    def step(adapters: Any, frozen: Any, batch: Any) -> Any:
        def loss_of(adapters: Any) -> Any:
            w = frozen + jnp.einsum("ldr,lre->lde", adapters["a"], adapters["b"])
            return jnp.mean(lax.scan(lambda x, w: (jnp.tanh(x @ w), None), batch, w)[0] ** 2)

        loss, gradients = jax.value_and_grad(loss_of)(adapters)
        return jax.tree.map(lambda p, g: p - g, adapters, gradients), loss

    adapters = {"a": jnp.ones((3, 4, 2)), "b": jnp.ones((3, 2, 4))}
    apart = Capture(step, (adapters, jnp.ones((3, 4, 4)), jnp.ones((8, 4))), (2,)).unstacked()
    assert apart is not None
    assert all(apart.at(1).cuts[:3])


OF_STACKS: dict[str, Callable[[Any], Any]] = {
    "reversed": lambda w: w[::-1],
    "rolled": lambda w: jnp.roll(w, 1, 0),
    "in another order": lambda w: w[jnp.array([2, 0, 3, 1])],
    "largest so far": lambda w: lax.cummax(w, axis=0),
    "numbered": lambda w: w * lax.broadcasted_iota(jnp.float32, w.shape, 0),
    "random": lambda w: w + 0.1 * jax.random.normal(jax.random.key(1), w.shape),
    "normalised": lambda w: jax.nn.softmax(w, 0),
    "centred": lambda w: (w - w.mean(0)) / (1 + w.std(0)),
    "rounded": lambda w: jnp.round(w / jnp.abs(w).max()) * jnp.abs(w).max(),
    "of both halves": lambda w: jnp.concatenate([w[2:], w[:2]]),
    "all of all": lambda w: w + 0.1 * jnp.einsum("lij,mij->lm", w, w)[:, :1, None],
    "flat": lambda w: (w.reshape(-1) * jnp.arange(64) * 0.1).reshape(w.shape),
    "of the first": lambda w: jnp.where(jnp.arange(4)[:, None, None] > 1, w, 0.5 * w[0]),
}
"""What may be done to a stack of four rows: to each, to some, or to all together."""


@pytest.mark.parametrize("name", OF_STACKS)
@pytest.mark.parametrize("to", ["weights", "gradient"])
def test_whatever_is_done_to_a_stack_is_the_same(to: str, name: str) -> None:
    """Each row is treated on its own only where this is the same."""

    def step(w: Any, batch: Any) -> Any:
        def loss_of(w: Any) -> Any:
            stack = OF_STACKS[name](w) if to == "weights" else w
            return jnp.mean(lax.scan(lambda x, w: (jnp.tanh(x @ w), None), batch, stack)[0] ** 2)

        loss, gradient = jax.value_and_grad(loss_of)(w)
        return w - (OF_STACKS[name](gradient) if to == "gradient" else gradient), loss

    rng = np.random.default_rng(1)
    arguments = jnp.asarray(rng.normal(size=(4, 4, 4)) / 2), jnp.asarray(rng.normal(size=(8, 4)))
    capture = Capture(step, arguments, (1,))
    apart = capture.unstacked()
    assert to == "weights" or apart is not None
    ours = run_in_microbatches((apart or capture).at(2), arguments)
    assert_same(ours, jax.jit(step)(*arguments))


def test_copies_in_half_precision_and_their_masters_are_apart() -> None:
    """The copy is read by the layers, the master by the optimizer."""

    def step(half: Any, master: Any, batch: Any) -> Any:
        def loss_of(half: Any) -> Any:
            out, _ = lax.scan(lambda x, w: (jnp.tanh(x @ w), None), batch, half)
            return jnp.mean(out.astype(jnp.float32) ** 2)

        loss, gradient = jax.value_and_grad(loss_of)(half)
        master = master - gradient.astype(jnp.float32)
        return master.astype(jnp.bfloat16), master, loss

    weights = jnp.ones((3, 4, 4))
    half, batch = weights.astype(jnp.bfloat16), jnp.ones((8, 4), jnp.bfloat16)
    apart = Capture(step, (half, weights, batch), (2,)).unstacked()
    assert apart is not None
    assert all(apart.at(1).cuts[:2])
    assert all(apart.at(1).result_cuts[:2])


def test_stages_keep_their_own_layers_and_compute_the_same() -> None:
    step, state = planned(), first_state(KEY)
    after, losses = train(step, state, 4)
    expected, theirs = train(jax.jit(train_step), state, 4)
    np.testing.assert_allclose(losses, theirs, rtol=1e-5)
    assert_same(jax.tree.leaves(jax.tree.map(np.asarray, after)), expected)
    assert step.verify(*state, BATCH)
    assert kinds(after) == {StackedArray: 9}
    of_device: Counter[Any] = Counter()
    for leaf in jax.tree.leaves(after):
        of_device.update({s.device: 0 for s in leaf.addressable_shards})
        for shard in leaf.addressable_shards:
            of_device[shard.device] += shard.data.nbytes
    share = sum(leaf.nbytes for leaf in jax.tree.leaves(expected)) / len(step.plan.stages)
    assert len(of_device) == 4
    for n_bytes in of_device.values():
        assert n_bytes == pytest.approx(share, rel=0.05)
    moved = [t.value for t in step.plan.transfers if t.phase == "apply"]
    sizes = {value.name: value.n_bytes for value in step.planned.layered.step.graph.values}
    assert max(map(sizes.get, moved)) <= 4, "only numbers: neither weights nor gradients"


def test_one_stage_keeps_stacks_as_they_are() -> None:
    step = planned(1)
    state, _ = train(step, first_state(KEY), 1)
    assert StackedArray not in kinds(state)


def test_a_plan_that_is_given_decides() -> None:
    state = first_state(KEY)
    for n_stages, n_stacks in ((2, 9), (1, 0)):
        plan = planned(n_stages).prepare(*state, BATCH).plan
        after, _ = train(parallelize(train_step, cluster=CLUSTER, plan=plan), state, 1)
        assert kinds(after)[StackedArray] == n_stacks


@pytest.mark.parametrize(
    ("options", "n_stages"),
    [
        ({"strategy": "megatron"}, 1),
        ({"strategy": "equal_layers"}, 2),
        ({"dp": 4}, 1),  # in so few microbatches that four devices share each
        ({"stages": 4}, 4),
        ({"stages": 2, "pin": {"layers['up']": "RS0R"}}, 2),
    ],
    ids=str,
)
def test_stacks_are_cut_if_the_plan_has_stages(options: Any, n_stages: int) -> None:
    planned = plan_for(train_step, (*first_state(KEY), BATCH), CLUSTER, **options)
    assert len(planned.plan.stages) == n_stages
    assert all(cut is not None for cut in planned.trace.cuts[:3]) == (n_stages > 1)
    assert dict(planned.plan.options).keys() == options.keys()
    for stage in planned.plan.stages:
        pinned = [s.spec for s in stage.inputs if s.value.startswith("layers['up']")]
        assert "pin" not in options or {str(spec) for spec in pinned} == {"RS0R"}


def test_a_short_batch_uses_the_pieces_where_they_lie() -> None:
    step = planned()
    state, _ = train(step, first_state(KEY), 1)
    expected, _ = train(jax.jit(train_step), first_state(KEY), 1)
    *_, ours = step(*state, BATCH[:6])
    *_, theirs = jax.jit(train_step)(*expected, BATCH[:6])
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    assert [variant.is_held for variant in step.variants][-1]


def test_state_is_made_in_pieces() -> None:
    step = planned()
    state = step.init(first_state, KEY, batch=BATCH)
    assert kinds(state) == {StackedArray: 9}
    for ours, expected in zip(
        jax.tree.leaves(state), jax.tree.leaves(first_state(KEY)), strict=True
    ):
        # bit for bit at night; the emitters of the day round pieces otherwise (conftest.py)
        np.testing.assert_allclose(np.asarray(ours), expected, rtol=0 if NIGHTLY else 1e-6)


def test_checkpoints_are_those_of_whole_arrays(tmp_path: Path) -> None:
    """Saved in pieces and read whole, by one device, by other stages; and the other way round."""
    step, state = planned(), first_state(KEY)
    theirs, losses = trained()
    ours, _ = train(step, state, 2)
    step.save(tmp_path / "pieces", 2, ours)
    save(tmp_path / "whole", 2, theirs)
    read = restore(tmp_path / "pieces", state)
    assert StackedArray not in kinds(read)
    np.testing.assert_allclose(train(jax.jit(train_step), read, 2)[1], losses, rtol=1e-5)
    for folder in ("pieces", "whole"):
        for other in (planned(), planned(4), planned(1)):
            other.prepare(*state, BATCH)
            placed = other.restore(tmp_path / folder, state)
            np.testing.assert_allclose(train(other, placed, 2)[1], losses, rtol=1e-5)
    like = step.abstract_state(first_state, KEY)
    assert kinds(restore(tmp_path / "whole", like)) == {StackedArray: 9}
    placed = step.load_state_dict(step.state_dict(ours))
    assert kinds(placed) == {StackedArray: 9}
    np.testing.assert_allclose(train(step, placed, 2)[1], losses, rtol=1e-5)


def test_state_goes_from_one_plan_to_another() -> None:
    _, losses = trained()
    ours, _ = train(planned(), first_state(KEY), 2)
    for other in (planned(4), planned(1), jax.jit(train_step)):
        np.testing.assert_allclose(train(other, ours, 2)[1], losses, rtol=1e-5)


def test_state_that_is_given_away_is_deleted() -> None:
    step = planned(donate=True)
    state = jax.tree.map(jnp.copy, first_state(KEY))
    after, _ = train(step, state, 1)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))
    train(step, after, 1)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(after))
    for gone in (state, after):
        with pytest.raises(ArgumentError, match="given away to a step"):
            step(*gone, BATCH)


def stacked(axis: int, n: int) -> tuple[StackedArray, np.ndarray[Any, Any]]:
    whole = np.arange(24.0, dtype=np.float32).reshape(4, 6)
    pieces = [jnp.asarray(piece) for piece in np.split(whole, n, axis)]
    return StackedArray(axis, pieces), whole


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda x: jnp.sum(x, 0),
    "jit": jax.jit(lambda x: x * 2),
    "grad": jax.grad(lambda x: jnp.sum(jnp.asarray(x) ** 2)),
    "method": lambda x: x.mean(1),
    "operator": lambda x: 1 + x * x,
    "compare": lambda x: x == 3,
    "row": lambda x: x[1],
    "rows": lambda x: [*x][2],
    "set": lambda x: jnp.asarray(x).at[0].set(1),
    "transposed": lambda x: x.T @ x,
    "put": lambda x: jax.device_put(x, jax.devices()[1]),
    "copy": lambda x: x.copy(),
    "numpy": np.square,
    "pickled": lambda x: pickle.loads(pickle.dumps(x)),
    "tree": lambda x: jax.tree.map(jnp.add, {"x": x}, {"x": x})["x"],
    "got": jax.device_get,
    "vmap": jax.vmap(jnp.sum),
    "closed over": lambda x: jax.jit(lambda y: x * y)(2.0),
    "branch": lambda x: lax.cond(True, lambda: x, lambda: -x),
    "list": lambda x: x.tolist(),
    "number": lambda x: float(x[2, 3]),
    "exchanged": np.from_dlpack,
    "shards": lambda x: sum(float(jnp.sum(s.data)) for s in x.addressable_shards),
    "half": lambda x: x.astype(jnp.bfloat16),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@given(st.sampled_from([(0, 2), (0, 4), (1, 3), (1, 1)]))
@settings(max_examples=4)
def test_it_is_an_array_to_jax_and_numpy(name: str, cut: tuple[int, int]) -> None:
    ours, whole = stacked(*cut)
    expected = FUNCTIONS[name](jnp.asarray(whole))
    np.testing.assert_array_equal(np.asarray(FUNCTIONS[name](ours)), np.asarray(expected))
    assert isinstance(ours, jax.Array)
    assert jax.typeof(ours) == jax.typeof(jnp.asarray(whole))
    assert (ours.nbytes, len(ours), ours.ndim, ours.size) == (96, 4, 2, 24)
    for shard in ours.addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), whole[shard.index])


def test_it_says_what_it_is() -> None:
    ours, _ = stacked(1, 3)
    assert repr(ours) == "StackedArray(shape=(4, 6), dtype=float32, 3 pieces in dim 1)"
    assert ours.sharding == ours.copy().sharding
    assert ours.sharding.is_equivalent_to(ours.copy().sharding, 2)
    assert ours.sharding != stacked(0, 2)[0].sharding
    assert ours.is_ready()
    with pytest.raises(ValueError, match="ambiguous"):
        bool(ours)
    with pytest.raises(DeviceError, match="lie in several stages"):
        jax.device_put(jnp.ones((4, 6)), ours.sharding)
    with pytest.raises(ValueError, match="without a copy"):
        ours.__array__(copy=False)
