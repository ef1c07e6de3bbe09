"""From a step and a cluster to a plan: Alpa's two levels, each by its own package (Alpa Alg. 1).

stagecut slices layers and devices into stages. It asks for the prices of a run of layers on a
submesh: those of autoshard's shardings over the logical meshes of that submesh (see `pricing`). The
best slicings are simulated with the bytes that cross their cuts; the stages of the best ones are
sharded on their own, joined by transfers that crossmesh plans, ordered by each pipesched schedule
that runs, and simulated again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import autoshard
import stagecut
from costmodel import Cluster

from frontends.candidates import BASELINES, EQUAL_LAYERS, SEARCH, Candidates, Progress
from frontends.errors import NoPlanError, PlanError
from frontends.layers import LayeredStep
from frontends.pins import Pin, pins_of
from frontends.plan import (
    Alternative,
    Plan,
)
from frontends.pricing import Level, Pricer
from frontends.schedule import PLAIN, RUN

STRATEGIES = ("auto", SEARCH, *BASELINES, EQUAL_LAYERS)
"""What `make_plan` may be asked for."""


def make_plan(
    layered: LayeredStep,
    cluster: Cluster,
    *,
    undivided: LayeredStep | None = None,
    keep_microbatches: bool = False,
    strategy: str = "auto",
    schedule: str | None = None,
    memory_bytes: int | None = None,
    level: Level = "O2",
    memory_rule: autoshard.MemoryRule = "limit",
    pin: Mapping[str, Pin] | None = None,
    unsharded: Sequence[str] = (),
    progress: Progress | None = None,
) -> Plan:
    """Search stages, submeshes and shardings for a step; needs no devices.

    The obvious plans are priced too, and taken if one of them is faster (design, principle 2).

    Args:
        layered: The step in layers.
        cluster: What it is to run on.
        undivided: The same step with one microbatch: without a pipeline, cutting the batch only
            costs time, so that the obvious plans are tried both ways.
        keep_microbatches: Whether a plan for `undivided` is priced only, and not taken.
        strategy: `auto` takes the fastest plan; another name of `STRATEGIES` takes that one.
        schedule: One of `schedule.RUN`; by default the fastest of `PLAIN` that fits the memory.
        memory_bytes: Limit of one device; the cluster's by default.
        level: `O2` ties repeated layers and prices stages layer by layer; `O3` searches each stage
            that it looks at on its own (Rhino's names).
        memory_rule: Where state sharded by a simple rule does not fit: `limit` searches under the
            limit, `largest` shards the fewest of the largest parameters (Rhino 4.4).
        pin: What is held as you want it: by the name of a value, or the path of arguments that it
            begins with, the spec that it has, or the number of the stage that it is on.
        unsharded: Kinds of operators without a rule, for the report.
        progress: Told how the search goes.

    Raises:
        NoPlanError: Nothing fits the memory.
        PlanError: There is no such schedule, strategy, level or rule, or nothing has the name of a
            pin.
    """
    if schedule is not None and schedule not in RUN:
        raise PlanError(f"a schedule is one of {', '.join(RUN)}; got {schedule!r}")
    if strategy not in STRATEGIES:
        raise PlanError(f"a strategy is one of {', '.join(STRATEGIES)}; got {strategy!r}")
    memory = cluster.device.memory_bytes if memory_bytes is None else memory_bytes
    steps = [step for step in (layered, undivided) if step is not None]
    schedules = PLAIN if schedule is None else (schedule,)
    candidates: list[Candidates] = []
    for step in steps:
        pins = pins_of(step, pin or {}, cluster.n_devices)
        pricer = Pricer(
            step, cluster, memory, level=level, memory_rule=memory_rule, pins=pins.specs
        )
        candidates.append(Candidates(pricer, schedules, unsharded, pins.stages))
    searched, *others = candidates
    state_bytes = searched.pricer.bounds.state_bytes()
    if state_bytes > memory * cluster.n_devices:
        raise NoPlanError(
            f"parameters, optimizer state and sums of gradients must fit the devices; they take "
            f"{state_bytes} bytes, "
            f"and the {cluster.n_devices} devices of cluster {cluster.name!r} have {memory} each: "
            "raise the memory or take more devices"
        )
    tries = [(SEARCH, searched)]
    tries += [(name, each) for name in BASELINES for each in (searched, *others)]
    tries.append((EQUAL_LAYERS, searched))
    if strategy != "auto":
        tries = [(name, each) for name, each in tries if name == strategy]
    found: dict[str, Plan | str] = {}
    misfit = ""
    for done, (name, each) in enumerate(tries):
        label = name if each is searched else f"{name}, 1 microbatch"
        try:
            found[label] = each.make(name, progress)
        except (autoshard.AutoshardError, stagecut.StagecutError) as error:
            found[label] = str(error)
            if isinstance(error, autoshard.PinError):
                misfit = f"{error}; "
        if progress is not None and name != SEARCH:
            progress("pricing others", done + 1, len(tries))
    chosen = _choose(found, layered.step.microbatches if keep_microbatches else None)
    if chosen is None:
        where, less = f"cluster {cluster.name!r}", ""
        if pin:
            where, less = f"{where} with pins of {', '.join(pin)}", ", or pin less"
        if strategy != "auto":
            reason = next(str(why) for why in found.values())
            raise NoPlanError(f"no {strategy} plan runs on {where}: {reason}{less}")
        raise NoPlanError(
            f"no plan fits {memory} bytes a device of {where}: {misfit}raise the memory, cut the "
            f"batch into more microbatches, or take more devices{less}"
        )
    return chosen


def _choose(found: Mapping[str, Plan | str], microbatches: int | None) -> Plan | None:
    """The fastest plan, with the others and why they were not taken."""
    plans = {name: plan for name, plan in found.items() if isinstance(plan, Plan)}
    allowed = {n: p for n, p in plans.items() if microbatches in (None, p.microbatches)}
    if not allowed:
        return None
    taken = min(allowed, key=lambda name: allowed[name].step_s)
    best = allowed[taken]
    alternatives = []
    for name, other in found.items():
        if name == taken:
            continue
        if not isinstance(other, Plan):
            alternatives.append(Alternative(name, None, None, other))
            continue
        ratio = other.step_s / best.step_s if best.step_s else math.inf
        if name not in allowed:
            reason = f"{microbatches} microbatches were asked for"
        else:
            reason = f"{ratio:.2f} times as long a step" if ratio > 1.005 else "no faster"
        alternatives.append(Alternative(name, other.step_s, other.memory_bytes, reason))
    return replace(best, strategy=taken, alternatives=tuple(alternatives))
