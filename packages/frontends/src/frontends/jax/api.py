"""Devices and plans: `init`, `default_cluster`, `plan_for`."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from autoshard import MemoryRule
from costmodel import Cluster

from frontends import collector
from frontends.candidates import EQUAL_LAYERS
from frontends.errors import (
    AccumulationError,
    DeviceError,
    NoPlanError,
    PlanError,
)
from frontends.jax import _compat, processes
from frontends.jax.arguments import describe
from frontends.jax.compile import Progress
from frontends.jax.given import argnums_of, check_given
from frontends.jax.rules import shares_of_whole
from frontends.jax.trace import Capture, Trace
from frontends.layers import LayeredStep, layer, layer_as
from frontends.pins import Pin
from frontends.plan import Alternative, Plan
from frontends.planner import make_plan
from frontends.pricing import Level

_MICROBATCHES = 8
"""How many are tried first when the user does not say how many."""

_GAIN = 0.99
"""Of a step's time, below which twice as many microbatches are worth a search more [chosen]."""


def init(n_devices: int, *, start_s: float = 300.0) -> None:
    """Give JAX that many virtual CPU devices. Call it before anything else uses JAX.

    Under `mpiexec` or `srun` the processes of the job share them, and run each step together.

    Also sets what XLA needs to run several programs with collectives on few cores: a thread for
    each device of each program (`NPROC`), and more patience before it aborts.

    Args:
        n_devices: Of all processes together.
        start_s: How long to wait for processes of the job that do not start.

    Raises:
        DeviceError: JAX has started with fewer devices, or `n_devices` is not positive, or another
            process does not start.
    """
    if n_devices < 1:
        raise DeviceError(f"init needs at least one device; got n_devices={n_devices}")
    if _compat.is_initialized():
        if jax.device_count() < n_devices:
            raise DeviceError(
                f"JAX has already started, with {jax.device_count()} devices, and cannot have "
                f"{n_devices} any more: call frontends.jax.init({n_devices}) before any other use "
                "of JAX in this process"
            )
        return
    n_devices = max(n_devices, _compat.n_cpu_devices())  # an earlier call may have asked for more
    os.environ.setdefault("NPROC", str(max(64, 8 * n_devices)))
    flags = os.environ.get("XLA_FLAGS", "")
    for flag in (
        "--xla_cpu_collective_call_warn_stuck_timeout_seconds=600",
        "--xla_cpu_collective_call_terminate_timeout_seconds=3600",
    ):
        if flag.split("=")[0] not in flags:
            flags = f"{flags} {flag}".strip()
    os.environ["XLA_FLAGS"] = flags
    jax.config.update("jax_num_cpu_devices", processes.join(n_devices, start_s))
    jax.config.update("jax_platforms", "cpu")


def default_cluster() -> Cluster:
    """The devices of this process as one host: what `parallelize` plans for if not told more."""
    return Cluster.preset("virtual-cpu").resized(devices_per_host=jax.device_count())


@dataclass(frozen=True)
class Planned:
    """A traced step and its plan."""

    trace: Trace
    layered: LayeredStep
    plan: Plan


