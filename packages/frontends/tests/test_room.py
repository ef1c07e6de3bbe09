"""Numbers of microbatches without room have no plan; those of pipelines are short schedules."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import pipesched
import pytest
from costmodel import Cluster
from frontends.errors import NoPlanError
from frontends.jax.testing import small_gpt
from frontends.layers.layers import LayeredStep, layer
from frontends.plan.schedule import most_held, names_that_run
from frontends.price.bounds import Bounds
from frontends.price.device_pool import DevicePool
from frontends.search.assemble import Joiner
from frontends.search.plan_options import PlanOptions
from frontends.search.planner import OTHERS, Planner
from frontends.search.room import Room

CLUSTERS = [
    Cluster.preset("two-hosts").resized(n_hosts=hosts, devices_per_host=devices)
    for hosts, devices in ((1, 2), (2, 2))
]
BATCH = 8
NUMBERS = [2, 4, 8]
COSTS = pipesched.Costs(1.0, input_gradient_s=1.0, weight_gradient_s=0.9)


@cache
def layered(microbatches: int) -> LayeredStep:
    return layer(small_gpt(4, 16, 32).trace(microbatches).step)


def room(cluster: Cluster, memory_bytes: int, few: int = 2) -> Room:
    return Room(
        *(Bounds(layered(n), DevicePool(cluster, memory_bytes)) for n in (1, few)),
        lambda n: BATCH // n,
    )


@pytest.mark.parametrize(
    ("cluster", "few"),
    [
        # by day, one number for each cluster
        pytest.param(c, few, marks=[pytest.mark.nightly] if few != k + 1 else [])
        for k, c in enumerate(CLUSTERS)
        for few in (1, 2)
    ],
    ids=lambda of: of if isinstance(of, int) else of.n_devices,
)
def test_baselines_that_fit_have_room(cluster: Cluster, few: int) -> None:
    state = Bounds(layered(2), DevicePool(cluster, 0)).state_bytes()
    unfit = []
    for share in (1.1, 1.5, 2.0, 3.0, 6.0):
        memory_bytes = int(share * state / cluster.n_devices)
        of = room(cluster, memory_bytes, few)
        fits = [n for n in NUMBERS if of.fits(n)]
        usual = [n for n in NUMBERS if of.fits_usual(n)]
        assert fits == NUMBERS[len(NUMBERS) - len(fits) :]
        assert {*usual} <= {*fits}
        for n in {*NUMBERS} - {*usual}:
            planner = Planner(layered(n), cluster, PlanOptions(memory_bytes=memory_bytes))
            with pytest.raises(NoPlanError):
                planner.usual()
            unfit.append(n in fits)
    assert False in unfit


def test_a_searched_plan_that_fits_has_room() -> None:
    cluster = CLUSTERS[0]
    parts = Bounds(layered(4), DevicePool(cluster, 0)).held_parts(0, layered(4).n_layers - 1)
    memory_bytes = math.ceil(1.001 * sum(parts) / cluster.n_devices)
    assert [n for n in NUMBERS if room(cluster, memory_bytes).fits(n)] == [4, 8]
    planner = Planner(layered(2), cluster, PlanOptions(memory_bytes=memory_bytes))
    with pytest.raises(NoPlanError):
        planner.best()


def test_bytes_are_linear_in_the_size_of_a_microbatch() -> None:
    """So that two numbers tell those of all others, but for the examples of the batch itself."""
    (cluster,) = CLUSTERS[:1]
    last = layered(2).n_layers - 1
    always, _ = Bounds(layered(2), DevicePool(cluster, 0)).held_parts(0, last)
    for n in (2, 4, 8):
        _, saved = Bounds(layered(n), DevicePool(cluster, 0)).held_parts(0, last)
        limit = (always + saved) / cluster.n_devices
        assert room(cluster, math.ceil(1.001 * limit)).fits(n)
        assert not room(cluster, math.floor(0.999 * limit)).fits(n)


def test_the_whole_batch_may_have_other_layers() -> None:
    (cluster,) = CLUSTERS[:1]
    memory_bytes = 1 << 30
    fewer = layer(small_gpt(4, 16, 32).trace(1).step, 2)
    assert fewer.n_layers != layered(2).n_layers
    of = Room(
        Bounds(fewer, DevicePool(cluster, memory_bytes)),
        Bounds(layered(2), DevicePool(cluster, memory_bytes)),
        lambda n: BATCH // n,
    )
    assert of.fits(8)
    assert of.fits_usual(8)
    swapped = Room(of.few, of.whole, lambda n: BATCH // n)
    assert swapped.fits(8)
    assert swapped.fits_usual(8)


@pytest.mark.parametrize("n_stages", [2, 3, 6])
@pytest.mark.parametrize("name", sorted({*names_that_run(), *sum(OTHERS, ())}))
def test_short_schedules_hold_what_long_ones_hold(name: str, n_stages: int) -> None:
    for n in (31, 48, 64):
        joiner = Joiner(_Numbered(n), ())  # type: ignore[arg-type]
        options = pipesched.schedule_entry(name).options
        capped = {"activation_cap": n_stages} if "activation_cap" in options else {}
        try:
            order = pipesched.make(name, n_stages, n, **capped)
        except pipesched.PipeschedError:
            continue
        assert joiner.held_by(name, n_stages) == most_held(order)
        orders = joiner.short_orders(name, n_stages)
        ends = [pipesched.simulate(short, COSTS).makespan_s for short in orders]
        whole = pipesched.simulate(joiner.order(name, n_stages), COSTS).makespan_s
        assert joiner.longer(orders, ends) == pytest.approx(whole, rel=0.01)


def test_a_schedule_of_a_user_is_asked_for_the_numbers_that_there_are() -> None:
    def not_in_dozens(n_stages: int, n_microbatches: int) -> pipesched.Schedule:
        if n_microbatches == 12:  # the fewest that would be asked for in place of 60
            raise pipesched.ArgumentError(f"it has no dozens; got {n_microbatches}")
        made = pipesched.make("1f1b", n_stages, n_microbatches)
        return replace(made, name="not-in-dozens")

    pipesched.register_schedule("not-in-dozens", not_in_dozens)
    joiner = Joiner(_Numbered(60), ())  # type: ignore[arg-type]
    assert [o.n_microbatches for o in joiner.short_orders("1f1b", 4)] == [12, 20]
    assert joiner.held_by("not-in-dozens", 4) == joiner.held_by("1f1b", 4)


class _Numbered:
    """What a joiner asks a pricer of a step in some microbatches before it has stages."""

    def __init__(self, microbatches: int) -> None:
        self.microbatches = microbatches
        self.layered, self.cluster = layered(2), CLUSTERS[0]
