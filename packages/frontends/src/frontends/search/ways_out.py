"""Find what makes a step run that has no plan, by searches with one thing changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import cast

from costmodel import Cluster, CostmodelError

from frontends.answer.plan import Plan
from frontends.errors import FrontendsError, NoPlanError, PlanError, WayOut
from frontends.plan.plan_fields import Remat
from frontends.search.deadline import Deadline
from frontends.search.plan_options import PlanKeywords, PlanOptions
from frontends.step.step import TrainingStep

_ALL_S, _EACH_S = 60.0, 15.0
"""Seconds for all changes together, and the most for one of them [chosen]."""

_SMALLEST: Remat = "all"
"""What is recomputed in the first search with a change, as it needs the least memory."""

_TIMES = (2, 4, 8)
"""Factors of the number of hosts that are tried, up to the first that fits [chosen]."""

_LOOSER = (
    *("remat", "zero", "strategy", "microbatches", "schedule", "chunks", "stages"),
    *("dp", "tp", "mesh", "pin", "memory_bytes"),
)
"""Options that may keep a plan from fitting, in the order in which each is left out alone."""

Change = Callable[[TrainingStep], TrainingStep]
"""Changes a step that is planned, and not run."""

Search = Callable[[Cluster, PlanOptions, Change], Plan]
"""Searches a plan of the step, which is changed first."""


def unchanged(step: TrainingStep) -> TrainingStep:
    """The step as it is."""
    return step


def with_ways_out(
    error: NoPlanError, search: Search, cluster: Cluster, options: PlanOptions
) -> NoPlanError:
    """The error with the changes that make the step run, the fastest first.

    Args:
        error: Why there is no plan.
        search: Searches a plan on a cluster, with options, of the step with a change.
        cluster: The cluster that the step does not fit.
        options: What the user asked for.
    """
    end_s = time.monotonic() + _ALL_S
    found: list[WayOut] = []

    def fits(change: str, where: Cluster, how: PlanOptions, of_step: Change = unchanged) -> bool:
        """Whether there is a plan with a change; it is added to what was found."""
        options.tell(f"looking for what runs: {change}", 0, 1)
        each_end_s = min(
            end_s, time.monotonic() + min(_EACH_S, options.search_deadline_s or _EACH_S)
        )
        best: Plan | None = None
        for remat in (_SMALLEST, None) if how.remat is None else (how.remat,):
            left_s = each_end_s - time.monotonic()
            if left_s > 0:
                asked = replace(how, remat=remat, search_deadline_s=left_s, on_plan=None)
                deadline = Deadline(asked, must_find=False)
                with suppress(FrontendsError, CostmodelError):  # or it needs the cluster's size
                    plan = deadline.search(partial(search, where, deadline.options, of_step))
                    best = plan if best is None or plan.step_s < best.step_s else best
        if best is not None:
            found.append(WayOut(change, best.step_s, best.memory_bytes))
        return best is not None

    names = _looser_names(options, cluster)
    for name in names:
        with suppress(PlanError):  # another option needs this one
            fits(f"without {name}=", cluster, _without(options, [name]))
    free, nothing = _without(options, names), f"without {', '.join(f'{name}=' for name in names)}"
    if not found and len(names) > 1:
        fits(nothing, cluster, free)
    for times in _TIMES:
        larger = _larger(cluster, times)
        if larger is None:
            break
        what = f"{larger.n_devices} devices on {larger.n_hosts} hosts"
        if fits(what, larger, options) or (
            names and not found and fits(f"{what}, {nothing}", larger, free)
        ):
            break
    fits("optimizer state in bfloat16", cluster, options, with_half_state)
    return NoPlanError(str(error), sorted(found, key=lambda way: way.step_s))


def _looser_names(options: PlanOptions, cluster: Cluster) -> list[str]:
    """The options that the user set and that may keep a plan from running."""
    names = [name for name in _LOOSER if name in options.keywords()]
    most = max(host.device.memory_bytes for host in cluster.hosts)
    if (options.memory_bytes or 0) >= most and "memory_bytes" in names:
        names.remove("memory_bytes")  # the devices themselves have no more
    return names


def _without(options: PlanOptions, names: Collection[str]) -> PlanOptions:
    """The options without some of them; `PlanError` if one that is left needs one of these."""
    kept = {name: value for name, value in options.keywords().items() if name not in names}
    return PlanOptions(**cast("PlanKeywords", kept))


def _larger(cluster: Cluster, times: int) -> Cluster | None:
    """The cluster with some times as many hosts; None if its hosts differ."""
    try:
        return cluster.resized(n_hosts=times * cluster.n_hosts)
    except CostmodelError:
        return None


def with_half_state(step: TrainingStep) -> TrainingStep:
    """The step with all float32 state of its optimizer in bfloat16.

    Raises:
        NoPlanError: It has no such state.
    """
    graph = step.graph
    state = {
        name
        for name in graph.inputs
        if graph.value(name).role == "optimizer_state" and graph.value(name).dtype == "float32"
    }
    if not state:
        raise NoPlanError("the optimizer keeps no state in float32")
    state |= {output.value for output in graph.outputs if output.alias in state}
    values = tuple(
        replace(value, dtype="bfloat16") if value.name in state else value for value in graph.values
    )
    return replace(step, graph=replace(graph, values=values))
