"""Plan PyTorch steps: `default_cluster`, `plan_for`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from autoshard import MemoryRule
from costmodel import Cluster

from frontends.answer.plan import Plan
from frontends.base import no_gc
from frontends.base.boundary import doing
from frontends.base.complexes import with_complex
from frontends.price.pins import Pin
from frontends.price.pricing import Level
from frontends.search.arguments import check_given
from frontends.search.plan_step import Planned, Progress, plan_traces
from frontends.torch.rules.rules import shares_of_whole
from frontends.torch.run.processes import n_hosts, n_processes
from frontends.torch.trace.trace import Capture, Trace


def default_cluster() -> Cluster:
    """What is planned for if nothing is said: a device for each process, or 8 virtual ones.

    Processes on several hosts are as many hosts of the preset `two-hosts`. Where they have joined,
    all of them call this.
    """
    n, hosts = n_processes(), n_hosts()
    if n == 1:
        return Cluster.preset("virtual-cpu")
    preset = Cluster.preset("virtual-cpu" if hosts == 1 else "two-hosts")
    return preset.resized(n_hosts=hosts, devices_per_host=n // hosts)


@no_gc.paused()
def plan_for(
    step: Callable[..., Any],
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Any,
    cluster: Cluster,
    *,
    microbatches: int | None = None,
    strategy: str = "auto",
    schedule: str | None = None,
    memory_bytes: int | None = None,
    level: Level = "O2",
    memory_rule: MemoryRule = "limit",
    pin: Mapping[str, Pin] | None = None,
    n_layers: int | None = None,
    plan: Plan | None = None,
    hold: Plan | None = None,
    progress: Progress | None = None,
) -> tuple[Planned[Trace], Capture]:
    """Plan a training step without running it; neither devices nor weights are needed.

    Args:
        step: From model, optimizer and batch to anything; it calls `backward()` and the
            optimizer's `step()`.
        model: Any module; it may be on the meta device.
        optimizer: Of the model's parameters.
        batch: A tree of tensors, examples in their leading dim.
        cluster: What to plan for.
        microbatches: Parts that the batch is cut into. By default powers of two that divide it are
            tried, and 1 if the step is not a sum over its examples (with a warning).
        strategy: `auto` takes the fastest plan. `search`, `data_parallel`, `zero2`, `zero`,
            `megatron` and `equal_layers` take that one.
        schedule: One of `frontends.plan.schedule.RUN`, as `zb-h1`; by default the fastest of
            `1f1b`, `eager-1f1b` and `gpipe` that fits. A plan of one stage has nothing to order:
            `1f1b`.
        memory_bytes: Limit of one device; the cluster's by default.
        level: `O2` is fast; `O3` searches every stage that may be taken on its own.
        memory_rule: `limit`, or `largest` (Rhino's); see `frontends.search.planner.Planner`.
        pin: By the name of a value, or the path of arguments, its spec or the number of its stage.
        n_layers: How finely the model may be cut into stages; by default at its repeated blocks.
        plan: Use this plan, with its microbatches and layers, instead of searching one.
        hold: The plan of a step that shares its state with this one: state stays where that keeps
            it.
        progress: Told what is being done, how many of it are done, and of how many.

    Returns:
        The plan, and the captured step that it was made of.

    Raises:
        BatchError: The batch cannot be cut so.
        UnsupportedStepError: The step cannot be planned; the message says why.
        AccumulationError: It cannot run in as many microbatches as were asked for.
        NoPlanError: No plan fits the memory.
        PlanError: `plan` was made for another step, or an option is of another kind.
        HeldLayoutError: With `hold`, if state cannot stay where it is.
    """
    check_given(cluster, plan, pin, microbatches, memory_bytes, n_layers, hold)
    if progress is not None:
        progress("capturing", 0, 1)
    capture = Capture(step, model, optimizer, batch)
    if progress is not None:
        progress("capturing", 1, 1)
    planned = plan_capture(
        capture,
        cluster,
        microbatches=microbatches,
        strategy=strategy,
        schedule=schedule,
        memory_bytes=memory_bytes,
        level=level,
        memory_rule=memory_rule,
        pin=pin,
        n_layers=n_layers,
        plan=plan,
        hold=hold,
        progress=progress,
    )
    return planned, capture


def plan_capture(
    capture: Capture,
    cluster: Cluster,
    *,
    microbatches: int | None = None,
    strategy: str = "auto",
    schedule: str | None = None,
    memory_bytes: int | None = None,
    level: Level = "O2",
    memory_rule: MemoryRule = "limit",
    pin: Mapping[str, Pin] | None = None,
    n_layers: int | None = None,
    plan: Plan | None = None,
    hold: Plan | None = None,
    progress: Progress | None = None,
) -> Planned[Trace]:
    """Plan a step that is captured; the options are those of `plan_for`."""
    check_given(cluster, plan, pin, microbatches, memory_bytes, n_layers, hold)
    with doing("planning"):
        return plan_traces(
            capture.at,
            lambda trace: shares_of_whole(trace.step.graph, trace.calls),
            [argument.shape[0] for argument in capture.captured.arguments if argument.is_batch],
            with_complex(cluster, capture.dtypes),
            microbatches=microbatches,
            strategy=strategy,
            schedule=schedule,
            memory_bytes=memory_bytes,
            level=level,
            memory_rule=memory_rule,
            pin=pin,
            n_layers=n_layers,
            plan=plan,
            hold=hold,
            progress=progress,
        )
