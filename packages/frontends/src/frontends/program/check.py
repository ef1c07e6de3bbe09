"""Check from a plan's data alone that its parts fit together and keep its limits.

This does not rely on the searches that made the plan: layouts are followed from operator to
operator, collectives are derived from the conversions, memory from live ranges, and the step is
simulated again. `verify` checks that the programs do what the plan says, and compute what one
device does.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import autoshard
from autoshard import AutoshardError, Sharding
from pipesched import PipeschedError, Schedule
from shardspec import Layout, ShardspecError, Spec, reshard_whole_axes
from shardspec.amounts import bytes_text

from frontends.errors import PlanError, VerificationError
from frontends.plan.plan_fields import Conversion, PlanFields, Stage
from frontends.plan.schedule import microbatches_at, schedule_of
from frontends.program.liveness import peaks_of, step_of
from frontends.program.predict import predict_step_s
from frontends.program.program import build_program
from frontends.step.step import PHASE_NAMES

_SHOWN = 10
"""The most problems that the error names; it counts the others."""

_LIVE = "live values take at most the planned memory, and fit a device"

_RELATIVE = 1e-9
"""Relative tolerance between two sums of the same times."""


@dataclass(frozen=True, slots=True)
class Verification:
    """The claims about a plan that were checked, and hold."""

    checks: tuple[tuple[str, int], ...]
    """Each claim, and the number of parts that it was checked for."""

    unchecked: tuple[str, ...]
    """The claims that cannot be checked, as the plan keeps no shardings."""

    def __str__(self) -> str:
        lines = [f"ok: {what} ({number:,})" for what, number in self.checks]
        lines += [f"not checked, as the plan keeps no shardings: {w}" for w in self.unchecked]
        return "\n".join(lines)


def verify_plan(plan: PlanFields) -> Verification:
    """Check that a plan's parts fit together and keep its limits.

    Raises:
        VerificationError: Some do not; the message describes each problem.
    """
    problems: list[str] = []
    checks: list[tuple[str, int]] = []
    unchecked: list[str] = []
    priced = [(i, s, s.sharding) for i, s in enumerate(plan.stages) if s.sharding is not None]
    schedule = _schedule(plan)
    for claim, check in _OF_PLAN.items():
        problems += check(plan, schedule)
        checks.append((claim, len(plan.stages)))
    for claim, (counted, check_stage) in _OF_STAGE.items():
        for index, stage, sharding in priced:
            problems += [f"stage {index}: {p}" for p in check_stage(plan, stage, sharding)]
        if priced:
            checks.append((claim, sum(counted(stage) for _, stage, _ in priced)))
        else:
            unchecked.append(claim)
    if len(priced) < len(plan.stages):
        unchecked.append(_LIVE)
    elif not problems:  # a plan that cannot run has no live values
        problems += _memory(plan)
        checks.append((_LIVE, sum(len(stage.placements) for stage in plan.stages)))
    if problems:
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise VerificationError(
            f"the parts of a plan fit together; this one's do not: {'; '.join(problems[:_SHOWN])}"
            f"{more}: plan again"
        )
    return Verification(tuple(checks), tuple(unchecked))


def _schedule(plan: PlanFields) -> Schedule | PlanError:
    """The plan's schedule, or the error if it has none that can run; `_times` reports it."""
    try:
        return schedule_of(plan)
    except PlanError as error:
        return error


def _devices(plan: PlanFields, _: object) -> Iterator[str]:
    """Two stages share all their devices, if they are on one rank, or none."""
    meshes = [frozenset(stage.mesh.device_ids) for stage in plan.stages]
    for index, mesh in enumerate(meshes):
        for other in range(index):
            if mesh & meshes[other] and mesh != meshes[other]:
                yield f"stages {other} and {index} share some of their devices but not all"


def _layers(plan: PlanFields, schedule: Schedule | PlanError) -> Iterator[str]:
    n_stages = len(plan.stages) if isinstance(schedule, PlanError) else schedule.n_stages
    expected, last = 0, plan.stages[-1].last_layer
    for index, stage in enumerate(plan.stages):
        if index and index % n_stages == 0:  # replicas run the same layers again
            if expected != last + 1:
                yield f"a copy of all stages ends with layer {expected - 1} instead of {last}"
            expected = 0
        if stage.first_layer != expected or stage.last_layer < stage.first_layer:
            yield (
                f"stage {index} runs layers {stage.first_layer} to {stage.last_layer} instead of "
                f"some from {expected} on"
            )
        expected = stage.last_layer + 1


def _limits(plan: PlanFields, _: object) -> Iterator[str]:
    for index, stage in enumerate(plan.stages):
        limit = plan.memory_limit(index)
        if stage.memory_bytes > limit:
            yield f"stage {index} needs {bytes_text(stage.memory_bytes)} of {bytes_text(limit)}"


