"""Check the types and ranges of a plan's fields, for plans that are read from a file.

This covers what printing, drawing and checking a plan rely on; `frontends.program.check` checks
that its parts fit together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from frontends.plan.plan_fields import (
    Alternative,
    Collective,
    Conversion,
    PlanFields,
    ShardedOperator,
    Stage,
    Stored,
    Transfer,
)
from frontends.step.step import PHASE_NAMES

_TYPES = {
    kind: get_type_hints(kind)
    for kind in (
        PlanFields,
        Stage,
        Stored,
        ShardedOperator,
        Conversion,
        Collective,
        Transfer,
        Alternative,
    )
}
_NAMES = {int: "a number from 0 on", float: "a finite number from 0 on", str: "text"}


def wrong_fields(plan: PlanFields) -> Iterator[str]:
    """A message for each wrong field, which begins with the field's path."""
    wrong = list(_wrong_types(plan, ""))
    yield from wrong
    if wrong:
        return  # the checks below rely on the types
    if not plan.stages:
        yield "stages is empty, and a plan has one at least"
    if plan.microbatches < 1:
        yield f"microbatches is {plan.microbatches}, and a step has one at least"
    n_layers = max((stage.last_layer for stage in plan.stages), default=-1) + 1
    if len(plan.remat_of_layers) not in (0, n_layers):
        yield f"remat_of_layers has {len(plan.remat_of_layers)} layers, and the plan {n_layers}"
    if len(plan.memory_limits) not in (0, len(plan.stages)):
        yield f"memory_limits has {len(plan.memory_limits)} stages, and the plan {len(plan.stages)}"
    if plan.memory_limits and plan.memory_limit_bytes != max(plan.memory_limits):
        yield (
            f"memory_limit_bytes is {plan.memory_limit_bytes}, and the largest of memory_limits "
            f"is {max(plan.memory_limits)}"
        )
    for index, stage in enumerate(plan.stages):
        for name in ("placements", "conversions", "collectives"):
            for i, part in enumerate(getattr(stage, name)):
                if part.phase >= len(PHASE_NAMES):
                    yield f"stages[{index}].{name}[{i}].phase is {part.phase}, which is none"
        for i, collective in enumerate(stage.collectives):
            if not all(axis < stage.mesh.ndim for axis in collective.axes):
                yield (
                    f"stages[{index}].collectives[{i}].axes is {collective.axes}, and the stage's "
                    f"mesh has {stage.mesh.ndim} axes"
                )
    for i, transfer in enumerate(plan.transfers):
        if max(transfer.source, transfer.destination) >= len(plan.stages):
            yield (
                f"transfers[{i}] is from stage {transfer.source} to {transfer.destination}, and "
                f"there are {len(plan.stages)}"
            )


def _wrong_types(value: Any, path: str) -> Iterator[str]:
    fields = _TYPES[PlanFields if isinstance(value, PlanFields) else type(value)]
    for name, expected in fields.items():
        yield from _wrong(getattr(value, name), expected, f"{path}.{name}" if path else name)


def _wrong(value: Any, expected: Any, path: str) -> Iterator[str]:
    origin, arguments = get_origin(expected), get_args(expected)
    if origin is tuple:
        if not isinstance(value, tuple):
            yield f"{path} is {value!r}, and should be a list"
            return
        for i, item in enumerate(value):
            yield from _wrong(item, arguments[0], f"{path}[{i}]")
    elif origin in (UnionType, Union):  # every union in a plan is of None and one other type
        if value is not None:
            (other,) = (each for each in arguments if each is not NoneType)
            yield from _wrong(value, other, path)
    elif origin is Literal:
        if value not in arguments:
            yield f"{path} is {value!r}, and should be one of {', '.join(arguments)}"
    elif expected in _NAMES:
        if not _fits(value, expected):
            yield f"{path} is {value!r}, and should be {_NAMES[expected]}"
    elif expected in _TYPES:
        yield from _wrong_types(value, path)


def _fits(value: Any, expected: type) -> bool:
    if expected is str:
        return isinstance(value, str)
    if type(value) is float:
        return expected is float and math.isfinite(value) and value >= 0
    return type(value) is int and value >= 0
