"""Plans PyTorch steps: `default_cluster`, `plan_for`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

import torch
from costmodel import Cluster

from frontends.answer.plan import Plan
from frontends.base import no_gc
from frontends.base.batch_axes import BatchAxes, copied
from frontends.base.boundary import doing
from frontends.base.complexes import with_complex
from frontends.base.host_sizes import with_host_sizes
from frontends.search.plan_options import (
    PlanKeywords,
    PlanOptions,
    check_where,
    takes_plan_options,
)
from frontends.search.plan_step import Planned, plan_traces
from frontends.search.two_passes import in_two_passes
from frontends.torch.rules.eager import EAGER
from frontends.torch.rules.rules import shares_of_whole
from frontends.torch.run.processes import n_processes, processes_of_hosts
from frontends.torch.trace.trace import Capture, Trace


def default_cluster() -> Cluster:
    """Return the cluster to plan for by default: a device for each process, or 8 virtual ones.

    For processes on several hosts, it has hosts as in the preset `two-hosts`, each with as many
    devices as it has processes. If the processes have joined, all of them have to call this.
    """
    n, sizes = n_processes(), processes_of_hosts()
    if n == 1:
        return Cluster.preset("virtual-cpu")
    preset = Cluster.preset("virtual-cpu" if len(sizes) == 1 else "two-hosts")
    return with_host_sizes(preset, sizes)


@takes_plan_options
@no_gc.paused()
def plan_for(
    step: Callable[..., Any],
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Any,
    cluster: Cluster,
    *,
    batch_axes: BatchAxes = 0,
    hold: Plan | None = None,
    **options: Unpack[PlanKeywords],
) -> Planned[Trace]:
    """Plan a training step without running it; neither devices nor weights are needed.

    Args:
        step: A function of model, optimizer and batch that calls `backward()` and the optimizer's
            `step()`.
        model: The module; it may be on the meta device.
        optimizer: An optimizer of the model's parameters.
        batch: A tree of tensors.
        cluster: The cluster to plan for.
        batch_axes: Which dim of each tensor of the batch holds the examples: a number for all, or
            such numbers in containers as in the batch, in which items that are left out have 0;
            None for what all examples share.
        hold: The plan of a step that shares its state with this one: state stays in its layouts.
        options: How to plan: the fields of `frontends.PlanOptions`.

    Raises:
        TypeError: There is no such option.
        BatchError: The batch cannot be divided into the microbatches asked for.
        UnsupportedStepError: The step cannot be planned; the message says why.
        AccumulationError: It cannot run in the number of microbatches asked for.
        NoPlanError: No plan fits the memory.
        PlanError: `plan` was made for another step, or an option has another type.
        HeldLayoutError: With `hold`, state cannot stay in its layouts.
    """
    checked = PlanOptions.of(options, plan_for)
    check_where(cluster, hold)
    checked.tell("capturing", 0, 1)
    axes, statistics = copied(batch_axes), checked.has_statistics
    capture = Capture(step, model, optimizer, batch, batch_axes=axes, statistics=statistics)
    checked.tell("capturing", 1, 1)
    return plan_capture(capture, cluster, checked, hold=hold)


def plan_capture(
    capture: Capture, cluster: Cluster, options: PlanOptions, *, hold: Plan | None = None
) -> Planned[Trace]:
    """Plan a captured step; the arguments are those of `plan_for`."""
    planned = _planned(capture, cluster, options, hold)
    if planned.trace.first_pass is None:
        return planned
    first = capture.first_pass(planned.trace)
    return in_two_passes(
        planned,
        lambda plan: _planned(first, cluster, options.of_followers(), plan, sends_state=True),
        lambda how: _planned(capture, cluster, how, None),
        options,
        hold,
    )


def _planned(
    capture: Capture,
    cluster: Cluster,
    options: PlanOptions,
    hold: Plan | None,
    *,
    sends_state: bool = False,
) -> Planned[Trace]:
    with doing("planning"):
        return plan_traces(
            capture.at,
            lambda trace: shares_of_whole(trace.step.graph, trace.calls),
            capture.batch_sizes,
            with_complex(cluster, capture.dtypes),
            options,
            engine=EAGER,
            hold=hold,
            sends_state=sends_state,
        )
