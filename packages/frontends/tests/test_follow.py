"""`step.follow`: other functions of a step's state, which stays where the step's plan keeps it."""

import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from costmodel import Cluster
from frontends.errors import PlanError
from frontends.jax import ParallelStep, parallelize
from frontends.jax.base.arguments import describe
from frontends.jax.base.followed_state import FollowedState
from frontends.jax.testing import assert_same
from frontends.search.held import homes_of
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

CLUSTER = Cluster.preset("two-hosts").resized(devices_per_host=2)
OPTIMIZER = optax.adamw(1e-2, eps=1e-2)
RNG = np.random.default_rng(0)
N, WIDTH, WORDS = 4, 16, 12
BATCH = {name: RNG.integers(0, WORDS, (8, 6)) for name in ("x", "y")}
WAYS: dict[str, dict[str, Any]] = {
    "one stage": {"stages": 1},
    "zero": {"strategy": "zero", "microbatches": 2},
    "two stages": {"stages": 2, "microbatches": 2, "schedule": "zb-h1"},
    "four stages": {"stages": 4, "microbatches": 4},
    "several a rank": {"stages": 2, "chunks": 2, "microbatches": 2},
    "replicas": {"strategy": "equal_layers", "schedule": "chimera", "microbatches": 4},
}


@pytest.fixture(autouse=True)
def _what_moves_is_an_error() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*planned on its own")
        yield


def params_from(key: jax.Array, *, stacked: bool) -> Any:
    keys = jax.random.split(key, N + 1)
    layers = [
        {"w": jax.random.normal(k, (WIDTH, WIDTH)) / 4, "b": jnp.zeros(WIDTH)} for k in keys[:N]
    ]
    table = jax.random.normal(keys[N], (WORDS, WIDTH))
    return {
        "table": table,
        "layers": jax.tree.map(lambda *rows: jnp.stack(rows), *layers) if stacked else layers,
    }


def logits_of(params: Any, x: Any) -> Any:
    """A model whose first and last layer share their weights."""

    def layer(h: Any, p: Any) -> tuple[Any, None]:
        return h + jax.nn.gelu(h @ p["w"] + p["b"]), None

    h = params["table"][x]
    if isinstance(params["layers"], dict):
        h, _ = lax.scan(layer, h, params["layers"])
    else:
        for p in params["layers"]:
            h, _ = layer(h, p)
    return h @ params["table"].T


def loss_of(params: Any, batch: Any) -> Any:
    logits = logits_of(params, batch["x"])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()


def train_step(state: Any, batch: Any) -> Any:
    """State with an average of the weights, which is only read in evaluations."""
    loss, gradients = jax.value_and_grad(loss_of)(state["params"], batch)
    updates, opt_state = OPTIMIZER.update(gradients, state["opt"], state["params"])
    params = optax.apply_updates(state["params"], updates)
    average = jax.tree.map(lambda a, p: 0.9 * a + 0.1 * p, state["average"], params)
    return {"params": params, "average": average, "opt": opt_state}, loss


def first_state(key: jax.Array, *, stacked: bool) -> Any:
    params = params_from(key, stacked=stacked)
    return {
        "params": params,
        "average": jax.tree.map(jnp.copy, params),
        "opt": OPTIMIZER.init(params),
    }


def evaluate(weights: Any, batch: Any) -> Any:
    logits = logits_of(weights, batch["x"])
    return {"loss": loss_of(weights, batch), "word": logits.argmax(-1), "logits": logits}


def generate(weights: Any, x: Any) -> Any:
    def word(_: Any, x: Any) -> Any:
        return jnp.concatenate([x[:, 1:], logits_of(weights, x)[:, -1:].argmax(-1)], 1)

    return lax.fori_loop(0, 3, word, x)


def moves(step: ParallelStep, other: ParallelStep) -> list[str]:
    """What a function reads of the step's state in another place than where the step keeps it."""
    homes = homes_of(step.plan)
    theirs = [homes_of(variant.plan) for variant in other.variants]
    return [n for each in theirs for n in each if homes.get(n) != each[n]]


