"""A plan, as users hold it: it explains, compares, checks, draws and saves itself.

The JSON of a plan has a format number. Format 2 keeps the sharding of every stage, with its graph
and cluster, so that a plan that was read explains, checks and draws itself without the step that
it was made for. Plans of format 1 have none, and are read as they are.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoshard import AutoshardError, Sharding
from shardspec import Mesh, ShardspecError, Spec

from frontends.errors import OutputError, PlanError
from frontends.plan.plan_fields import (
    Alternative,
    Collective,
    Conversion,
    Placement,
    PlanFields,
    Stage,
    Stored,
    Transfer,
)
from frontends.plan.schema import wrong_fields
from frontends.program.check import Verification, verify_plan
from frontends.report import diff, explain
from frontends.report.html import plan_html
from frontends.report.text import plan_text

FORMAT = 2
"""Version of the JSON that this module writes; it reads all from 1 on."""


@dataclass(frozen=True, slots=True, repr=False)
class Plan(PlanFields):
    """How one training step runs on a cluster."""

    def __str__(self) -> str:
        return plan_text(self)

    def explain(self, name: str) -> explain.Explanation:
        """Why an operator or a value has its layouts and its stage; see `explain.explain`."""
        return explain.explain(self, name)

    def diff(self, other: Plan) -> diff.Difference:
        """What is different in another plan; see `diff.diff`."""
        return diff.diff(self, other)

    def verify(self) -> Verification:
        """Check that the parts fit together and keep the limits; see `check.verify_plan`."""
        return verify_plan(self)

    def html(self) -> str:
        """The plan as one page that needs nothing else; see `html.plan_html`."""
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
