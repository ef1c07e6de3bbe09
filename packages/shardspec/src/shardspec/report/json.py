"""Layouts and plans as plain dicts and lists, for JSON."""

from typing import Any

from shardspec.layout.layout import Layout
from shardspec.report.phrases import axis_text
from shardspec.resharding.step import ReshardPlan


def layout_record(layout: Layout, itemsize: int | None = None) -> dict[str, Any]:
    """A layout, and what every device holds: the intervals of each dim.

    Examples:
        >>> from shardspec import Mesh, Spec
        >>> record = layout_record(Layout((4,), Mesh((2,), ("x",)), Spec.parse("S0")), itemsize=4)
        >>> record["devices"][1]
        {'id': 1, 'coordinates': [1], 'intervals': [[[2, 4]]], 'local_shape': [2], 'local_bytes': 8}
    """
    mesh = layout.mesh
    return {
        "shape": list(layout.shape),
        "mesh": _mesh_record(layout),
        "spec": str(layout.spec),
        "chunking": [list(r) if isinstance(r, tuple) else r for r in layout.rules],
        "partial": [{"axis": axis_text(mesh, p.axis), "kind": p.kind} for p in layout.spec.partial],
        "replica_groups": [list(group) for group in layout.replica_groups()],
        "devices": [_device_record(layout, device, itemsize) for device in mesh.device_ids],
    }


def plan_record(plan: ReshardPlan, itemsize: int | None = None) -> dict[str, Any]:
    """A plan: its steps, what they move and hold; amounts are in elements without an itemsize."""
    unit = 1 if itemsize is None else itemsize
    mesh = plan.src.mesh
    return {
        "shape": list(plan.src.shape),
        "mesh": _mesh_record(plan.src),
        "src": str(plan.src.spec),
        "dst": str(plan.dst.spec),
        "unit": "elements" if itemsize is None else "bytes",
        "steps": [
            {
                "kind": step.kind,
                "axes": [axis_text(mesh, axis) for axis in step.axes],
                "dim": step.dim,
                "to_dim": step.to_dim,
                "reduction": step.reduction,
                "src": str(step.src.spec),
                "dst": str(step.dst.spec),
                "groups": [list(group) for group in step.groups],
                "total": step.total_bytes(unit),
                "received": step.received_bytes(unit),
                "largest_shard": step.dst.local_bytes(unit),
            }
            for step in plan.steps
        ],
        "total": plan.total_bytes(unit),
        "lower_bound": plan.lower_bound_bytes(unit),
        "received": plan.received_bytes(unit),
        "peak": plan.peak_bytes(unit),
    }


def _mesh_record(layout: Layout) -> dict[str, Any]:
    mesh = layout.mesh
    return {
        "axes": dict(zip(mesh.axis_names, mesh.shape, strict=True)),
        "device_ids": list(mesh.device_ids),
    }


def _device_record(layout: Layout, device: int, itemsize: int | None) -> dict[str, Any]:
    record: dict[str, Any] = {
        "id": device,
        "coordinates": list(layout.mesh.coordinates(device)),
        "intervals": [[list(run) for run in of_dim] for of_dim in layout.runs(device)],
        "local_shape": list(layout.local_shape(device)),
    }
    if itemsize is not None:
        record["local_bytes"] = layout.local_bytes(itemsize, device)
    return record
