"""The data of a plan: what each stage runs, on which devices, in which layouts, at what cost.

A plan depends on no framework and holds no arrays. Specs are shardspec's (`S0R`), meshes carry
their device ids, times are in seconds and sizes in bytes, per device unless said otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from autoshard import Sharding
from shardspec import Mesh, Spec
from shardspec.amounts import seconds_text

TransferPhase = Literal["state", "forward", "backward", "apply"]


@dataclass(frozen=True, slots=True)
class ShardedOperator:
    """One operator, with the layouts of its operands and results."""

    operator: str
    phase: int
    operands: tuple[Spec, ...]
    results: tuple[Spec, ...]


def placements_of(sharding: Sharding) -> tuple[ShardedOperator, ...]:
    """The operators of a sharding with their layouts, in program order."""
    return tuple(
        ShardedOperator(op.name, op.phase, s.operand_specs, s.result_specs)
        for op, s in zip(sharding.graph.operators, sharding.strategies, strict=True)
    )


Remat = Literal["none", "cheap", "dots", "all"]
"""What backward computes again instead of holding it since forward: nothing; elementwise operators
and reductions; products with batch dims, such as those of attention, too; everything."""

REMATS: tuple[Remat, ...] = get_args(Remat)
"""Each computes more again than the one before, and holds less."""

Remats = Remat | tuple[Remat, ...]
"""What a step computes again: the same in all layers, or by layer."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """A value is resharded, once for all operators of this phase that read it in this layout."""

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
    """all_gather, all_to_all, reduce_scatter or all_reduce; or collective_permute, while an
    operator runs: to the next device, or, if `group_size` is 2, to the opposite one."""

    axes: tuple[int, ...]
    """Axes of the stage's mesh."""

    group_size: int
    n_bytes: int
    """Size of the result on one device."""

    sent_bytes: int
    """Bytes that one device sends in one run, by a ring algorithm."""

    repeats: int
    """Runs per step: once for each microbatch, or once."""

    time_s: float
    """Time of one run."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A value that enters or leaves a stage's program, and its layout there."""

    value: str
    spec: Spec


@dataclass(frozen=True, slots=True)
class Stage:
    """A run of consecutive layers on one submesh."""

    first_layer: int
    last_layer: int
    """Last layer, included."""

    mesh: Mesh
    inputs: tuple[Stored, ...]
    outputs: tuple[Stored, ...]
    placements: tuple[ShardedOperator, ...]
    conversions: tuple[Conversion, ...]
    collectives: tuple[Collective, ...]
    forward_s: float
    """Time of one microbatch, as `backward_s`."""

    backward_s: float
    apply_s: float
    """Time of one step."""

    memory_bytes: int
    """Peak memory of one device under the plan's schedule."""

    sharding: Sharding | None = field(default=None, repr=False)
    """The sharding of the stage, with as many microbatches in flight as it holds: its graph, and
    all that its prices consist of. None in plans of format 1, and if nothing was searched."""

    def entering(self, value: str) -> Spec:
        """The layout of an input of the stage."""
        return next(stored.spec for stored in self.inputs if stored.value == value)

    def leaving(self, value: str, phase: TransferPhase) -> Spec:
        """The layout in which a value is sent to another stage.

        State is sent in the layout in which it is kept. A value may be an output twice: as new
        state, and, later among the outputs, for other stages.
        """
        if phase == "state":
            return self.entering(value)
        return next(stored.spec for stored in reversed(self.outputs) if stored.value == value)


