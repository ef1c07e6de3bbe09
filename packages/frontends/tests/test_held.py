"""Plans of other batches in held layouts: all state stays where the first plan keeps it."""

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from costmodel import Cluster, Level, Link
from frontends.errors import HeldLayoutError
from frontends.jax import plan_for
from frontends.jax.run.runtime import Runtime
from frontends.jax.testing import EXAMPLES, Example, assert_same, sgd
from frontends.jax.trace.trace import Trace
from frontends.search.held import homes_of, same_homes, updated_by
from frontends.search.plan_step import Planned
from shardspec import Spec

CLUSTER = Cluster.preset("two-hosts").resized(devices_per_host=2)
SLOW = replace(CLUSTER, levels=(Level("network", 2, Link(1e-6, 1e6)),))
FIRST: list[tuple[str, dict[str, Any]]] = [
    ("mlp", {}),
    ("mlp", {"strategy": "megatron", "microbatches": 2}),
    ("adamw", {"strategy": "zero", "microbatches": 2}),
    ("adamw", {"strategy": "equal_layers"}),
    ("tied", {"strategy": "equal_layers"}),
    ("clipped", {"strategy": "equal_layers", "schedule": "interleaved-1f1b", "n_layers": 4}),
    ("mlp", {"strategy": "equal_layers", "schedule": "zb-v", "n_layers": 4}),
    ("adamw", {"strategy": "equal_layers", "schedule": "dualpipe", "n_layers": 4}),
    ("skip", {"strategy": "equal_layers", "schedule": "zb-h1"}),
    ("gpt", {"strategy": "equal_layers"}),
]
IDS = ["-".join([name, *map(str, options.values())]) for name, options in FIRST]


@cache
def example(name: str) -> Example:
    return EXAMPLES[name]()


def first_plan(name: str, options: dict[str, Any]) -> Planned[Trace]:
    options = {"microbatches": 4, **options}
    return plan_for(example(name).function, example(name).arguments, SLOW, **options)


def with_rows(name: str, n: int) -> tuple[Any, ...]:
    """The arguments of an example with the first `n` examples of its batch, or more copies."""
    params, opt_state, batch = example(name).arguments
    return params, opt_state, jax.tree.map(lambda x: np.resize(x, (n, *x.shape[1:])), batch)


@pytest.mark.parametrize(("name", "options"), FIRST, ids=IDS)
def test_state_stays_where_it_is_in_any_batch(name: str, options: dict[str, Any]) -> None:
    held = first_plan(name, options).plan
    for n in (16, 6, 3, 1):
        told: list[tuple[str, int, int]] = []
        plan = plan_for(
            example(name).function,
            with_rows(name, n),
            SLOW,
            hold=held,
            progress=lambda *done, told=told: told.append(done),
        ).plan
        assert same_homes(plan, held) == []
        assert updated_by(held) == updated_by(plan) > set()
        wanted = range(held.microbatches, 0, -1)
        assert plan.microbatches == next(m for m in wanted if n % m == 0)
        plan.verify()
        assert plan.strategy == "held"
        assert told[-1] == ("planning in held layouts", len(plan.stages), len(plan.stages))


@pytest.mark.parametrize(
    ("name", "options"), [FIRST[i] for i in (3, 5, 7)], ids=[IDS[i] for i in (3, 5, 7)]
)
def test_steps_of_several_plans_hand_state_to_each_other(
    name: str, options: dict[str, Any]
) -> None:
    first = first_plan(name, options)
    function = example(name).function
    expected = state = example(name).arguments[:2]
    for n in (8, 6, 8, 3):
        arguments = with_rows(name, n)
        planned = first if n == 8 else plan_for(function, arguments, SLOW, hold=first.plan)
        runtime = Runtime(planned.trace, planned.layered, planned.plan, SLOW)
        given = (*state, arguments[2])
        leaves = dict(
            zip((a.name for a in planned.trace.arguments), jax.tree.leaves(given), strict=False)
        )
        if state is not expected:
            for _, (_, slot, _), where in runtime._placed:  # nothing needs to move
                if slot.value in leaves and leaves[slot.value].ndim:  # but counters
                    assert leaves[slot.value].sharding.is_equivalent_to(
                        where, leaves[slot.value].ndim
                    ), slot.value
        *ours, loss = planned.trace.unflatten(runtime(planned.trace.flatten(given)))
        *theirs, expected_loss = jax.jit(function)(*expected, arguments[2])
        assert_same(jax.tree.leaves((ours, loss)), (theirs, expected_loss))
        state, expected = tuple(ours), tuple(theirs)


def test_the_same_step_keeps_its_plan() -> None:
    first = first_plan("mlp", {})
    again = plan_for(example("mlp").function, example("mlp").arguments, SLOW, hold=first.plan)
    assert again.plan is first.plan


def test_homes_are_the_devices_the_mesh_and_the_spec() -> None:
    plan = first_plan("mlp", {"strategy": "megatron", "microbatches": 2}).plan
    (stage,) = plan.stages
    assert same_homes(plan, plan) == []
    moved = replace(stage, mesh=replace(stage.mesh, device_ids=(3, 2, 1, 0)))
    assert len(same_homes(plan, replace(plan, stages=(moved,)))) == len(homes_of(plan))
    name, (home,) = next((n, h) for n, h in homes_of(plan).items() if n.endswith("['w']"))
    other = Spec.parse("RR" if home.spec != Spec.parse("RR") else "S0R")
    inputs = tuple(replace(s, spec=other) if s.value == name else s for s in stage.inputs)
    (line,) = same_homes(plan, replace(plan, stages=(replace(stage, inputs=inputs),)))
    assert line == f"{name}: {home} here, {replace(home, spec=other)} there"
    assert same_homes(plan, replace(plan, stages=()), ["other"]) == []


