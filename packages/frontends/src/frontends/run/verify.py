"""Compare what runs with what was promised: losses with one device's, programs with the plan."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from shardspec import Mesh

from frontends.answer.plan import Plan
from frontends.errors import VerificationError

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


@dataclass(frozen=True, slots=True)
class Verified:
    """What was compared, and held."""

    n_steps: int
    others: str
    """What the same steps of one device are called: `eager ones`."""

    results: float
    """The largest relative difference of a number that the step returns."""

    tolerance: float
    """What that difference may be, in the types that the step computes in."""

    state: float
    """The largest relative difference of a kind of state afterwards, such as all parameters, in the
    norm. Of single tensors some have gradients that are zero but for rounding."""

    n_collectives: int
    """How many ran or were compiled, all as planned."""

    def __str__(self) -> str:
        return (
            f"ok: {self.n_steps} steps return what {self.others} do ({self.results:.1e}), and "
            f"leave the same state ({self.state:.1e})\n"
            f"ok: collectives are those of the plan ({self.n_collectives:,})"
        )


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


def check_results(
    parallel: Sequence[Sequence[float]], single: Sequence[Sequence[float]], tolerance: float
) -> float:
    """The largest relative difference of the numbers that steps return, as `check_losses` says.

    Args:
        parallel: By step, the numbers of the parallel run.
        single: Those of the same steps on one device.
        tolerance: As there.
    """
    pairs = zip(zip(*parallel, strict=True), zip(*single, strict=True), strict=True)
    return max((check_losses(*pair, tolerance) for pair in pairs), default=0.0)


def state_difference(differences: Iterable[tuple[str, float, float]]) -> float:
    """The largest relative difference of a kind of state, in the norm.

    Args:
        differences: For each tensor its kind, and sums of squares: of the difference, of the tensor
            as it should be.
    """
    squares: dict[str, tuple[float, float]] = {}
    for kind, off, whole in differences:
        so_far = squares.get(kind, (0.0, 0.0))
        squares[kind] = so_far[0] + off, so_far[1] + whole
    return max((math.sqrt(off / (whole or 1.0)) for off, whole in squares.values()), default=0.0)


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
