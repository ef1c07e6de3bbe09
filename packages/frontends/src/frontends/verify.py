"""Compare what runs with what was promised: losses with one device's, programs with the plan."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from shardspec import Mesh

from frontends.errors import VerificationError
from frontends.plan import Plan
from frontends.step import PHASE_NAMES

if TYPE_CHECKING:
    from frontends.jax.runtime import Runtime


RELATIVE_TOLERANCE = 1e-5
"""Between losses of the parallel and the single-device run, which add float32 in another order."""


def check_losses(parallel: Sequence[float], single: Sequence[float]) -> float:
    """The largest relative difference of two runs' losses, step by step.

    Args:
        parallel: Of the parallel run.
        single: Of the same steps on one device.

    Raises:
        VerificationError: A loss differs by more than `RELATIVE_TOLERANCE`, or is not a number.
    """
    largest = 0.0
    for step, (ours, theirs) in enumerate(zip(parallel, single, strict=True), 1):
        difference = abs(ours - theirs)
        if difference:
            difference = difference / abs(theirs) if theirs else math.inf
        if not difference <= RELATIVE_TOLERANCE:
            raise VerificationError(
                f"the losses of the first {len(single)} steps must equal a single device's to a "
                f"relative {RELATIVE_TOLERANCE:g}; step {step} has {ours!r} instead of {theirs!r}, "
                f"a relative difference of {difference:.2g}"
            )
        largest = max(largest, difference)
    return largest


def planned_collectives(plan: Plan, stage: int, phase: int) -> Counter[tuple[object, ...]]:
    """Kind, groups of device positions and bytes of every collective that a plan names."""
    mesh = plan.stages[stage].mesh
    positions = Mesh(mesh.shape, mesh.axis_names)
    return Counter(
        (c.kind, positions.groups(c.axes), c.n_bytes)
        for c in plan.stages[stage].collectives
        if c.phase == phase
    )


def check_collectives(runtime: Runtime) -> int:
    """Check that the compiled programs communicate exactly what the plan says.

    Returns:
        How many collectives the programs contain.

    Raises:
        VerificationError: Kind, groups, bytes or count differ somewhere.
    """
    from frontends.jax.hlo import collectives_of

    compiled: dict[tuple[int, int], Counter[tuple[object, ...]]] = {}
    for chunk, program in zip(runtime.chunks, runtime.programs, strict=True):
        found = compiled.setdefault((chunk.stage, chunk.phase), Counter())
        found.update(collectives_of(program.as_text()))
    for (stage, phase), found in compiled.items():
        planned = planned_collectives(runtime.plan, stage, phase)
        if found != planned:
            raise VerificationError(
                "compiled programs must communicate what the plan says; "
                f"{PHASE_NAMES[phase]} of stage {stage} has besides the plan "
                f"{dict(found - planned)} and lacks {dict(planned - found)}"
            )
    return sum(sum(found.values()) for found in compiled.values())