def compare(step: ParallelStep, other: ParallelStep, function: Any, *arguments: Any) -> None:
    """A function that follows a step gives what it gives on one device, and moves no state."""
    found = other(*arguments)
    expected = jax.jit(function)(*step.state_dict(arguments))
    assert_same(jax.tree.leaves(found), expected)
    assert moves(step, other) == []
    assert all(variant.is_held for variant in other.variants)


@pytest.mark.parametrize(
    ("way", "stacked"),
    [*((way, False) for way in WAYS), ("two stages", True), ("four stages", True)],
)
def test_functions_follow_a_step_to_where_its_state_is(way: str, stacked: bool) -> None:
    step = parallelize(train_step, cluster=CLUSTER, **WAYS[way], donate=True)
    state = step.init(lambda key: first_state(key, stacked=stacked), jax.random.key(0), batch=BATCH)
    follows, generates = step.follow(evaluate), step.follow(generate)
    whole = step.follow(lambda state, batch: evaluate(state["average"], batch))
    for _ in range(2):
        state, _ = step(state, BATCH)
        compare(step, follows, evaluate, state["params"], BATCH)
    compare(step, whole, whole.__wrapped__, state, BATCH)
    short = {name: rows[:3] for name, rows in BATCH.items()}
    compare(step, follows, evaluate, state["params"], short)
    compare(step, generates, generate, state["params"], BATCH["x"])
    assert follows.verify(state["params"], BATCH).results < 1e-5
    step(state, BATCH)
    assert len(step.variants) == 1


def test_weights_that_two_stages_read_are_kept_in_one() -> None:
    step = parallelize(train_step, cluster=CLUSTER, **WAYS["two stages"])
    step.prepare(first_state(jax.random.key(0), stacked=False), BATCH)
    follows = step.follow(evaluate)
    plan = follows.prepare(params_from(jax.random.key(0), stacked=False), BATCH).plan
    sent = [(t.source, t.destination, t.value) for t in plan.transfers if t.phase == "state"]
    assert sent == [(0, 1, "state['params']['table']")]


def test_state_that_a_function_does_not_read_takes_memory_all_the_same() -> None:
    step = parallelize(train_step, cluster=CLUSTER, **WAYS["two stages"])
    step.prepare(first_state(jax.random.key(0), stacked=False), BATCH)
    plan = step.follow(evaluate).prepare(params_from(jax.random.key(0), stacked=False), BATCH).plan
    limit = CLUSTER.device.memory_bytes
    alike = sum(s.memory_bytes for s in step.plan.stages) / len(step.plan.stages)
    assert limit - alike < plan.memory_limit_bytes < limit


@pytest.mark.parametrize("way", ["one stage", "two stages"])
def test_of_equal_trees_the_one_is_meant_that_lies_there(way: str) -> None:
    step = parallelize(train_step, cluster=CLUSTER, **WAYS[way])
    state = first_state(jax.random.key(0), stacked=False)
    by_name = step.follow(lambda average, batch: loss_of(average, batch))
    with pytest.raises(PlanError, match=r"train_step has none yet: call it, or prepare"):
        by_name(state["average"], BATCH)
    state, _ = step(state, BATCH)
    for shapes in (state["average"], jax.eval_shape(lambda: state["average"])):
        plan = step.follow(by_name.__wrapped__).prepare(shapes, BATCH).plan
        read = {n for stage in plan.stages for s in stage.inputs if (n := s.value)[:5] == "state"}
        assert {name.partition("']")[0] for name in read} == {"state['average"}


def test_a_function_that_cannot_follow_is_planned_on_its_own() -> None:
    step = parallelize(train_step, cluster=CLUSTER, **WAYS["four stages"])
    state, _ = step(first_state(jax.random.key(0), stacked=False), BATCH)

    def norm_of(params: Any) -> Any:
        return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))

    norm = step.follow(norm_of, batch_argnums=())
    with pytest.warns(UserWarning, match=r"norm_of is planned on its own .* this one has 1, and"):
        found = norm(state["params"])
    expected = norm_of(step.state_dict(state["params"]))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert not norm.variants[0].is_held


