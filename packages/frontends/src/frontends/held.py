"""Plan a step so that the state it shares with an earlier plan stays where that keeps it.

A step that is called with another shape of batch, or in another mode, is another program on the
same weights. If its plan had layouts of its own, all state would move at every change. So the
stages of the first plan are kept, with their devices and logical meshes, and the state in them is
pinned to its layouts: only how operators run is searched.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import autoshard
import pipesched
from costmodel import Cluster
from shardspec import Mesh, Spec

from frontends.candidates import Progress
from frontends.errors import HeldLayoutError, PlanError
from frontends.joining import Joiner
from frontends.layers import LayeredStep, layer, layer_as
from frontends.pins import Pin, pins_of
from frontends.plan import Plan, Stage
from frontends.pricing import Level, Priced, Pricer
from frontends.schedule import copies_of_stages, first_microbatches, most_held, schedule_of
from frontends.step import STATE, Step

HELD = "held"
"""What made such a plan, as `Plan.strategy`."""

_FINER = (2, 4)
"""As many times the earlier plan's layers are tried, where its own do not correspond [chosen]."""


@dataclass(frozen=True, slots=True)
class Home:
    """Where a value lies between steps."""

    devices: tuple[int, ...]
    shape: tuple[int, ...]
    """Of the logical mesh that they make."""

    spec: Spec

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape))
        return f"{self.spec} on devices {', '.join(map(str, self.devices))} ({shape})"


def homes_of(plan: Plan) -> dict[str, frozenset[Home]]:
    """Where state lies between steps; copies that are made in a step do not count.

    Of a plan of format 1, which does not say what is state, where all its arguments do.
    """
    received = {(t.destination, t.value) for t in plan.transfers}
    found: dict[str, set[Home]] = {}
    for index, stage in enumerate(plan.stages):
        graph = None if stage.sharding is None else stage.sharding.graph
        for stored in stage.inputs:
            is_state = graph is None or graph.value(stored.value).role in STATE
            if is_state and (index, stored.value) not in received:
                home = Home(tuple(stage.mesh.device_ids), stage.mesh.shape, stored.spec)
                found.setdefault(stored.value, set()).add(home)
    return {name: frozenset(homes) for name, homes in found.items()}


def same_homes(plan: Plan, other: Plan, names: Collection[str] | None = None) -> list[str]:
    """How two plans differ in where they keep values; empty if state need not move between them.

    Args:
        plan: One of them.
        other: The other.
        names: Of arguments; by default all that is state in both. What only one of them reads is
            nowhere in the other, and is no difference.

    Returns:
        A line for each value that is not kept on the same devices in the same layout.
    """
    ours, theirs = homes_of(plan), homes_of(other)
    both = [name for name in ours if name in theirs and (names is None or name in names)]
    return [
        f"{name}: {_listed(ours[name])} here, {_listed(theirs[name])} there"
        for name in both
        if ours[name] != theirs[name]
    ]


def _listed(homes: Collection[Home]) -> str:
    return " and ".join(sorted(map(str, homes)))


def updated_by(plan: Plan) -> frozenset[str]:
    """The arguments that a plan's step gives a new version of; none are known of format 1."""
    graphs = (stage.sharding.graph for stage in plan.stages if stage.sharding is not None)
    return frozenset(o.alias for graph in graphs for o in graph.outputs if o.alias is not None)


def layers_of_held(step: Step, hold: Plan) -> tuple[LayeredStep, list[tuple[int, int]]]:
    """The layers of a step, and those of each stage, so that state is in the stage that keeps it.

    Args:
        step: Of which the layers may differ from those of the plan, as where a loop is longer.
        hold: The earlier plan.

    Raises:
        HeldLayoutError: However it is cut, state of one layer is kept in different stages, or that
            of a later layer in an earlier stage.
    """
    stages = _without_copies(hold)
    n_layers = stages[-1].last_layer + 1
    layered = layer_as(step, hold)
    spans = [(stage.first_layer, stage.last_layer) for stage in stages]
    stage_of = _stage_of_state(hold)
    if layered.n_layers == n_layers and not _misplaced(layered, spans, stage_of):
        return layered, spans
    for wanted in (layered.n_layers, None, *(times * n_layers for times in _FINER)):
        finer = layered if wanted == layered.n_layers else layer(step, wanted)
        found = _spans(finer, len(stages), stage_of)
        if found is not None:
            return finer, found
    wrong = _misplaced(layered, spans, stage_of)[:3]
    raise HeldLayoutError(
        "a step that shares its state with a plan reads it in the order of the plan's stages; "
        f"this one has {layered.n_layers} layers for {n_layers}, and in other stages than they "
        f"are kept in {', '.join(wrong) or 'some of them'}: plan it on its own, and move the state"
    )


