"""Compare what runs with what was promised: losses with one device's, programs with the plan."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from shardspec import Mesh

from frontends.errors import VerificationError
from frontends.live import Peaks, peaks_of
from frontends.plan import Plan
from frontends.report import format_bytes
from frontends.step import PHASE_NAMES

if TYPE_CHECKING:
    from frontends.jax.runtime import Runtime


RELATIVE_TOLERANCE = 1e-5
"""Between losses of the parallel and the single-device run, which add float32 in another order."""

SPACING = {
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    "float8_e4m3fn": 2.0**-3,
    "float8_e5m2": 2.0**-2,
}
"""From 1 to the next number, of the types whose rounding is more than `RELATIVE_TOLERANCE`."""

MEMORY_TOLERANCE = 0.15
"""By which what runs may need more memory than was planned."""


def tolerance_of(dtypes: Iterable[str]) -> float:
    """How far the losses of two runs may be apart that compute in some types.

    Sums in another order round differently. Twice the spacing of numbers in the coarsest type is
    allowed: a loss may be rounded to it, and be a sum over microbatches of what was.

    Args:
        dtypes: Of all that is computed.

    Examples:
        >>> tolerance_of(["float32", "int64"])
        1e-05
        >>> tolerance_of(["float32", "bfloat16"])  # as under autocast
        0.015625
    """
    return 2 * max((SPACING.get(dtype, 0.0) for dtype in dtypes), default=0.0) or RELATIVE_TOLERANCE


def check_losses(
    parallel: Sequence[float], single: Sequence[float], tolerance: float = RELATIVE_TOLERANCE
) -> float:
    """The largest relative difference of two runs' losses, step by step.

    Args:
        parallel: Of the parallel run.
        single: Of the same steps on one device.
        tolerance: Of the types that they compute in: see `tolerance_of`.

    Raises:
        VerificationError: A loss differs by more than that, or is not a number.
    """
    largest = 0.0
    for step, (ours, theirs) in enumerate(zip(parallel, single, strict=True), 1):
        difference = abs(ours - theirs)
        if difference:
            difference = difference / abs(theirs) if theirs else math.inf
        if not difference <= tolerance:
            raise VerificationError(
                f"the losses of the first {len(single)} steps must equal a single device's to a "
                f"relative {tolerance:g}; step {step} has {ours!r} instead of {theirs!r}, "
                f"a relative difference of {difference:.2g}"
            )
        largest = max(largest, difference)
    return largest


def planned_collectives(
    plan: Plan, stage: int, phases: Collection[int]
) -> Counter[tuple[object, ...]]:
    """Kind, groups of device positions and bytes of every collective that a plan names."""
    mesh = plan.stages[stage].mesh
    positions = Mesh(mesh.shape, mesh.axis_names)
    return Counter(
        (c.kind, positions.groups(c.axes), c.n_bytes)
        for c in plan.stages[stage].collectives
        if c.phase in phases
    )


def check_collectives(runtime: Runtime) -> int:
    """Check that the compiled programs communicate exactly what the plan says.

    Returns:
        How many collectives the programs contain; of this process, where there are several.

    Raises:
        VerificationError: Kind, groups, bytes or count differ somewhere.
    """
    from frontends.jax.hlo import collectives_of

    # A backward may be in two chunks, one of them with forward: all of these are counted together.
    by_length = sorted(runtime.chunks, key=lambda chunk: len(chunk.phases))
    together = {(c.stage, phase): c.phases for c in by_length for phase in c.phases}
    compiled: dict[tuple[int, tuple[int, ...]], Counter[tuple[object, ...]]] = {}
    for chunk, program in zip(runtime.chunks, runtime.programs, strict=True):
        if program is None:  # another process runs and checks it
            continue
        phases = together[chunk.stage, chunk.phase]
        found = compiled.setdefault((chunk.stage, phases), Counter())
        found.update(collectives_of(program.as_text()))
    for (stage, phases), found in compiled.items():
        planned = planned_collectives(runtime.plan, stage, phases)
        if found != planned:
            names = " and ".join(PHASE_NAMES[phase] for phase in phases)
            raise VerificationError(
                "compiled programs must communicate what the plan says; "
                f"{names} of stage {stage} has besides the plan "
                f"{dict(found - planned)} and lacks {dict(planned - found)}"
            )
    return sum(sum(found.values()) for found in compiled.values())


def measured_peaks(runtime: Runtime) -> Peaks:
    """The most that each device holds while a step runs, by XLA's account of its programs.

    What lies between the instructions is counted from shapes; what a program takes besides its
    operands is what XLA has laid out: temporaries, and results that lie over no operand.
    """

    def program_bytes(index: int) -> int:
        if runtime.programs[index] is None:  # another process runs it
            return 0
        found = runtime.programs[index].memory_analysis()
        new = found.output_size_in_bytes - found.alias_size_in_bytes
        return int(found.temp_size_in_bytes + new)

    return peaks_of(runtime.step, runtime.plan, donate=runtime.donate, program_bytes=program_bytes)


def check_memory(runtime: Runtime) -> float:
    """Check that the compiled programs need no more memory than was planned.

    Args:
        runtime: One whose state is given away: a plan has no room for the state of before.

    Returns:
        The largest share of a stage's planned memory that is needed.

    Raises:
        VerificationError: A stage needs more than `MEMORY_TOLERANCE` above its plan.
    """
    largest = 0.0
    stages = zip(runtime.plan.stages, measured_peaks(runtime).stages, strict=True)
    for index, (stage, peak) in enumerate(stages):
        largest = max(largest, peak.n_bytes / stage.memory_bytes)
        if largest > 1 + MEMORY_TOLERANCE:
            raise VerificationError(
                f"compiled programs must need at most {MEMORY_TOLERANCE:.0%} more memory than was "
                f"planned; stage {index} needs {format_bytes(peak.n_bytes)} in {peak.when}, and "
                f"{format_bytes(stage.memory_bytes)} were planned"
            )
    return largest