def test_what_cannot_be_held_is_refused() -> None:
    plan = first_plan("mlp", {"strategy": "equal_layers"}).plan
    function, arguments = example("mlp").function, with_rows("mlp", 4)
    reverse = (arguments[0][::-1], *arguments[1:])

    def backwards(params: Any, *others: Any) -> Any:
        params, *results = function(params[::-1], *others)
        return params[::-1], *results

    hosts = CLUSTER.resized(n_hosts=4, devices_per_host=1)
    four = plan_for(function, arguments, hosts, strategy="equal_layers", microbatches=4).plan
    assert len(four.stages) == 4
    with pytest.raises(HeldLayoutError, match=r"this one has 576 B of 1.12 KiB in other stages"):
        plan_for(backwards, reverse, hosts, hold=four)
    short = plan_for(function, (arguments[0], *arguments[1:]), hosts, hold=four).plan
    assert same_homes(short, four) == []
    with pytest.raises(HeldLayoutError, match="needs more than 100 B a device"):
        plan_for(function, arguments, SLOW, hold=plan, memory_bytes=100)
    one = Cluster.preset("virtual-cpu").resized(devices_per_host=2)
    with pytest.raises(HeldLayoutError, match="this one uses 4, and cluster 'virtual-cpu' has 2"):
        plan_for(function, arguments, one, hold=plan)
    wide = EXAMPLES["mlp"](width=16)  # type: ignore[call-arg]
    with pytest.raises(HeldLayoutError, match=r"got params\[0\]\['b'\] of float32\[16\] for float"):
        plan_for(wide.function, wide.arguments, SLOW, hold=plan)


def test_a_longer_loop_has_more_layers_and_the_same_homes() -> None:
    def step(state: Any, batch: Any) -> Any:
        def loss(w: Any) -> Any:
            first = jnp.tanh(batch["x"] @ w["in"])
            hidden, _ = jax.lax.scan(
                lambda h, x: (jnp.tanh(x + h @ w["cell"]), None),
                0 * first[:, 0],
                first.swapaxes(0, 1),
            )
            for weight in w["out"]:
                hidden = jnp.tanh(hidden @ weight)
            return jnp.mean((hidden - batch["y"]) ** 2)

        value, gradient = jax.value_and_grad(loss)(state)
        return jax.tree.map(lambda w, g: w - 0.1 * g, state, gradient), value

    rng = np.random.default_rng(0)

    def numbers(*shape: int) -> Any:
        return rng.normal(size=shape, scale=0.3).astype(np.float32)

    state = {"in": numbers(8, 8), "cell": numbers(8, 8), "out": [numbers(8, 8) for _ in range(4)]}

    def batch(length: int) -> Any:
        return {"x": numbers(8, length, 8), "y": numbers(8, 8)}

    options: dict[str, Any] = {"microbatches": 2, "strategy": "equal_layers"}
    first = plan_for(step, (state, batch(3)), SLOW, **options).plan
    for length in (6, 2, 1):
        plan = plan_for(step, (state, batch(length)), SLOW, hold=first).plan
        assert same_homes(plan, first) == []
        assert len(plan.stages) == len(first.stages) == 2


def test_state_that_is_made_elsewhere_is_handed_to_where_it_is_kept() -> None:
    def loss(layers: Any, x: Any) -> Any:
        y = x
        for weight in layers:
            y = jnp.tanh(y @ weight)
        return jnp.mean((y - x) ** 2)

    def step(layers: Any, seen: Any, x: Any) -> Any:
        layers, value = sgd(loss)(layers, x)
        return layers, 0.9 * seen + 0.1 * x.mean(0), value  # made where all of the batch is

    x = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
    given = ([x * 0.3] * 4, jnp.zeros(8), x)
    first = plan_for(step, given, SLOW, strategy="equal_layers", microbatches=2)
    handed = 0
    for n in (6, 3):
        some = (*given[:2], x[:n])
        planned = plan_for(step, some, SLOW, hold=first.plan)
        assert same_homes(planned.plan, first.plan) == []
        planned.plan.verify()
        handed += any(op.name.startswith("keep.") for op in planned.layered.step.graph.operators)
        runtime = Runtime(planned.trace, planned.layered, planned.plan, SLOW)
        found = planned.trace.unflatten(runtime(planned.trace.flatten(some)))
        assert_same(jax.tree.leaves(found), jax.jit(step)(*some))
        again = plan_for(step, some, SLOW, plan=planned.plan)
        assert again.layered.step == planned.layered.step
    assert handed > 0


def test_numbers_and_what_is_only_read_may_be_of_another_type() -> None:
    function = example("mlp").function

    def step(params: Any, opt_state: Any, rate: Any, mask: Any, batch: Any) -> Any:
        params, opt_state, loss = function(params, opt_state, batch)
        return params, opt_state, loss * rate + jnp.sum(mask)

    params, opt_state, batch = example("mlp").arguments
    given = (params, opt_state, 0.1, np.ones(3, np.float32), batch)
    first = plan_for(step, given, SLOW, strategy="equal_layers", microbatches=2).plan
    other = (params, opt_state, 1, np.ones(5, np.int32), batch)
    assert same_homes(plan_for(step, other, SLOW, hold=first).plan, first, updated_by(first)) == []