def test_modules_of_nnx_are_evaluated_where_they_are() -> None:
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.layers = nnx.List([nnx.Linear(WIDTH, WIDTH, rngs=rngs) for _ in range(N)])
            self.drop = nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            for layer in self.layers:
                x = self.drop(nnx.relu(layer(x)))
            return x

    def loss_of(model: Any, x: Any) -> Any:
        return ((model(x) - 1) ** 2).mean()

    @nnx.jit
    def train(model: Any, optimizer: Any, x: Any) -> Any:
        loss, gradients = nnx.value_and_grad(loss_of)(model, x)
        optimizer.update(model, gradients)
        return loss

    @nnx.jit
    def evaluate(model: Any, metrics: Any, x: Any) -> Any:
        metrics.update(loss=loss_of(model, x))

    model = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    step = parallelize(train, cluster=CLUSTER, stages=2, microbatches=2)
    follows = step.follow(evaluate)
    x = RNG.normal(size=(8, WIDTH)).astype(np.float32)
    for _ in range(2):
        step(model, optimizer, x)
    model.eval()
    metrics, theirs = (nnx.MultiMetric(loss=nnx.metrics.Average("loss")) for _ in range(2))
    before = jax.tree.leaves(nnx.state(model))
    for _ in range(2):
        follows(model, metrics, x)
    after = jax.tree.leaves(nnx.state(model))
    assert all(a is b for a, b in zip(before, after, strict=True)), "not copied"
    nnx.update(model, jax.tree.map(step.state_dict, nnx.state(model, nnx.Param)))
    for _ in range(2):
        theirs.update(loss=loss_of(model, x))
    np.testing.assert_allclose(metrics.compute()["loss"], theirs.compute()["loss"], rtol=1e-5)
    assert [name for name in moves(step, follows) if not name.startswith("metrics")] == []


# Names of leaves.

TREES = st.recursive(
    st.sampled_from([(), (2,), (3,)]),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3),
    max_leaves=6,
)


def shapes_of(tree: Any) -> Any:
    def is_shape(node: Any) -> bool:
        return isinstance(node, tuple)

    return jax.tree.map(lambda s: jax.ShapeDtypeStruct(s, np.float32), tree, is_leaf=is_shape)


def named(function: Callable[..., Any], arguments: Any, ours: Any) -> tuple[list[str], list[str]]:
    """The names of the leaves of a step's state and batch, and of a function that follows it."""
    leaves = describe(function, (*arguments, shapes_of((4,))), (-1,))
    tree = jax.tree.structure((*arguments, 0))
    followed = FollowedState(tree, leaves, set(), dict)
    mine = describe(lambda weights, other, x: None, (*ours, shapes_of((4,))), (-1,))
    return [a.name for a in leaves], [a.name for a in followed.named((*ours, 0), mine)]


@given(TREES, TREES, TREES)
def test_a_part_of_the_state_gets_its_names_and_no_name_is_given_twice(
    first: Any, second: Any, other: Any
) -> None:
    state = shapes_of({"params": first, "opt": [second]})
    theirs, names = named(lambda state, x: None, (state,), (state["params"], shapes_of(other)))
    assert len({*names}) == len(names)
    n = len(jax.tree.leaves(state["params"]))
    shape_of = dict(zip(theirs, jax.tree.leaves((state, 0)), strict=True))
    for name, leaf in zip(
        names, jax.tree.leaves((state["params"], shapes_of(other))), strict=False
    ):
        assert name not in shape_of or shape_of[name].shape == leaf.shape
    if isinstance(first, dict) and first != second:
        paths = [re.escape(name.partition("params']")[2]) for name in theirs if "params" in name]
        assert len(paths) == n
        assert all(re.search(path + "$", name) for path, name in zip(paths, names, strict=False))
