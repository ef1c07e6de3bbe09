"""What the script of a plan's page draws, as JSON: the pipeline, and who holds what of a tensor."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from autoshard import Sharding
from shardspec import Layout, Mesh, Spec

from frontends.plan.plan_fields import PlanFields
from frontends.report.numbered import Numbered
from frontends.report.page_timeline import timeline_data
from frontends.step.step import PHASE_NAMES

MOST_DEVICES = 1024
"""Of a stage with more devices, the page does not say who holds which part of a tensor."""


def page_data(plans: Sequence[PlanFields]) -> str:
    """The JSON text for a page of these plans; it can stand in HTML and XML as it is."""
    document = []
    for plan in plans:
        names: Numbered[str] = Numbered()
        parts = {"timeline": timeline_data(plan, names), "tensors": _tensors(plan, names)}
        document.append({**parts, "names": named(names)})
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def named(names: Iterable[str]) -> dict[str, list[Any]]:
    """Names as texts and numbers: `add.12` and `add.13` share their beginning."""
    stems: Numbered[str] = Numbered()
    numbers: list[int] = []
    for name in names:
        stem, dot, digits = name.rpartition(".")
        is_number = dot and digits.isascii() and digits.isdigit() and str(int(digits)) == digits
        numbers += (stems[stem], int(digits)) if is_number else (stems[name], -1)
    return {"stems": [*stems], "numbers": numbers}


def _tensors(plan: PlanFields, names: Numbered[str]) -> Any:
    """Every value of every stage with its layouts, and who holds which part in each layout.

    A value of a stage is its name, as the difference from the one before; its role; its layout; and
    the number of layouts that it is converted to, and for each of these phase and layout.
    """
    roles: Numbered[str] = Numbered()
    layouts: Numbered[_Key] = Numbered()
    stages = []
    for stage in plan.stages:
        mesh, last = stage.mesh, 0
        values: list[int] = []
        for name, role, kept, read in _values(stage.sharding):
            number = names[name]
            values += (number - last, roles[role], layouts[*kept, mesh.shape], len(read))
            for phase, spec in read:
                values += (phase, layouts[*kept[:-1], spec, mesh.shape])
            last = number
        where = {"devices": [*mesh.device_ids], "shape": mesh.shape, "axes": mesh.axis_names}
        stages.append({**where, "values": values})
    return {
        "roles": [*roles],
        "phases": PHASE_NAMES,
        "layouts": [_layout(*key) for key in layouts],
        "stages": stages,
    }


_Kept = tuple[tuple[int, ...], str, int, Spec]
"""Shape, dtype, bytes of an element, and spec of a tensor."""

_Key = tuple[tuple[int, ...], str, int, Spec, tuple[int, ...]]
"""The same, and the shape of a mesh."""


def _values(
    sharding: Sharding | None,
) -> Iterator[tuple[str, str, _Kept, list[tuple[int, Spec]]]]:
    """Name, role, layout, and what it is converted to, in which phase, of each value of a stage."""
    if sharding is None:
        return
    graph = sharding.graph
    converted: dict[str, dict[tuple[int, Spec], None]] = defaultdict(dict)
    for conversion in sharding.conversions:
        converted[conversion.value][conversion.phase, conversion.dst] = None
    found = [
        (name, spec, graph.value(name).role.replace("_", " "))
        for name, spec in sharding.input_specs
    ]
    for op, strategy in zip(graph.operators, sharding.strategies, strict=True):
        role = f"made in {PHASE_NAMES[op.phase]}"
        found += [
            (n, spec, role) for n, spec in zip(op.outputs, strategy.result_specs, strict=True)
        ]
    for name, spec, role in found:
        value = graph.value(name)
        kept = (value.shape, value.dtype, value.itemsize, spec)
        yield name, role, kept, [*converted[name]]


def _layout(
    shape: tuple[int, ...], dtype: str, itemsize: int, spec: Spec, mesh_shape: tuple[int, ...]
) -> Any:
    """A layout: what it is called, and the part of each dim that each device of a mesh holds."""
    mesh = Mesh(mesh_shape, tuple(f"a{axis}" for axis in range(len(mesh_shape))))
    layout = Layout(shape, mesh, spec)
    facts = {
        "spec": str(spec),
        "shape": shape,
        "dtype": dtype,
        "bytes": layout.local_bytes(itemsize),
        "isSum": bool(spec.partial),
    }
    if mesh.size > MOST_DEVICES or not all(shape):
        return facts
    dims = []
    for dim, entries in enumerate(spec.dims):
        if not entries:
            continue
        runs = [layout.runs(device)[dim] for device in range(mesh.size)]
        cuts: Numbered[tuple[tuple[int, int], ...]] = Numbered()
        who = [cuts[tuple((start, stop) for start, stop in run)] for run in runs]
        dims.append([dim, [*cuts], who])
    return {**facts, "dims": dims}
