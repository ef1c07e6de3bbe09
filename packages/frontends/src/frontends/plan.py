"""A plan as data: which stage runs what, on which devices, in which layouts, and what it costs.

A plan knows no framework and holds no arrays. Specs are shardspec's (`S0R`), meshes carry their
device ids, times are seconds and sizes bytes, per device unless said otherwise.

The JSON of a plan has a format number. Format 2 keeps the sharding of every stage, with its graph
and cluster, so that a plan that was read explains, checks and draws itself without the step that
it was made for. Plans of format 1 have none, and are read as they are.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from autoshard import AutoshardError, Sharding
from shardspec import Mesh, ShardspecError, Spec

from frontends.errors import OutputError, PlanError

if TYPE_CHECKING:
    from frontends.consistency import Verification
    from frontends.difference import Difference
    from frontends.explain import Explanation

FORMAT = 2
"""Version of the JSON that this module writes; it reads all from 1 on."""


TransferPhase = Literal["state", "forward", "backward", "apply"]


@dataclass(frozen=True, slots=True)
class Placement:
    """How one operator runs: the layouts that it reads and makes."""

    operator: str
    phase: int
    operands: tuple[Spec, ...]
    results: tuple[Spec, ...]


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
class Plan:
    """How one training step runs on a cluster."""

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

    def __repr__(self) -> str:
        shapes = {tuple(s.mesh.device_ids): "x".join(map(str, s.mesh.shape)) for s in self.stages}
        meshes = " + ".join(shapes.values())
        return (
            f"<Plan: {len(self.stages)} stages on meshes {meshes}, {self.microbatches} "
            f"microbatches, {self.schedule_name}, {self.step_s * 1e3:.3g} ms a step predicted>"
        )

    def __str__(self) -> str:
        from frontends.report import plan_text

        return plan_text(self)

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

    def explain(self, name: str) -> Explanation:
        """Why an operator or a value has its layouts and its stage; see `explain.explain`."""
        from frontends.explain import explain

        return explain(self, name)

    def diff(self, other: Plan) -> Difference:
        """What is different in another plan; see `difference.diff`."""
        from frontends.difference import diff

        return diff(self, other)

    def verify(self) -> Verification:
        """Check that the parts fit together and keep the limits; see `consistency.verify_plan`."""
        from frontends.consistency import verify_plan

        return verify_plan(self)

    def html(self) -> str:
        """The plan as one page that needs nothing else; see `html.plan_html`."""
        from frontends.html import plan_html

        return plan_html(self)

    def to_json(self) -> str:
        """The plan as JSON text, which `from_json` reads back to an equal plan."""
        return json.dumps({"format": FORMAT, **_encode(self)})

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read a plan of this format or an older one.

        Raises:
            PlanError: The text is no plan, or one of a newer format.
        """
        try:
            data = json.loads(text)
            version = data.pop("format")
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            raise PlanError(f"a plan is a JSON object with a format number; got {error}") from error
        if type(version) is not int or not 1 <= version <= FORMAT:
            raise PlanError(
                f"this version of frontends reads plans of formats 1 to {FORMAT}; got format "
                f"{version!r}: read it with the version that wrote it, or plan again"
            )
        from frontends.plan_fields import wrong_fields

        try:
            plan = _decode_plan(data)
        except (
            AttributeError,
            KeyError,
            TypeError,
            ValueError,
            AutoshardError,
            ShardspecError,
        ) as error:
            raise PlanError(f"the plan is damaged: {type(error).__name__} {error}") from error
        for wrong in wrong_fields(plan):
            raise PlanError(f"the plan is damaged: {wrong}")
        return plan

    def save(self, path: str | Path) -> None:
        """Write the plan's JSON; `OutputError` if the file cannot be written."""
        try:
            Path(path).write_text(self.to_json() + "\n", encoding="utf-8")
        except OSError as error:
            raise OutputError(f"a plan is written to a file; {path}: {error.strerror}") from error

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan from a file; `PlanError` if there is none in it."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise PlanError(f"a plan is read from a JSON file; {path}: {error}") from error
        return cls.from_json(text)


def _encode(value: Any) -> Any:
    if isinstance(value, Spec):
        return str(value)
    if isinstance(value, Mesh):
        return {
            "shape": list(value.shape),
            "axis_names": list(value.axis_names),
            "device_ids": list(value.device_ids),
        }
    if isinstance(value, Sharding):
        return json.loads(value.to_json())
    if dataclasses.is_dataclass(value):
        return {f.name: _encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    return value


def _decode_plan(data: dict[str, Any]) -> Plan:
    data["stages"] = tuple(_decode_stage(stage) for stage in data["stages"])
    data["transfers"] = tuple(
        Transfer(**_specs(item, "src_spec", "dst_spec")) for item in data["transfers"]
    )
    data["unsharded"] = tuple(data["unsharded"])
    data["alternatives"] = tuple(Alternative(**item) for item in data["alternatives"])
    return Plan(**data)


def _decode_stage(data: dict[str, Any]) -> Stage:
    mesh = data["mesh"]
    data["mesh"] = Mesh(tuple(mesh["shape"]), tuple(mesh["axis_names"]), tuple(mesh["device_ids"]))
    for side in ("inputs", "outputs"):
        data[side] = tuple(Stored(**_specs(item, "spec")) for item in data[side])
    data["placements"] = tuple(
        Placement(
            item["operator"],
            item["phase"],
            tuple(map(Spec.parse, item["operands"])),
            tuple(map(Spec.parse, item["results"])),
        )
        for item in data["placements"]
    )
    data["conversions"] = tuple(Conversion(**_specs(c, "src", "dst")) for c in data["conversions"])
    data["collectives"] = tuple(
        Collective(**{**item, "axes": tuple(item["axes"])}) for item in data["collectives"]
    )
    if data.get("sharding") is not None:  # format 1 has none
        data["sharding"] = Sharding.from_json(json.dumps(data["sharding"]))
    return Stage(**data)


def _specs(data: dict[str, Any], *names: str) -> dict[str, Any]:
    return {**data, **{name: Spec.parse(data[name]) for name in names}}
