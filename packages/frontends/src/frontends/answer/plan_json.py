"""Write a plan as JSON, and read it in this format and all earlier ones.

Format 3 has the shardings of all stages in one document, `shardings`, which has the cluster, and
everything that operators share, once. A stage has the index of its sharding there, and does not
repeat the layouts of its operators. So a plan that was read can explain, check and draw itself
without the step that it was made for. In format 2, every stage has a sharding of its own; in format
1, none has. A plan that computes activations again is in format 4, which has `remat` besides, and
one with padded microbatches in format 5, which has `padded_to`, too. If layers differ in what they
compute again, it is in format 6, which has `remat_of_layers`; if stages are on devices with unlike
memory, in format 7, which has `memory_limits`; of a step in two passes, in format 8, which has
`first_pass_s`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any, TypeVar

from autoshard import AutoshardError, Sharding, shardings_from_json, shardings_to_json
from shardspec import Mesh, ShardspecError, Spec

from frontends.errors import PlanError
from frontends.plan.plan_fields import (
    Alternative,
    Collective,
    Conversion,
    PlanFields,
    ShardedOperator,
    Stage,
    Stored,
    Transfer,
    placements_of,
)
from frontends.plan.schema import wrong_fields

P = TypeVar("P", bound=PlanFields)

FORMAT = 8
"""Latest version of the JSON; all versions from 1 on can be read."""

_LATER: dict[str, tuple[int, Any]] = {
    "remat": (4, "none"),
    "padded_to": (5, 0),
    "remat_of_layers": (6, []),
    "memory_limits": (7, []),
    "first_pass_s": (8, 0.0),
}
"""By field that formats after 3 have: the first of these, and the value that plans have that are
written in earlier formats, so that older releases read them."""


def write(plan: PlanFields) -> str:
    """The JSON text of a plan."""
    shardings = [stage.sharding for stage in plan.stages if stage.sharding is not None]
    data = _encode(plan)
    places = iter(range(len(shardings)))
    for stage, entry in zip(plan.stages, data["stages"], strict=True):
        if stage.sharding is not None:
            entry["sharding"] = next(places)
            if stage.placements == placements_of(stage.sharding):
                entry["placements"] = None
    version = max([3, *(v for name, (v, usual) in _LATER.items() if data[name] != usual)])
    for name, (since, _) in _LATER.items():
        if since > version:
            del data[name]
    return json.dumps(
        {"format": version, **data, "shardings": json.loads(shardings_to_json(shardings))},
        separators=(",", ":"),
    )


def read(of: type[P], text: str) -> P:
    """The plan in a JSON text, as an instance of class `of`.

    Raises:
        PlanError: The text is no plan, or a plan in a newer format.
    """
    try:
        data = json.loads(text)
        version = data.pop("format")
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise PlanError(f"a plan is a JSON object with a format number; got {error}") from error
    if type(version) is int and version > FORMAT:
        raise PlanError(
            f"this plan was written by a newer frontends, in format {version}; this one reads "
            f"formats 1 to {FORMAT}: update frontends, or plan again"
        )
    if type(version) is not int or version < 1:
        raise PlanError(
            f"this frontends reads plans of formats 1 to {FORMAT}; got format {version!r}: plan "
            "again"
        )
    try:
        plan = of(**_decode_plan(data, version))
    except (
        AttributeError,
        IndexError,
        KeyError,
        RecursionError,
        TypeError,
        ValueError,
        AutoshardError,
        ShardspecError,
    ) as error:
        raise PlanError(f"the plan is damaged: {type(error).__name__} {error}") from error

    for wrong in wrong_fields(plan):
        raise PlanError(f"the plan is damaged: {wrong}")
    return plan


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
        return None  # all shardings are written together
    if dataclasses.is_dataclass(value):
        return {f.name: _encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    return value


def _decode_plan(data: dict[str, Any], version: int) -> dict[str, Any]:
    if version >= 3:
        shardings = shardings_from_json(json.dumps(data.pop("shardings")))
        _decode_places(data["stages"], shardings)
    for stage in data["stages"] if version == 2 else ():
        if stage["sharding"] is not None:
            stage["sharding"] = Sharding.from_json(json.dumps(stage["sharding"]))
    data["stages"] = tuple(_decode_stage(stage) for stage in data["stages"])
    data["transfers"] = tuple(
        Transfer(**_specs(item, "src_spec", "dst_spec")) for item in data["transfers"]
    )
    data["unsharded"] = tuple(data["unsharded"])
    for name in ("remat_of_layers", "memory_limits"):
        data[name] = tuple(data.get(name, ()))
    data["alternatives"] = tuple(Alternative(**item) for item in data["alternatives"])
    data["options"] = tuple((name, value) for name, value in data.get("options", ()))
    return data


def _decode_places(stages: Sequence[dict[str, Any]], shardings: Sequence[Sharding]) -> None:
    """Replace the index of each stage's sharding by the sharding."""
    places = [stage["sharding"] for stage in stages if stage["sharding"] is not None]
    if places != [*range(len(shardings))]:
        raise ValueError(f"its stages have the {len(shardings)} shardings in order; got {places}")
    for stage in stages:
        if stage["sharding"] is not None:
            stage["sharding"] = shardings[stage["sharding"]]


def _decode_stage(data: dict[str, Any]) -> Stage:
    mesh = data["mesh"]
    data["mesh"] = Mesh(tuple(mesh["shape"]), tuple(mesh["axis_names"]), tuple(mesh["device_ids"]))
    for side in ("inputs", "outputs"):
        data[side] = tuple(Stored(**_specs(item, "spec")) for item in data[side])
    if data["placements"] is None:
        data["placements"] = placements_of(data["sharding"])
    else:
        data["placements"] = tuple(
            ShardedOperator(
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
    return Stage(**data)


def _specs(data: dict[str, Any], *names: str) -> dict[str, Any]:
    return {**data, **{name: Spec.parse(data[name]) for name in names}}