def _transfers(plan: PlanFields, _: object) -> Iterator[str]:
    """The source of a transfer has the value in its layout, and the destination reads it in its."""
    for t in plan.transfers:
        what = f"{t.value} from stage {t.source} to {t.destination}"
        if not (0 <= t.source < len(plan.stages) and 0 <= t.destination < len(plan.stages)):
            yield f"{what} is sent between stages that do not exist"
            continue
        source, destination = plan.stages[t.source], plan.stages[t.destination]
        held = source.inputs if t.phase == "state" else source.outputs
        if (t.value, t.src_spec) not in ((s.value, s.spec) for s in held):
            yield f"{what} is sent as {t.src_spec}, which the stage does not have"
        if (t.value, t.dst_spec) not in ((s.value, s.spec) for s in destination.inputs):
            yield f"{what} arrives as {t.dst_spec}, which the stage does not read"
    for index, stage in enumerate(plan.stages):
        sources = Counter(t.value for t in plan.transfers if t.destination == index)
        yield from (
            f"{value} is sent to stage {index} {number} times"
            for value, number in sources.items()
            if number > 1
        )
        if stage.sharding is not None:
            graph = stage.sharding.graph
            for name in graph.inputs:
                if graph.value(name).role == "activation" and name not in sources:
                    yield f"stage {index} reads {name}, which no stage sends to it"


def _times(plan: PlanFields, schedule: Schedule | PlanError) -> Iterator[str]:
    """The predicted time of a step is that of the simulation, and not below the lower bound."""
    try:
        if isinstance(schedule, PlanError):
            raise schedule
        again = predict_step_s(plan.stages, plan.transfers, schedule)
    except (PlanError, PipeschedError) as error:
        yield f"schedule {plan.schedule} cannot be simulated: {error}"
        return
    again += plan.first_pass_s
    if not math.isclose(again, plan.step_s, rel_tol=_RELATIVE):
        yield f"a step is predicted to take {plan.step_s!r} s, and its parts take {again!r} s"
    if plan.step_s < plan.lower_bound_s * (1 - _RELATIVE):
        yield f"a step takes {plan.step_s!r} s, less than the bound of {plan.lower_bound_s!r} s"


def _microbatches(plan: PlanFields, schedule: Schedule | PlanError) -> Iterator[str]:
    """A stage's sharding is for the number of microbatches that the schedule gives the stage."""
    if isinstance(schedule, PlanError):
        return
    for index, stage in enumerate(plan.stages):
        expected, planned = microbatches_at(schedule, index), plan.microbatches_of(index)
        if stage.sharding is not None and planned != expected:
            yield f"stage {index}: its program has {planned} microbatches, not {expected}"


def _same_parts(plan: PlanFields, stage: Stage, sharding: Sharding) -> Iterator[str]:
    """A stage's fields are those of its sharding, which is valid."""
    try:
        Sharding.from_json(sharding.to_json())
    except AutoshardError as error:
        yield f"its sharding is invalid: {error}"
        return
    graph = sharding.graph
    operators = zip(graph.operators, sharding.strategies, strict=True)
    outputs = zip(graph.outputs, sharding.output_specs, strict=True)
    for what, expected, planned in (
        ("mesh", sharding.mesh, stage.mesh),
        ("inputs", sharding.input_specs, tuple((s.value, s.spec) for s in stage.inputs)),
        (
            "outputs",
            tuple((output.value, spec) for output, spec in outputs),
            tuple((s.value, s.spec) for s in stage.outputs),
        ),
        (
            "operators",
            tuple((op.name, op.phase, s.operand_specs, s.result_specs) for op, s in operators),
            tuple((p.operator, p.phase, p.operands, p.results) for p in stage.placements),
        ),
        (
            "conversions",
            tuple((c.phase, c.value, c.src, c.dst) for c in sharding.conversions),
            tuple((c.phase, c.value, c.src, c.dst) for c in stage.conversions),
        ),
    ):
        if expected != planned:
            yield f"its {what} are not those of its sharding"


def _layouts(plan: PlanFields, stage: Stage, sharding: Sharding) -> Iterator[str]:
    """Every operand exists in the layout in which it is read."""
    graph = sharding.graph
    if [op.name for op in graph.operators] != [p.operator for p in stage.placements]:
        return  # `_same_parts` reports this
    available = {(stored.value, stored.spec) for stored in stage.inputs}
    for phase, name in enumerate(PHASE_NAMES):
        in_phase = _Reachable(available, [c for c in stage.conversions if c.phase == phase])
        for operator, placement in zip(graph.operators, stage.placements, strict=True):
            if operator.phase == phase:
                for value, spec in zip(operator.inputs, placement.operands, strict=False):
                    if not in_phase.reach(value, spec):
                        what = f"{operator.name} in {name} reads {value} as {spec}"
                        yield f"{what}, which nothing makes"
                in_phase.available.update(zip(operator.outputs, placement.results, strict=False))
                available.update(zip(operator.outputs, placement.results, strict=False))
        for output, stored in zip(graph.outputs, stage.outputs, strict=False):
            leaves = graph.phase_of_output(output) == phase
            if leaves and not in_phase.reach(output.value, stored.spec):
                yield f"{output.value} leaves {name} as {stored.spec}, which nothing makes"


