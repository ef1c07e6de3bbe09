"""Schedules that are not plain are tried for pipelines, and plans in them run."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain

import frontends.jax as mw
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from costmodel import Cluster, Level, Link
from frontends.answer.plan import Plan
from frontends.jax.testing import Example, mlp, small_gpt
from frontends.layers.layers import layer
from frontends.plan.schedule import PLAIN
from frontends.search.microbatches import with_other_schedules
from frontends.search.plan_options import PlanOptions
from frontends.search.planner import OTHERS, Planner

NAMES = (*chain(*OTHERS),)
HOSTS = Cluster.preset("two-hosts").resized(n_hosts=4, devices_per_host=1)


def over(bandwidth: float) -> Cluster:
    """Four devices, each on a host of its own, so that a pipeline pays."""
    return replace(HOSTS, levels=(Level("network", 4, Link(1e-6, bandwidth)),))


@cache
def gpt() -> Example:
    return small_gpt(6, 64, 16)


@cache
def plan(bandwidth: float, schedule: str | None = None) -> Plan:
    example, options = gpt(), {} if schedule is None else {"schedule": schedule}
    planned = mw.plan_for(
        example.function, example.arguments, over(bandwidth), microbatches=4, **options
    )
    return planned.plan


def test_no_schedule_that_is_asked_for_is_much_faster() -> None:
    found = plan(1e9)
    assert found.schedule.split()[0] in NAMES
    plain = [plan(1e9, name).step_s for name in PLAIN]
    others = [plan(1e9, name).step_s for name in ("zb-h1", "zb-v", "interleaved-1f1b:2")]
    assert found.step_s <= 1.02 * min(others)
    assert found.step_s <= 0.9 * min(plain)
    (fastest,) = (other for other in found.alternatives if "fastest plain" in other.reason)
    assert fastest.step_s == pytest.approx(min(plain))


@pytest.mark.parametrize("bandwidth", [1e8, 1e9])
def test_plans_in_them_run(bandwidth: float) -> None:
    example, found = gpt(), plan(bandwidth)
    step = mw.parallelize(example.function, cluster=over(bandwidth), plan=found)
    ours, theirs = example.arguments[:2], example.arguments[:2]
    for _ in range(3):
        *ours, loss = step(*ours, example.batch)
        *theirs, expected = jax.jit(example.function)(*theirs, example.batch)
        np.testing.assert_allclose(loss, expected, rtol=1e-5)


@pytest.mark.parametrize("examples", [4, 3])
def test_what_is_made_for_costs_is_made_anew_for_another_batch(examples: int) -> None:
    held, example = plan(1e9, "zb-auto"), gpt()
    assert held.schedule != held.schedule_name == "zb-auto"
    batch = jax.tree.map(lambda x: x[:examples], example.batch)
    again = mw.plan_for(
        example.function, (*example.arguments[:2], batch), over(1e9), hold=held
    ).plan
    assert again.schedule_name == "zb-auto"
    assert again.microbatches == examples
    again.verify()


@pytest.mark.parametrize("name", ["zb-auto", "zb-1p"])
def test_a_stage_that_trains_nothing_gets_no_gradients(name: str) -> None:
    """As in front of a head that is fine-tuned: a schedule for costs has no transfer to count."""

    def step(head: jax.Array, frozen: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        def loss_of(head: jax.Array) -> jax.Array:
            return jnp.mean(jnp.tanh(jnp.tanh(x @ frozen) @ frozen @ head) ** 2)

        loss, gradient = jax.value_and_grad(loss_of)(head)
        return head - 0.1 * gradient, loss

    arguments = jnp.ones((64, 64)), jnp.eye(64), jnp.ones((64, 64))
    chosen = {"stages": 2, "n_layers": 2, "schedule": name}
    found = mw.plan_for(step, arguments, over(1e9), microbatches=4, **chosen).plan
    assert found.schedule_name == name
    assert not [t for t in found.transfers if t.phase == "backward"]
    found.verify()


def test_what_the_user_has_chosen_is_kept() -> None:
    step = layer(mlp().trace(4).step, 4)
    for options in ({"schedule": "1f1b"}, {"stages": 1}, {"strategy": "equal_layers"}):
        planner = Planner(step, over(1e8), PlanOptions(**options))
        assert planner.in_other_schedules(math.inf, search=True) is None


def test_layers_of_stages_that_are_chosen_stay() -> None:
    planner = Planner(layer(mlp().trace(4).step, 4), over(1e8), PlanOptions(stages=(1, 3)))
    found = planner.in_other_schedules(math.inf, search=True)
    assert found is not None
    assert [(s.first_layer, s.last_layer) for s in found.stages] == [(0, 0), (1, 3)]


def test_a_number_of_stages_that_is_chosen_stays() -> None:
    planner = Planner(layer(mlp().trace(4).step, 4), over(1e8), PlanOptions(stages=2, tp=1))
    found = planner.in_other_schedules(math.inf, search=True)
    assert found is not None
    assert {len(stage.mesh.device_ids) for stage in found.stages} == {2}
    assert planner.best().step_s <= found.step_s
    found.verify()


@dataclass
class Known:
    """Pipelines of known steps in other schedules, by number of microbatches."""

    plain: Plan
    other_s: Mapping[int, float] = field(default_factory=dict)
    tried: list[tuple[int, bool]] = field(default_factory=list)

    def found(self, fewest: int = 2) -> Plan:
        return with_other_schedules(lambda n: Numbered(self, n), self.plain, fewest, [32])


@dataclass
class Numbered:
    known: Known
    n: int

    def in_other_schedules(self, limit_s: float, *, search: bool) -> Plan | None:
        self.known.tried.append((self.n, search))
        return self.best() if self.known.other_s.get(self.n, math.inf) < limit_s else None

    def best(self) -> Plan:
        faster_s = self.known.other_s[self.n]
        return replace(self.known.plain, microbatches=self.n, step_s=faster_s, schedule="zb-h1")


def test_more_microbatches_are_tried_while_a_step_gets_shorter(example_plan: Plan) -> None:
    known = Known(replace(example_plan, step_s=9.0), {8: 8.0, 16: 7.0, 32: 6.99})
    found = known.found()
    assert (found.microbatches, found.step_s) == (16, 7.0)
    assert known.tried == [(8, False), (16, True), (32, True)]
    assert found.alternatives[-1].name == "1f1b, 8 microbatches"


def test_a_plan_stays_if_no_schedule_is_faster(example_plan: Plan) -> None:
    known = Known(replace(example_plan, step_s=9.0), {8: 8.95})
    assert known.found() is known.plain


def test_a_plan_of_one_stage_is_compared_with_pipelines_of_more_microbatches(
    example_plan: Plan,
) -> None:
    one = replace(example_plan, stages=example_plan.stages[:1], microbatches=1, step_s=9.0)
    known = Known(one, {4: 5.0})
    assert known.found(fewest=4).step_s == 5.0
    assert known.tried == [(4, False), (8, True)]
