"""What a JAX user calls: `init`, `parallelize`, `plan_for`."""

from __future__ import annotations

import functools
import inspect
import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import jax
from autoshard import MemoryRule
from costmodel import Cluster

from frontends.errors import (
    AccumulationError,
    BatchError,
    DeviceError,
    NoPlanError,
    PlanError,
)
from frontends.jax import _compat, processes
from frontends.jax.arguments import describe
from frontends.jax.compile import Progress
from frontends.jax.rules import has_rule
from frontends.jax.runtime import Runtime
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


def init(n_devices: int) -> None:
    """Give JAX that many virtual CPU devices. Call it before anything else uses JAX.

    Under `mpiexec` or `srun` the processes of the job share them, and run each step together.

    Also sets what XLA needs to run several programs with collectives on few cores: a thread for
    each device of each program (`NPROC`), and more patience before it aborts.

    Raises:
        DeviceError: JAX has started with fewer devices, or `n_devices` is not positive.
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
    jax.config.update("jax_num_cpu_devices", processes.join(n_devices))
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


def plan_for(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    cluster: Cluster,
    *,
    microbatches: int | None = None,
    batch_argnums: Sequence[int] = (-1,),
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
        BatchError: The batch cannot be cut so.
        UnsupportedStepError: The step cannot be planned; the message says why.
        AccumulationError: It cannot run in as many microbatches as were asked for.
        NoPlanError: No plan fits the memory.
        PlanError: `plan` was made for another step.
    """
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
        kinds = dict.fromkeys(e.primitive.name for e in found.equations.values())
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
            unsharded=[kind for kind in kinds if not has_rule(kind)],
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
    step = traced(plan.microbatches)[1].step
    if plan.step != step.fingerprint:
        raise PlanError(
            "a plan runs the step that it was made for; this one is for step "
            f"{plan.step}, and the function given is step {step.fingerprint}: "
            "plan again, or give the arguments the shapes of then"
        )
    return Planned(*steps[plan.microbatches], plan)


def _with_microbatches(
    planned: Callable[[int, bool], Plan], fewest: int, sizes: Sequence[int]
) -> Plan:
    """The fastest plan over numbers of microbatches, with the others as alternatives.

    More of them make a pipeline's bubble smaller and need less memory; they never help a plan
    without a pipeline that fits.
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
            if is_slower or len(found[-1].stages) == 1 or not more_are_there:
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


class ParallelStep:
    """A training step that is planned at its first call and then runs on many devices.

    It takes and returns what the original does. State that it returns lies sharded on the devices,
    and is taken from there at the next call.
    """

    def __init__(
        self, function: Callable[..., Any], cluster: Cluster | None, options: dict[str, Any]
    ) -> None:
        functools.update_wrapper(self, function)
        self._function, self._cluster, self._options = function, cluster, options
        self._planned: Planned | None = None
        self._tree: Any = None
        self._runtime: Runtime | None = None

    def __repr__(self) -> str:
        name = getattr(self._function, "__name__", repr(self._function))
        planned = "not planned yet" if self._planned is None else repr(self._planned.plan)
        return f"<ParallelStep of {name}: {planned}>"

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Run one step; the first call also plans and compiles it."""
        if named:
            bound = inspect.signature(self._function).bind(*arguments, **named)
            if bound.kwargs:
                raise TypeError(
                    "the arguments of a planned step have places; these can only be named: "
                    f"{', '.join(bound.kwargs)}: give them a value with functools.partial"
                )
            arguments = bound.args
        if self._runtime is None:
            self.compile(*arguments)
        assert self._runtime is not None
        tree = jax.tree.structure(arguments)
        if tree != self._tree:
            raise BatchError(
                "arguments must have the structure that the step was planned for; "
                f"got {tree} instead of {self._tree}"
            )
        results = self._runtime(self.planned.trace.flatten(arguments))
        return self.planned.trace.unflatten(results)

    def prepare(self, *arguments: Any) -> Planned:
        """Trace and plan the step at these arguments' shapes, without compiling it."""
        if self._planned is None:
            cluster = default_cluster() if self._cluster is None else self._cluster
            self._cluster = cluster
            self._planned = plan_for(self._function, arguments, cluster, **self._options)
            self._tree = jax.tree.structure(arguments)
        return self._planned

    def compile(self, *arguments: Any) -> Runtime:
        """Plan the step if it is not planned, and compile the plan's programs."""
        planned = self.prepare(*arguments)
        if self._runtime is None:
            assert self._cluster is not None
            self._runtime = Runtime(
                planned.trace,
                planned.layered,
                planned.plan,
                self._cluster,
                self._options.get("progress"),
            )
        return self._runtime

    @property
    def planned(self) -> Planned:
        """Trace, layers and plan; `PlanError` before the first call."""
        if self._planned is None:
            raise PlanError("a step has a plan after its first call, or after prepare(*arguments)")
        return self._planned

    @property
    def plan(self) -> Plan:
        """How the step runs; prints as a table."""
        return self.planned.plan


@overload
def parallelize(
    function: Callable[..., Any], *, cluster: Cluster | None = None, **options: Any
) -> ParallelStep: ...
@overload
def parallelize(
    function: None = None, *, cluster: Cluster | None = None, **options: Any
) -> Callable[[Callable[..., Any]], ParallelStep]: ...
def parallelize(
    function: Callable[..., Any] | None = None, *, cluster: Cluster | None = None, **options: Any
) -> ParallelStep | Callable[[Callable[..., Any]], ParallelStep]:
    """Let a training step run on all devices, by a plan that is found at its first call.

    Use it as a function, `parallelize(step)`, or as a decorator with or without options. The step
    stays as it was written for one device.

    Args:
        function: The step; a decorator is returned without it.
        cluster: What to plan for; by default the devices of this process, as one host.
        options: Any of `plan_for`: `microbatches`, `batch_argnums`, `strategy`, `schedule`,
            `memory_bytes`, `level`, `memory_rule`, `pin`, `n_layers`, `plan`, `progress`.

    Raises:
        TypeError: There is no such option.

    Examples:
        >>> @parallelize(microbatches=4)
        ... def train_step(params, batch): ...
        >>> train_step
        <ParallelStep of train_step: not planned yet>
    """
    known = inspect.signature(plan_for).parameters
    for name in options:
        if name not in known or known[name].kind is not inspect.Parameter.KEYWORD_ONLY:
            names = (n for n, p in known.items() if p.kind is inspect.Parameter.KEYWORD_ONLY)
            raise TypeError(f"parallelize has the options cluster, {', '.join(names)}; got {name}")
    if function is None:
        return lambda function: ParallelStep(function, cluster, options)
    return ParallelStep(function, cluster, options)
