"""What a plan consists of: which stage runs what, on which devices, in which layouts, at what cost.

A plan knows no framework and holds no arrays. Specs are shardspec's (`S0R`), meshes carry their
device ids, times are seconds and sizes bytes, per device unless said otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from autoshard import Sharding
from shardspec import Mesh, Spec
from shardspec.amounts import seconds_text

TransferPhase = Literal["state", "forward", "backward", "apply"]


@dataclass(frozen=True, slots=True)
class Placement:
    """How one operator runs: the layouts that it reads and makes."""

    operator: str
    phase: int
    operands: tuple[Spec, ...]
    results: tuple[Spec, ...]


def placements_of(sharding: Sharding) -> tuple[Placement, ...]:
    """How the operators of a sharding run."""
    return tuple(
        Placement(op.name, op.phase, s.operand_specs, s.result_specs)
        for op, s in zip(sharding.graph.operators, sharding.strategies, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Conversion:
    """A value is brought from one layout to another, once for all that read it in this phase."""

    phase: int
    value: str
    src: Spec
    dst: Spec


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective operation that a stage's program contains."""

    phase: int
    value: str
    kind: str
    """all_gather, all_to_all, reduce_scatter or all_reduce."""

    axes: tuple[int, ...]
    """Of the stage's mesh."""

    group_size: int
    n_bytes: int
    """Of the result on one device."""

    sent_bytes: int
    """That one device sends when it runs once, by a ring algorithm."""

    repeats: int
    """Runs per step: once a microbatch, or once."""

    time_s: float
    """Of one run."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A value that enters or leaves a stage's program, and its layout there."""

    value: str
    spec: Spec


@dataclass(frozen=True, slots=True)
class Stage:
    """A run of layers on one submesh."""

    first_layer: int
    last_layer: int
    """Included."""

    mesh: Mesh
    inputs: tuple[Stored, ...]
    outputs: tuple[Stored, ...]
    placements: tuple[Placement, ...]
    conversions: tuple[Conversion, ...]
    collectives: tuple[Collective, ...]
    forward_s: float
    """Of one microbatch, as `backward_s`."""

    backward_s: float
    apply_s: float
    """Of one step."""

    memory_bytes: int
    """Peak of one device under the plan's schedule."""

    sharding: Sharding | None = field(default=None, repr=False)
    """What was found for the stage, with as many microbatches in flight as it holds: its graph,
    and all that prices are made of. None in plans of format 1, and where nothing was searched."""

    def entering(self, value: str) -> Spec:
        """The layout of an input."""
        return next(stored.spec for stored in self.inputs if stored.value == value)

    def leaving(self, value: str, phase: TransferPhase) -> Spec:
        """The layout in which a value is sent to another stage.

        State is sent as it is kept. A value may leave twice: stored back into an input, and, last
        among the outputs, to other stages.
        """
        if phase == "state":
            return self.entering(value)
        return next(stored.spec for stored in reversed(self.outputs) if stored.value == value)


@dataclass(frozen=True, slots=True)
class Transfer:
    """A value that one stage sends to another."""

    value: str
    phase: TransferPhase
    """Who made it; forward and backward send it for every microbatch. `state` is an argument
    that is kept on one stage and read on another as well."""

    source: int
    destination: int
    src_spec: Spec
    dst_spec: Spec
    n_bytes: int
    """Of the whole value."""

    time_s: float
    """Of sending it once."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another plan that was priced, and why it was not taken."""

    name: str
    step_s: float | None
    """None if it cannot run."""

    memory_bytes: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class PlanFields:
    """How one training step runs on a cluster; users hold a `Plan`, which does more with it."""

    step: str
    """Fingerprint of the step that this plan is for."""

    cluster: str
    """Name of the cluster that it was made for."""

    memory_limit_bytes: int
    microbatches: int
    schedule: str
    """Name of the pipeline schedule, as pipesched knows it, or its text."""

    stages: tuple[Stage, ...]
    transfers: tuple[Transfer, ...]
    step_s: float
    """Predicted by simulating the schedule."""

    lower_bound_s: float
    """No plan takes less: all operations at the devices' peak speed, and nothing sent."""

    unsharded: tuple[str, ...]
    """Kinds of operators that had no rule, so that every device runs them whole."""

    alternatives: tuple[Alternative, ...]
    strategy: str = "search"
    """What made the plan: the search, or one of the obvious plans."""

    options: tuple[tuple[str, str], ...] = ()
    """What was asked for where that is not as by default: names in `PlanOptions`, and texts."""

    def __repr__(self) -> str:
        shapes = {tuple(s.mesh.device_ids): "x".join(map(str, s.mesh.shape)) for s in self.stages}
        meshes = " + ".join(shapes.values())
        return (
            f"<Plan: {len(self.stages)} stages on meshes {meshes}, {self.microbatches} "
            f"microbatches, {self.schedule_name}, {seconds_text(self.step_s)} a step predicted>"
        )

    @property
    def schedule_name(self) -> str:
        """The first word of the schedule's text, or the name that it has."""
        return next(iter(self.schedule.split()), "")

    @property
    def n_devices(self) -> int:
        """Devices of all stages together."""
        return len(self.device_ids)

    @property
    def device_ids(self) -> tuple[int, ...]:
        """Every device that the plan uses."""
        return tuple(sorted({d for stage in self.stages for d in stage.mesh.device_ids}))

    @property
    def memory_bytes(self) -> int:
        """Of the device that needs most; what stages on the same devices need adds up."""
        needed: dict[int, int] = {}
        for stage in self.stages:
            for device in stage.mesh.device_ids:
                needed[device] = needed.get(device, 0) + stage.memory_bytes
        return max(needed.values(), default=0)

    def microbatches_of(self, stage: int) -> int:
        """How many a stage runs: all, or, where stages have copies, those of its route."""
        sharding = self.stages[stage].sharding
        return self.microbatches if sharding is None else sharding.graph.phases[0].repeats
