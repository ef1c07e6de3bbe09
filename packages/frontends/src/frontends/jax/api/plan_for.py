"""Devices and plans: `init`, `default_cluster`, `plan_for`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

import jax
from costmodel import Cluster

from frontends.answer.plan import Plan
from frontends.base import no_gc
from frontends.base.batch_axes import BatchAxes, copied
from frontends.base.boundary import doing
from frontends.base.complexes import with_complex
from frontends.base.present import present
from frontends.errors import (
    DeviceError,
    NoPlanError,
    PlanError,
)
from frontends.jax.base import _compat
from frontends.jax.base.adapters import adapter_of
from frontends.jax.base.arguments import argnums_of
from frontends.jax.base.followed_state import FollowedState
from frontends.jax.base.signature import Signature
from frontends.jax.rules.rules import shares_of_whole
from frontends.jax.rules.xla import XLA
from frontends.jax.run import processes
from frontends.jax.trace.trace import Capture, Trace
from frontends.search.candidates import BASELINES
from frontends.search.plan_options import (
    PlanKeywords,
    PlanOptions,
    check_where,
    takes_plan_options,
)
from frontends.search.plan_step import Planned, plan_traces
from frontends.search.two_passes import in_two_passes


def init(n_devices: int, *, start_s: float = 300.0) -> None:
    """Give JAX that many virtual CPU devices. Call it before anything else uses JAX.

    Under `mpiexec` or `srun`, the processes of the job share the devices and run each step
    together.

    This function also sets what XLA needs to run several programs with collectives on few cores: a
    thread for each device of each program (`NPROC`), and longer timeouts before it aborts.

    Args:
        n_devices: The number of devices of all processes together.
        start_s: How long to wait for processes of the job that do not start.

    Raises:
        DeviceError: JAX has already started with fewer devices, or `n_devices` is not positive, or
            another process does not start.
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
    """JAX's devices as one host: what `parallelize` plans for by default."""
    return Cluster.preset("virtual-cpu").resized(devices_per_host=jax.device_count())


@takes_plan_options
@no_gc.paused()
def plan_for(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    cluster: Cluster,
    *,
    batch_argnums: int | Sequence[int] = -1,
    batch_axes: BatchAxes = 0,
    hold: Plan | None = None,
    **options: Unpack[PlanKeywords],
) -> Planned[Trace]:
    """Plan a training step without running it; neither devices nor weights are needed.

    Args:
        function: The step, written for one device; it may be wrapped in `nnx.jit` or
            `eqx.filter_jit`.
        arguments: Its arguments, or `jax.ShapeDtypeStruct` in their place.
        cluster: What to plan for.
        batch_argnums: Which arguments hold the batch. By default the last one; `()` if there is no
            batch. Single numbers and keys in the batch are shared by all examples. All other
            arguments are state that the step updates, or constants.
        batch_axes: Which dim of each leaf of the batch holds the examples, as `in_axes` of
            `jax.vmap`: a number for all leaves, or such numbers in containers as in the batch, in
            which items that are left out have 0; None for what all examples share. If several
            arguments hold the batch, a sequence with an item for each.
        hold: The plan of a step that shares its state with this one, such as the same step with
            another shape of batch. All state then stays on the same devices in the same layouts.
            Stages and schedule are those of that plan, and so is the number of microbatches if the
            batch can be cut by it.
        options: How to plan: the fields of `frontends.PlanOptions`.

    Raises:
        TypeError: There is no such option.
        BatchError: The batch cannot be cut as asked for, or an option about it is invalid.
        UnsupportedStepError: The step cannot be planned; the message says why.
        AccumulationError: The step cannot run in as many microbatches as were asked for.
        NoPlanError: No plan fits the memory.
        HeldLayoutError: With `hold`, if state cannot stay where it is.
        PlanError: `plan` was made for another step, or an option has a wrong type or value.
    """
    checked = PlanOptions.of(options, plan_for)
    check_where(cluster, hold)
    adapter = adapter_of(function)
    if adapter is not None:
        call = Signature(adapter.function, (), (), adapter).call(arguments, {})
        function = call.function(adapter.function, {})
        arguments = tuple(call.arrays.values())
    return plan_at(
        function,
        arguments,
        cluster,
        checked,
        batch_argnums=argnums_of(batch_argnums),
        batch_axes=copied(batch_axes),
        hold=hold,
    )


