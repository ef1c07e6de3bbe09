"""Compare what runs with what was promised: losses with one device's, programs with the plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from shardspec import Mesh

from frontends.errors import VerificationError
from frontends.plan import Plan
from frontends.step import PHASE_NAMES

if TYPE_CHECKING:
    from frontends.jax.runtime import Runtime


def largest_difference(parallel: Sequence[float], single: Sequence[float]) -> float:
    """The largest relative difference of two runs' losses, step by step."""
    ours, theirs = np.asarray(parallel, np.float64), np.asarray(single, np.float64)
    return float(np.max(np.abs(ours - theirs) / np.abs(theirs), initial=0.0))


def check_losses(
    parallel: Sequence[float], single: Sequence[float], tolerance: float = 1e-5
) -> float:
    """The largest relative difference of the losses.

    Raises:
        VerificationError: It is above `tolerance`, or a loss is not a number.
    """
    difference = largest_difference(parallel, single)
    if not difference <= tolerance:
        raise VerificationError(
            f"the first {len(single)} losses must equal those of one device to {tolerance:g}; "
            f"they differ by {difference:.2g}: parallel {list(parallel)}, single {list(single)}"
        )
    return difference


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