class _Reachable:
    """The layouts that are available in one phase, and those that its conversions lead to."""

    def __init__(self, available: set[tuple[str, Spec]], conversions: list[Conversion]) -> None:
        self.available = set(available)
        self._conversions: dict[str, list[Conversion]] = {}
        for c in conversions:
            self._conversions.setdefault(c.value, []).append(c)

    def reach(self, value: str, spec: Spec) -> bool:
        """Whether a value is available in a layout, or conversions lead to it.

        Layouts on the way become available.
        """
        grows = True
        while (value, spec) not in self.available and grows:
            of = self._conversions.get(value, ())
            new = {(value, c.dst) for c in of if (value, c.src) in self.available} - self.available
            self.available |= new
            grows = bool(new)
        return (value, spec) in self.available


def _collectives(plan: PlanFields, stage: Stage, sharding: Sharding) -> Iterator[str]:
    """The collectives are those of operators and those that the conversions consist of."""
    graph = sharding.graph
    expected: Counter[tuple[object, ...]] = Counter(
        (c.phase, c.value, c.step.kind, c.step.mesh_axes, c.n_bytes, c.n_bytes, c.repeats)
        for c in autoshard.collectives(graph, sharding)
        if c.step.kind == "collective_permute"
    )
    for c in stage.conversions:
        value = graph.value(c.value)
        try:
            ends = [Layout(value.shape, stage.mesh, spec) for spec in (c.src, c.dst)]
            steps = reshard_whole_axes(*ends).steps
        except ShardspecError as error:
            yield f"{c.value} cannot go from {c.src} to {c.dst}: {error}"
            continue
        for step in steps:
            if step.kind != "slice":
                size = step.dst.local_bytes(value.itemsize)
                sent = step.sent_bytes(value.itemsize)
                repeats = graph.phases[c.phase].repeats
                expected[c.phase, c.value, step.kind, step.mesh_axes, size, sent, repeats] += 1
    planned: Counter[tuple[object, ...]] = Counter(
        (c.phase, c.value, c.kind, c.axes, c.n_bytes, c.sent_bytes, c.repeats)
        for c in stage.collectives
    )
    if expected != planned:
        yield (
            "its collectives are not those of its operators and conversions: "
            f"{list(planned - expected)[:2]} are too many, and {list(expected - planned)[:2]} are "
            "missing"
        )


def _memory(plan: PlanFields) -> Iterator[str]:
    """Live values take at most the planned memory of their stage, and fit a device."""
    peaks = peaks_of(build_program(step_of(plan), plan))
    limits = {frozenset(s.mesh.device_ids): plan.memory_limit(i) for i, s in enumerate(plan.stages)}
    for index, (stage, peak) in enumerate(zip(plan.stages, peaks.stages, strict=True)):
        if peak.n_bytes > stage.memory_bytes:
            yield (
                f"stage {index}: live values take {bytes_text(peak.n_bytes)} in {peak.when}, and "
                f"{bytes_text(stage.memory_bytes)} are planned"
            )
    for devices, peak in peaks.devices.items():
        limit = limits[devices]
        if peak.n_bytes > limit:
            yield (
                f"live values on devices {min(devices)} to {max(devices)} take "
                f"{bytes_text(peak.n_bytes)} of {bytes_text(limit)}, in {peak.when}"
            )


def _bytes_sent(plan: PlanFields, stage: Stage, sharding: Sharding) -> Iterator[str]:
    """A transfer has the size of its value."""
    for t in plan.transfers:
        is_received = t.destination < len(plan.stages) and plan.stages[t.destination] is stage
        value = sharding.graph.by_name.get(t.value)  # `_transfers` reports one that is not there
        if is_received and value is not None and t.n_bytes != value.n_bytes:
            yield f"{t.value} has {value.n_bytes} bytes, and {t.n_bytes} are sent"


_OF_PLAN: dict[str, Callable[[PlanFields, Schedule | PlanError], Iterator[str]]] = {
    "stages have devices of their own": _devices,
    "stages run all layers, in order": _layers,
    "stages keep the memory limit": _limits,
    "transfers carry values that one stage has and another reads": _transfers,
    "the predicted time of a step is that of its parts": _times,
    "stages run the microbatches of the schedule": _microbatches,
}
_OF_STAGE: dict[
    str, tuple[Callable[[Stage], int], Callable[[PlanFields, Stage, Sharding], Iterator[str]]]
] = {
    "operators run as their sharding says": (lambda s: len(s.placements), _same_parts),
    "operands exist in the layouts that are read": (lambda s: len(s.placements), _layouts),
    "collectives are those of the conversions": (lambda s: len(s.collectives), _collectives),
    "transfers have the sizes of their values": (lambda s: len(s.inputs), _bytes_sent),
}
