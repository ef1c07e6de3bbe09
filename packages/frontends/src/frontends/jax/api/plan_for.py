"""Devices and plans: `init`, `default_cluster`, `plan_for`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from autoshard import MemoryRule
from costmodel import Cluster

from frontends.answer.plan import Plan
from frontends.base import no_gc
from frontends.base.boundary import doing
from frontends.base.complexes import with_complex
from frontends.errors import DeviceError
from frontends.jax.base import _compat
from frontends.jax.base.arguments import describe
from frontends.jax.rules.rules import shares_of_whole
from frontends.jax.run import processes
from frontends.jax.trace.trace import Capture, Trace
from frontends.price.pins import Pin
from frontends.price.pricing import Level
from frontends.search.arguments import argnums_of, check_given
from frontends.search.plan_step import Planned, Progress, plan_traces


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


@no_gc.paused()
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
    hold: Plan | None = None,
    progress: Progress | None = None,
) -> Planned[Trace]:
    """Plan a training step without running it; neither devices nor weights are needed.

    Args:
        function: The step of one device.
        arguments: Its arguments, or `jax.ShapeDtypeStruct` in their place.
        cluster: What to plan for.
        microbatches: Parts that the batch is cut into. By default 8, or twice as many as often as
            the usual plans gain from it or have no room; only numbers that may be fastest are
            searched. And 1 if a plan without a pipeline is faster, or if the step is not a sum over
            its examples (with a warning).
        batch_argnums: Which arguments hold the batch, examples in the leading dim; the last by
            default, and `()` if there is no batch. Single numbers and keys in it are the same for
            all examples. All others are state that the step updates, or constants.
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
        hold: The plan of a step that shares its state with this one, as the same step with another
            shape of batch: all state stays on the same devices in the same layouts, and stages,
            schedule and, if they cut the batch, microbatches are that plan's.
        progress: Told what is being done, how many of it are done, and of how many.

    Raises:
        BatchError: The batch cannot be cut so, or an option about it means nothing.
        UnsupportedStepError: The step cannot be planned; the message says why.
        AccumulationError: It cannot run in as many microbatches as were asked for.
        NoPlanError: No plan fits the memory.
        HeldLayoutError: With `hold`, if state cannot stay where it is.
        PlanError: `plan` was made for another step, or an option is of another kind.
    """
    check_given(cluster, plan, pin, microbatches, memory_bytes, n_layers, hold)
    batch_argnums = argnums_of(batch_argnums)
    leaves = describe(function, arguments, batch_argnums)
    capture = Capture(function, arguments, batch_argnums)
    with doing("planning"):
        return plan_traces(
            capture.at,
            lambda trace: shares_of_whole(trace.equations.values()),
            [leaf.shape[0] for leaf in leaves if leaf.is_batch],
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
