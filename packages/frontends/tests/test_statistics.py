"""Statistics of microbatches: the mean of what the step computes for each of them alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from costmodel import Cluster
from frontends.answer.plan import Plan
from frontends.errors import AccumulationError, VerificationError
from frontends.jax import parallelize
from frontends.jax.testing import assert_same, run_in_microbatches, steps
from frontends.jax.trace.trace import Capture
from hypothesis import event, given, settings
from jax import lax

CLUSTER = Cluster.preset("two-hosts").resized(devices_per_host=2)
RNG = np.random.default_rng(0)
WIDTH = 8
PARAMS = [
    {
        "w": jnp.asarray(RNG.normal(size=(WIDTH, WIDTH)) / 3, jnp.float32),
        "scale": jnp.ones(WIDTH),
        "bias": jnp.zeros(WIDTH),
    }
    for _ in range(3)
]
STATE = [{"mean": jnp.zeros(WIDTH), "variance": jnp.ones(WIDTH)} for _ in range(3)]
BATCH = {name: RNG.normal(size=(12, WIDTH)).astype(np.float32) for name in ("x", "y")}


def normalized(x: Any, layer: Any, variance: Any) -> Any:
    mean = x.mean(0)
    return (x - mean) * lax.rsqrt(variance(x, mean) + 1e-3) * layer["scale"] + layer["bias"]


def centered(x: Any, mean: Any) -> Any:
    return ((x - mean) ** 2).mean(0)


def of_squares(x: Any, mean: Any) -> Any:
    """As Flax computes it."""
    return (x**2).mean(0) - mean**2


def with_norms(variance: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def loss_of(params: Any, state: Any, batch: Any) -> Any:
        x, running = batch["x"], []
        for layer, kept in zip(params, state, strict=True):
            x = jnp.tanh(x @ layer["w"])
            now = {"mean": x.mean(0), "variance": variance(x, x.mean(0))}
            running.append(jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, kept, now))
            x = normalized(x, layer, variance)
        penalty = 1e-3 * sum(jnp.sum(layer["w"] ** 2) for layer in params)
        return jnp.mean((x - batch["y"]) ** 2) + penalty, running

    return loss_of


def by_the_name_of_a_dim(params: Any, state: Any, batch: Any) -> Any:
    """As Equinox normalizes: `jax.vmap` names the dim of examples."""

    def of_example(x: Any) -> Any:
        h = jnp.tanh(x @ params[0]["w"])
        centre = lax.pmean(h, "examples")
        variance = lax.pmean((h - centre) ** 2, "examples")
        h = (h - centre) / jnp.sqrt(variance + 0.1) * params[0]["scale"]
        return h @ params[1]["w"]

    out = jax.vmap(of_example, axis_name="examples")(batch["x"])
    return jnp.mean((out - batch["y"]) ** 2), state


def of_experts(params: Any, state: Any, batch: Any) -> Any:
    """The balance of experts, whose gradient needs their loads."""
    x = batch["x"]
    gates = jax.nn.softmax(x @ params[0]["w"])
    chosen = jax.nn.one_hot(gates.argmax(-1), WIDTH)
    balance = WIDTH * jnp.sum(chosen.mean(0) * gates.mean(0))
    out = x * gates.max(-1, keepdims=True) @ params[1]["w"]
    return jnp.mean((out - batch["y"]) ** 2) + 0.1 * balance, state


def of_spread(params: Any, state: Any, batch: Any) -> Any:
    hidden = batch["x"] @ params[0]["w"]
    spread = jnp.log(jnp.std(hidden) + 1) * 3
    return jnp.mean(hidden**2) * spread + spread**2, state


LOSSES = {
    "by the name of a dim": by_the_name_of_a_dim,
    "centered": with_norms(centered),
    "of squares": with_norms(of_squares),
    "experts": of_experts,
    "spread": of_spread,
}


def step_of(loss_of: Callable[..., Any]) -> Callable[..., Any]:
    def step(params: Any, state: Any, batch: Any) -> Any:
        gradients_of = jax.value_and_grad(loss_of, has_aux=True)
        (loss, state), gradients = gradients_of(params, state, batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), state, loss

    return step


def mean_over_microbatches(step: Callable[..., Any], microbatches: int, *state: Any) -> Any:
    n = 12 // microbatches
    each = [
        step(*state, jax.tree.map(lambda a, i=i: a[i * n : (i + 1) * n], BATCH))
        for i in range(microbatches)
    ]
    return jax.tree.map(lambda *values: sum(values) / microbatches, *each)


@pytest.mark.parametrize("microbatches", [2, 3])
@pytest.mark.parametrize("name", LOSSES)
def test_a_step_is_the_mean_of_its_microbatches(name: str, microbatches: int) -> None:
    step = step_of(LOSSES[name])
    arguments = (PARAMS, STATE, BATCH)
    if name not in ("experts", "spread"):
        with pytest.raises(AccumulationError, match="microbatch_statistics=True for sums of each"):
            Capture(step, arguments, (2,)).at(microbatches)
    else:
        assert Capture(step, arguments, (2,)).at(microbatches).first_pass is not None
    trace = Capture(step, arguments, (2,), statistics=True).at(microbatches)
    assert trace.step.has_statistics
    assert trace.first_pass is None
    ours = run_in_microbatches(trace, arguments)
    expected = mean_over_microbatches(step, microbatches, PARAMS, STATE)
    if name == "experts":  # its loss follows from sums, and is that of the whole batch
        expected = (*expected[:2], step(*arguments)[2])
    assert_same(ours, expected, least=1e-2)
    one = Capture(step, arguments, (2,), statistics=True).at(1)
    assert not one.step.has_statistics


MIXING = (
    *("centred", "mean", "sum", "sine", "product of scalars", "times scalar", "tanh", "gram"),
    *("tanh of matrix", "scaled matrix", "product of matrices", "share", "sum of scalars"),
    *("offset", "histogram", "sum of matrix", "softmax"),
)


@settings(max_examples=settings().max_examples // 4)
@given(steps(max_operations=8, only=MIXING))
def test_random_steps_are_the_mean_of_batches_of_copies(drawn: tuple[Any, tuple[Any, Any]]) -> None:
    """An estimate is the sum over a batch that consists of copies of the microbatch."""
    step, (w, batch) = drawn
    trace = Capture(step, (w, batch), (1,), statistics=True).at(2)
    ours = run_in_microbatches(trace, (w, batch))
    event("estimates" if trace.step.has_statistics else "exact")
    if not trace.step.has_statistics:
        assert_same(ours, step(w, batch), tolerance=1e-4, least=1.0)
        return
    halves = [jax.tree.map(lambda a, i=i: np.split(np.asarray(a), 2)[i], batch) for i in (0, 1)]
    copies = [jax.tree.map(lambda a: np.concatenate([a, a]), half) for half in halves]
    each = [step(w, copy)[0] for copy in copies]
    assert_same(ours[:1], sum(each) / 2, tolerance=1e-3, least=1.0)


def test_a_step_without_statistics_stays_exact() -> None:
    def loss_of(params: Any, state: Any, batch: Any) -> Any:
        return jnp.mean((batch["x"] @ params[0]["w"] - batch["y"]) ** 2), state

    arguments = (PARAMS, STATE, BATCH)
    asked, plain = (
        Capture(step_of(loss_of), arguments, (2,), statistics=statistics).at(2)
        for statistics in (True, False)
    )
    assert asked.step.fingerprint == plain.step.fingerprint
    assert not asked.step.has_statistics


def test_a_maximum_of_all_examples_needs_one_microbatch() -> None:
    def loss_of(params: Any, state: Any, batch: Any) -> Any:
        return jnp.mean(jnp.max((batch["x"] @ params[0]["w"]) ** 2, 0)), state

    capture = Capture(step_of(loss_of), (PARAMS, STATE, BATCH), (2,), statistics=True)
    with pytest.raises(AccumulationError, match="Use microbatches=1"):
        capture.at(2)


def test_a_plan_has_the_option_and_runs_with_it_again(tmp_path: Path) -> None:
    step = step_of(LOSSES["centered"])
    ways: dict[str, Any] = {"stages": 2, "microbatches": 2, "microbatch_statistics": True}
    ours = parallelize(step, cluster=CLUSTER, **ways)
    state: Any = (PARAMS, STATE)
    theirs: Any = (PARAMS, STATE)
    for _ in range(2):
        *state, found = ours(*state, BATCH)
        *theirs, expected = mean_over_microbatches(step, 2, *theirs)
        assert_same(jax.tree.leaves((state, found)), (theirs, expected), least=1e-2)
    assert ("microbatch_statistics", "True") in ours.plan.options
    assert len(ours.plan.stages) == 2
    with pytest.raises(VerificationError, match="verify with microbatches=1"):
        ours.verify(PARAMS, STATE, BATCH)
    ours.plan.save(tmp_path / "plan.json")
    again = parallelize(step, cluster=CLUSTER, plan=Plan.load(tmp_path / "plan.json"))
    *_, found = again(PARAMS, STATE, BATCH)
    *_, expected = ours(PARAMS, STATE, BATCH)
    assert float(found) == float(expected)
    evaluate = ours.follow(lambda params, state, batch: LOSSES["centered"](params, state, batch)[0])
    found = evaluate(PARAMS, STATE, BATCH)  # without gradients, there is nothing to estimate
    np.testing.assert_allclose(found, LOSSES["centered"](PARAMS, STATE, BATCH)[0], rtol=1e-5)