def plan_at(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    cluster: Cluster,
    options: PlanOptions,
    *,
    batch_argnums: Sequence[int],
    batch_axes: BatchAxes = 0,
    hold: Plan | None = None,
    followed: FollowedState | None = None,
) -> Planned[Trace]:
    """Does what `plan_for` does, with the options as one value.

    With `followed`, the plan's state is named as that step names it.
    """
    capture = Capture(
        function,
        arguments,
        batch_argnums,
        batch_axes,
        None if followed is None else followed.named,
        statistics=options.has_statistics,
    )
    planned = _plan_capture(capture, cluster, options, hold)
    if planned.trace.first_pass is None:
        return planned
    return in_two_passes(
        planned,
        lambda plan: _first_pass(planned.trace, plan, cluster, options),
        lambda how: _plan_capture(capture, cluster, how, None),
        options,
        hold,
    )


def _first_pass(trace: Trace, plan: Plan, cluster: Cluster, options: PlanOptions) -> Planned[Trace]:
    """Plan the first pass of a step, with the stages of its plan, where that keeps its state."""
    early = present(trace.first_pass, "the trace has two passes")
    of_name = {a.name: a for a in trace.arguments}
    state, batch = trace.first_pass_arguments

    def function(state: Sequence[Any], batch: Sequence[Any]) -> Sequence[Any]:
        values = dict(zip(names, (*state, *batch), strict=True))
        return early.function(*(values[name] for name in early.reads))

    names = (*state, *batch)
    shapes = {
        name: jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type)
        for name, a in of_name.items()
    }
    capture = Capture(
        function,
        (tuple(shapes[n] for n in state), tuple(shapes[n] for n in batch)),
        (1,),
        tuple(0 if of_name[n].is_batch else None for n in batch),
        lambda arguments, leaves: tuple(
            replace(leaf, name=name) for leaf, name in zip(leaves, names, strict=True)
        ),
    )
    return _plan_capture(capture, cluster, options.of_followers(), plan, sends_state=True)


def _plan_capture(
    capture: Capture,
    cluster: Cluster,
    options: PlanOptions,
    hold: Plan | None,
    *,
    sends_state: bool = False,
) -> Planned[Trace]:
    given = options.plan or hold
    in_one = cluster.n_devices == 1 or options.stages == 1 or options.strategy in BASELINES
    if given is not None:
        in_one = len(given.stages) == 1
    apart = None if in_one else capture.unstacked()

    def plan(capture: Capture, options: PlanOptions) -> Planned[Trace]:
        with doing("planning"):
            return plan_traces(
                capture.at,
                lambda trace: shares_of_whole(trace.equations.values()),
                capture.batch_sizes,
                with_complex(cluster, capture.dtypes),
                options,
                engine=XLA,
                hold=hold,
                sends_state=sends_state,
            )

    if apart is None:
        return plan(capture, options)
    begin = time.monotonic()
    planned = plan(apart, options)
    if len(planned.plan.stages) > 1:
        return planned
    return _with_stacks(planned, partial(plan, capture), options, time.monotonic() - begin)


def _with_stacks(
    apart: Planned[Trace],
    plan: Callable[[PlanOptions], Planned[Trace]],
    options: PlanOptions,
    searched_s: float,
) -> Planned[Trace]:
    """The plan of one stage for the step as it is: there, stacked layers stay as they are.

    Args:
        apart: A plan of one stage for the step with stacked layers apart.
        plan: Plans the step as it is.
        options: How to plan.
        searched_s: How long the search took so far, in seconds.
    """
    again = replace(options, stages=1)
    if options.search_deadline_s is not None:  # it goes on until it has a plan
        again = replace(again, search_deadline_s=max(0.1, options.search_deadline_s - searched_s))
    try:
        planned = plan(again)
    except (NoPlanError, PlanError):  # none fits, or a pin names one of the pieces
        return apart
    return replace(
        planned,
        plan=replace(
            planned.plan,
            options=apart.plan.options,
            alternatives=apart.plan.alternatives,
            lower_bound_s=min(planned.plan.lower_bound_s, apart.plan.lower_bound_s),
        ),
    )