def _without_copies(plan: Plan) -> tuple[Stage, ...]:
    """The stages, without those that are copies of others."""
    name = plan.schedule_name
    n_copies = copies_of_stages(name) if name in pipesched.NAMES and len(plan.stages) > 1 else 1
    return plan.stages[: len(plan.stages) // n_copies]


def _stage_of_state(hold: Plan) -> dict[str, int]:
    """The stage of each value that lies in one only."""
    received = {(t.destination, t.value) for t in hold.transfers}
    found: dict[str, list[int]] = {}
    for index, stage in enumerate(_without_copies(hold)):
        for stored in stage.inputs:
            if (index, stored.value) not in received:
                found.setdefault(stored.value, []).append(index)
    return {name: stages[0] for name, stages in found.items() if len(stages) == 1}


def _misplaced(
    layered: LayeredStep, spans: Sequence[tuple[int, int]], stage_of: Mapping[str, int]
) -> list[str]:
    """State that is updated in another stage than it is kept in."""
    at = {k: i for i, (first, last) in enumerate(spans) for k in range(first, last + 1)}
    return [
        name
        for name in layered.step.graph.inputs
        if name in layered.updated
        and name in stage_of
        and at.get(layered.home[name]) != stage_of[name]
    ]


def _spans(
    layered: LayeredStep, n_stages: int, stage_of: Mapping[str, int]
) -> list[tuple[int, int]] | None:
    """First and last layer of each stage, by the state that is in them; None if there is none."""
    wanted: list[int | None] = [None] * layered.n_layers
    for name in layered.step.graph.inputs:
        if name in layered.updated and name in stage_of:
            k, stage = layered.home[name], stage_of[name]
            if wanted[k] not in (None, stage):
                return None
            wanted[k] = stage
    stages: list[int] = []
    for each in wanted:
        stages.append(each if each is not None else stages[-1] if stages else 0)
    if stages != sorted(stages) or set(stages) != set(range(n_stages)):
        return None
    firsts = [stages.index(stage) for stage in range(n_stages)]
    return [*zip(firsts, [first - 1 for first in [*firsts[1:], len(stages)]], strict=True)]


class HeldPlanner:
    """Plans a step with the stages of an earlier plan, and its state in the same layouts.

    Args:
        step: In a number of microbatches.
        hold: The earlier plan.
        cluster: That it was made for.
        memory_bytes: Limit of one device; the cluster's by default.
        level: As of `frontends.planner.Planner`, like those that follow.
        memory_rule: As there.
        pin: As there; what it says of state that is held, or of stages, the earlier plan has done.
        unsharded: As there.
        progress: Told which stage is sharded.

    Raises:
        HeldLayoutError: The step's layers or state are not those of the plan.
    """

    def __init__(
        self,
        step: Step,
        hold: Plan,
        cluster: Cluster,
        *,
        memory_bytes: int | None = None,
        level: Level = "O2",
        memory_rule: autoshard.MemoryRule = "limit",
        pin: Mapping[str, Pin] | None = None,
        unsharded: Sequence[str] = (),
        progress: Progress | None = None,
    ) -> None:
        if hold.n_devices > cluster.n_devices:
            raise HeldLayoutError(
                f"state is held on the devices of a plan; this one uses {hold.n_devices}, and "
                f"cluster {cluster.name!r} has {cluster.n_devices}"
            )
        self._hold, self._cluster, self._progress = hold, cluster, progress
        self.layered, self._spans = layers_of_held(step, hold)
        self._stages = _without_copies(hold)
        self._memory_bytes = cluster.device.memory_bytes if memory_bytes is None else memory_bytes
        self._level, self._memory_rule = level, memory_rule
        self._pins, self._unsharded = self._free_pins(pin or {}), tuple(unsharded)
        self._schedule = self._schedule_text()

    def plan(self) -> Plan:
        """The plan.

        Raises:
            HeldLayoutError: Nothing fits the memory, or state cannot be kept as it was.
        """
        order = self._order()
        in_all = 1 if len(order.ranks) >= order.n_stages else order.n_stages // len(order.ranks)
        found = None
        for share in dict.fromkeys((1.0, (1.0 + 1 / in_all) / 2, 1 / in_all)):
            found = found or self._planned(order, share)
        if found is None:
            raise HeldLayoutError(
                f"a step in held layouts fits the devices with the stages of the earlier plan; in "
                f"{self.layered.step.microbatches} microbatches this one needs more than "
                f"{self._memory_bytes} bytes a device, or an operator that no held layout allows: "
                "plan it on its own, and move the state"
            )
        names = self.layered.updated | updated_by(self._hold)
        differences = same_homes(found, self._hold, names)
        if differences:
            raise HeldLayoutError(
                "a step in held layouts keeps its state as the earlier plan does; other homes have "
                f"{'; '.join(differences[:3])}: plan it on its own, and move the state"
            )
        return replace(found, strategy=HELD)

    def _planned(self, order: pipesched.Schedule, share: float) -> Plan | None:
        """With so much of a device's memory for each stage; None if one does not fit."""
        held, between = most_held(order)
        stages: list[tuple[int, int, Mesh, Priced]] = []
        joiner = None
        for index, (stage, span) in enumerate(zip(self._stages, self._spans, strict=True)):
            if self._progress is not None:
                self._progress("planning in held layouts", index, len(self._stages))
            pricer = self._pricer(index)
            joiner = joiner or Joiner(pricer, self._unsharded)
            priced = pricer.sharing(share).price(
                *span, self._submesh(stage), held[index], split=between[index] > 0
            )
            if priced is None:
                return None
            stages.append((*span, stage.mesh, priced))
        if self._progress is not None:
            self._progress("planning in held layouts", len(self._stages), len(self._stages))
        assert joiner is not None
        plan = joiner.join(stages, self._schedule)
        return plan if plan.memory_bytes <= self._memory_bytes else None

    def _pricer(self, index: int) -> Pricer:
        """Prices a stage on its mesh, with what it keeps where it is kept."""
        stage, hold = self._stages[index], self._hold
        received = {t.value for t in hold.transfers if t.destination == index}
        graph = self.layered.step.graph
        specs = dict(self._pins)
        for stored in stage.inputs:
            if stored.value in graph.inputs and graph.value(stored.value).role in STATE:
                specs.pop(stored.value, None)
                if stored.value not in received:
                    self._check_shape(stage, stored.value)
                    specs[stored.value] = stored.spec
        return Pricer(
            self.layered,
            self._cluster,
            self._memory_bytes,
            level=self._level,
            memory_rule=self._memory_rule,
            pins=specs,
            mesh_shape=stage.mesh.shape,
        )

    def _check_shape(self, stage: Stage, name: str) -> None:
        ours = self.layered.step.graph.value(name)
        if stage.sharding is None:
            return
        theirs = stage.sharding.graph.value(name)
        if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
            raise HeldLayoutError(
                "a step that shares its state with a plan has it in the same shapes and types; got "
                f"{name} of {ours.dtype}{list(ours.shape)} for {theirs.dtype}{list(theirs.shape)}"
            )

    def _free_pins(self, pin: Mapping[str, Pin]) -> Mapping[str, Spec]:
        """What the user pins of values that are there in this step, too, and not held."""
        found: dict[str, Spec] = {}
        for name, each in pin.items():
            if not isinstance(each, int):
                with suppress(PlanError):  # it names nothing of this step
                    found.update(pins_of(self.layered, {name: each}, 1).specs)
        return found

    def _submesh(self, stage: Stage) -> tuple[int, int]:
        per_host = self._cluster.devices_per_host
        hosts, rest = divmod(len(stage.mesh.device_ids), per_host)
        return (1, rest) if rest else (hosts, per_host)

    def _schedule_text(self) -> str:
        """The earlier schedule for this number of microbatches, by name or as text.

        Copies of stages keep no state, and need several microbatches each: they are left out.
        """
        n_stages, microbatches = len(self._stages), self.layered.step.microbatches
        if n_stages == 1 or n_stages < len(self._hold.stages):
            return "1f1b"
        name = self._hold.schedule
        if name in pipesched.NAMES:
            with suppress(pipesched.PipeschedError):
                pipesched.check(pipesched.make(name, n_stages, microbatches))
                return name
        return str(first_microbatches(schedule_of(self._hold), microbatches))

    def _order(self) -> pipesched.Schedule:
        if self._schedule not in pipesched.NAMES:
            return pipesched.Schedule.parse(self._schedule)
        n_stages = len(self._stages)
        return pipesched.make(self._schedule, n_stages, self.layered.step.microbatches)