@dataclass(frozen=True, slots=True)
class Transfer:
    """A value that one stage sends to another."""

    value: str
    phase: TransferPhase
    """The phase that computes the value; forward and backward send it for every microbatch. `state`
    is an argument that is kept on one stage and read on another as well."""

    source: int
    destination: int
    src_spec: Spec
    dst_spec: Spec
    n_bytes: int
    """Size of the whole value."""

    time_s: float
    """Time to send it once."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another plan that was priced, and why it was not chosen."""

    name: str
    step_s: float | None
    """None if the plan cannot run."""

    memory_bytes: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class PlanFields:
    """How one training step runs on a cluster: data only. Users get a `Plan`, with methods."""

    step: str
    """Fingerprint of the step that this plan is for."""

    cluster: str
    """Name of the cluster that this plan is for."""

    memory_limit_bytes: int
    microbatches: int
    schedule: str
    """The pipeline schedule: its name in pipesched, or its text."""

    stages: tuple[Stage, ...]
    transfers: tuple[Transfer, ...]
    step_s: float
    """Time of a step, predicted by simulating the schedule."""

    lower_bound_s: float
    """No plan in as many microbatches that computes as much again and pads as much takes less: all
    operators at the devices' peak rates, without communication. If a deadline has ended the search,
    no plan at all that was asked for takes less."""

    unsharded: tuple[str, ...]
    """Kinds of operators that have no rule, so that every device runs them whole."""

    alternatives: tuple[Alternative, ...]
    strategy: str = "search"
    """What the plan is: the result of the search, or the name of a baseline."""

    remat: Remat = "none"
    """What backward computes again instead of holding it; the most of all layers."""

    remat_of_layers: tuple[Remat, ...] = ()
    """By layer, what backward computes again; empty if all layers do the same."""

    padded_to: int = 0
    """To how many examples each microbatch is padded, so that devices divide them; 0 for none."""

    first_pass_s: float = 0.0
    """The part of `step_s` that a first pass takes, which computes the features of all microbatches
    where the loss compares examples; 0 if there is none."""

    memory_limits: tuple[int, ...] = ()
    """By stage, the memory limit of each of its devices; empty if all have
    `memory_limit_bytes`, which is the largest otherwise."""

    options: tuple[tuple[str, str], ...] = ()
    """The `PlanOptions` that differ from their defaults: names of fields, and their values as
    text."""

    def __repr__(self) -> str:
        shapes = {tuple(s.mesh.device_ids): "x".join(map(str, s.mesh.shape)) for s in self.stages}
        meshes = " + ".join(shapes.values())
        return (
            f"<Plan: {len(self.stages)} stages on meshes {meshes}, {self.microbatches} "
            f"microbatches, {self.schedule_name}, {seconds_text(self.step_s)} a step predicted>"
        )

    @property
    def schedule_name(self) -> str:
        """Name of the schedule: the first word of its text, if it is one."""
        return next(iter(self.schedule.split()), "")

    @property
    def remats(self) -> Remats:
        """What backward computes again, by layer if layers differ."""
        return self.remat_of_layers or self.remat

    @property
    def n_devices(self) -> int:
        """Devices of all stages together."""
        return len(self.device_ids)

    @property
    def device_ids(self) -> tuple[int, ...]:
        """The ids of all devices that the plan uses, sorted."""
        return tuple(sorted({d for stage in self.stages for d in stage.mesh.device_ids}))

    @property
    def device_bytes(self) -> dict[int, int]:
        """Memory that each device needs; stages on the same devices add up."""
        needed: dict[int, int] = {}
        for stage in self.stages:
            for device in stage.mesh.device_ids:
                needed[device] = needed.get(device, 0) + stage.memory_bytes
        return needed

    @property
    def memory_bytes(self) -> int:
        """Memory of the device that needs most; stages on the same devices add up."""
        return max(self.device_bytes.values(), default=0)

    @property
    def fullest_device(self) -> tuple[int, int]:
        """Memory of the device that has least to spare, and its limit, in bytes."""
        limits = {
            d: self.memory_limit(i) for i, s in enumerate(self.stages) for d in s.mesh.device_ids
        }
        needed = self.device_bytes
        pairs = ((needed[device], limit) for device, limit in limits.items())
        return max(pairs, key=lambda pair: pair[0] / max(pair[1], 1), default=(0, 0))

    def memory_limit(self, stage: int) -> int:
        """Memory limit of one of a stage's devices, in bytes."""
        return self.memory_limits[stage] if self.memory_limits else self.memory_limit_bytes

    def microbatches_of(self, stage: int) -> int:
        """How many microbatches a stage runs: all, or, as a replica, those of its route."""
        sharding = self.stages[stage].sharding
        return self.microbatches if sharding is None else sharding.graph.phases[0].repeats