@collector.paused()
def plan_for(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    cluster: Cluster,
    *,
    microbatches: int | None = None,
    batch_argnums: int | Sequence[int] = -1,
    strategy: str = "auto",
    schedule: str | None = None,
    memory_bytes: int | None = None,
    level: Level = "O2",
    memory_rule: MemoryRule = "limit",
    pin: Mapping[str, Pin] | None = None,
    n_layers: int | None = None,
    plan: Plan | None = None,
    progress: Progress | None = None,
) -> Planned:
    """Plan a training step without running it; neither devices nor weights are needed.

    Args:
        function: The step of one device.
        arguments: Its arguments, or `jax.ShapeDtypeStruct` in their place.
        cluster: What to plan for.
        microbatches: Parts that the batch is cut into. By default powers of two that divide it are
            tried: 8, then twice as many as long as a pipeline gains from it or nothing fits; and 1
            if a plan without a pipeline is faster, or if the step is not a sum over its examples
            (with a warning).
        batch_argnums: Which arguments hold the batch, examples in the leading dim; the last by
            default. All others are state that the step updates, or constants.
        strategy: `auto` takes the fastest plan. `search`, `data_parallel`, `zero2`, `zero`,
            `megatron` and `equal_layers` take that one.
        schedule: `1f1b`, `eager-1f1b` or `gpipe`; by default the fastest that fits.
        memory_bytes: Limit of one device; the cluster's by default.
        level: `O2` is fast; `O3` searches every stage that may be taken on its own.
        memory_rule: `limit`, or `largest` (Rhino's); see `frontends.planner.make_plan`.
        pin: By the name of a value, or the path of arguments, its spec or the number of its stage.
        n_layers: How finely the model may be cut into stages; by default at its repeated blocks.
        plan: Use this plan, with its microbatches and layers, instead of searching one.
        progress: Told what is being done, how many of it are done, and of how many.

    Raises:
        BatchError: The batch cannot be cut so, or an option about it means nothing.
        UnsupportedStepError: The step cannot be planned; the message says why.
        AccumulationError: It cannot run in as many microbatches as were asked for.
        NoPlanError: No plan fits the memory.
        PlanError: `plan` was made for another step, or an option is of another kind.
    """
    check_given(cluster, plan, pin, microbatches, memory_bytes, n_layers)
    batch_argnums = argnums_of(batch_argnums)
    keep = microbatches is not None or plan is not None
    if plan is not None:
        microbatches = plan.microbatches
    leaves = describe(function, arguments, batch_argnums)
    sizes = [leaf.shape[0] for leaf in leaves if leaf.is_batch and leaf.shape]
    if microbatches is None:
        microbatches = math.gcd(_MICROBATCHES, *sizes) if sizes else 1

    given = plan
    capture = Capture(function, arguments, batch_argnums)
    steps: dict[int, tuple[Trace, LayeredStep]] = {}

    def traced(microbatches: int) -> tuple[Trace, LayeredStep]:
        if microbatches not in steps:
            found = capture.at(microbatches)
            layered = layer(found.step, n_layers) if given is None else layer_as(found.step, given)
            steps[microbatches] = (found, layered)
        return steps[microbatches]

    def planned(microbatches: int, undivided: bool) -> Plan:
        found, layered = traced(microbatches)
        return make_plan(
            layered,
            cluster,
            undivided=traced(1)[1] if undivided and microbatches > 1 else None,
            strategy=strategy,
            schedule=schedule,
            memory_bytes=memory_bytes,
            level=level,
            memory_rule=memory_rule,
            pin=pin,
            unsharded=tuple(shares_of_whole(found.equations.values())),
            progress=progress,
        )

    try:
        traced(microbatches)
    except AccumulationError as error:
        if keep:
            raise
        warnings.warn(f"planned without microbatches: {error}", stacklevel=2)
        microbatches, keep = 1, True
    if plan is None:
        if keep:
            plan = planned(microbatches, False)
        else:
            plan = _with_microbatches(planned, microbatches, sizes)
    _warn_of_whole(traced(plan.microbatches)[0])
    step = traced(plan.microbatches)[1].step
    if plan.step != step.fingerprint:
        raise PlanError(
            "a plan runs the step that it was made for; this one is for step "
            f"{plan.step}, and the function given is step {step.fingerprint}: "
            "plan again, or give the arguments the shapes of then"
        )
    return Planned(*steps[plan.microbatches], plan)


def _warn_of_whole(trace: Trace) -> None:
    shares = shares_of_whole(trace.equations.values())
    if shares:
        names = ", ".join(f"{name} ({share:.1%})" for name, share in shares.items())
        warnings.warn(
            f"no sharding rule for {names} of the step's FLOP; every device runs these whole",
            stacklevel=3,
        )


def _has_no_room_for_pipelines(plan: Plan) -> bool:
    """Whether equal layers do not fit the memory: smaller microbatches may then do."""
    return any(a.name == EQUAL_LAYERS and a.step_s is None for a in plan.alternatives)


def _with_microbatches(
    planned: Callable[[int, bool], Plan], fewest: int, sizes: Sequence[int]
) -> Plan:
    """The fastest plan over numbers of microbatches, with the others as alternatives.

    More of them make a pipeline's bubble smaller and need less memory; they never help a plan
    without a pipeline, where pipelines fit and are slower.
    """
    found: list[Plan] = []
    n = fewest
    while True:
        more_are_there = bool(sizes) and n > 0 and math.gcd(2 * n, *sizes) == 2 * n
        try:
            found.append(planned(n, not found))
        except NoPlanError:
            if found or not more_are_there:
                if not found:
                    raise
                break
        else:
            is_slower = len(found) > 1 and found[-1].step_s > _GAIN * found[-2].step_s
            is_alone = len(found[-1].stages) == 1 and not _has_no_room_for_pipelines(found[-1])
            if is_slower or is_alone or not more_are_there:
                break
        n *= 2
    best = min(found, key=lambda plan: plan.step_s)
    others = tuple(
        Alternative(
            f"{other.microbatches} microbatches",
            other.step_s,
            max(stage.memory_bytes for stage in other.stages),
            f"{other.step_s / best.step_s:.2f} times as long a step" if best.step_s else "as fast",
        )
        for other in found
        if other is not best
    )
    return replace(best, alternatives=best.alternatives + others)
