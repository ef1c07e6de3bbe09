"""Compare a parallel run with one device, and its programs with the plan."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from autoshard import opposite_pairs
from shardspec import Mesh

from frontends.answer.plan import Plan
from frontends.errors import VerificationError
from frontends.plan.plan_fields import Collective
from frontends.step.step import TrainingStep

RELATIVE_TOLERANCE = 1e-5
"""Tolerance between losses of the parallel and the single-device run in float32, which is summed in
another order."""

SPACING = {
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    "float8_e4m3fn": 2.0**-3,
    "float8_e5m2": 2.0**-2,
}
"""Machine epsilon (from 1 to the next number) of the types that are coarser than
`RELATIVE_TOLERANCE`."""

MEMORY_TOLERANCE = 0.15
"""How much more memory than planned, relative to the plan, a program may need."""


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of a comparison that found no differences beyond rounding."""

    n_steps: int
    others: str
    """What messages call the same steps on one device: `eager ones`."""

    results: float
    """The largest relative difference of a number that the step returns."""

    tolerance: float
    """The largest difference that is allowed for the types that the step computes in."""

    state: float
    """The largest relative difference, in the norm, of a kind of state afterwards, such as all
    parameters. Single tensors are not compared: gradients of some are zero except for rounding."""

    n_collectives: int
    """The number of collectives that ran or were compiled, all as planned."""

    def __str__(self) -> str:
        return (
            f"ok: {self.n_steps} steps return what {self.others} do ({self.results:.1e}), and "
            f"leave the same state ({self.state:.1e})\n"
            f"ok: collectives are those of the plan ({self.n_collectives:,})"
        )


def tolerance_of(dtypes: Iterable[str]) -> float:
    """The relative difference that is allowed between the losses of two runs.

    Sums in another order round differently. Twice the epsilon of the coarsest type is allowed: a
    loss may be rounded to that type, and be a sum over microbatches of losses that were.

    Args:
        dtypes: The types of all values that are computed.

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
        parallel: The losses of the parallel run.
        single: The losses of the same steps on one device.
        tolerance: The relative difference that is allowed; see `tolerance_of`.

    Raises:
        VerificationError: A loss differs by more than that, or is NaN.
    """
    largest = 0.0
    for step, (loss, expected) in enumerate(zip(parallel, single, strict=True), 1):
        difference = abs(loss - expected)
        if difference:
            difference = difference / abs(expected) if expected else math.inf
        if not difference <= tolerance:
            raise VerificationError(
                f"the losses of the first {len(single)} steps must equal a single device's to a "
                f"relative {tolerance:g}; step {step} has {loss!r} instead of {expected!r}, "
                f"a relative difference of {difference:.2g}"
            )
        largest = max(largest, difference)
    return largest


def check_comparable(step: TrainingStep) -> None:
    """Check that a step computes what one device computes.

    Raises:
        VerificationError: Microbatches use statistics of their own.
    """
    if step.has_statistics:
        raise VerificationError(
            "a run is compared with a step on the whole batch; this one takes statistics of each "
            f"of {step.microbatches} microbatches, as microbatch_statistics=True asks for: verify "
            "with microbatches=1, or compare with the mean over the microbatches yourself"
        )


def check_results(
    parallel: Sequence[Sequence[float]], single: Sequence[Sequence[float]], tolerance: float
) -> float:
    """The largest relative difference of the numbers that steps return; see `check_losses`.

    Args:
        parallel: By step, the numbers of the parallel run.
        single: By step, the numbers on one device.
        tolerance: The relative difference that is allowed.
    """
    pairs = zip(zip(*parallel, strict=True), zip(*single, strict=True), strict=True)
    return max((check_losses(*pair, tolerance) for pair in pairs), default=0.0)


def state_difference(differences: Iterable[tuple[str, float, float]]) -> float:
    """The largest relative difference of a kind of state, in the norm.

    Args:
        differences: For each tensor its kind, and two sums of squares: that of the difference, and
            that of the expected tensor.
    """
    squares: dict[str, tuple[float, float]] = {}
    for kind, off, whole in differences:
        so_far = squares.get(kind, (0.0, 0.0))
        squares[kind] = so_far[0] + off, so_far[1] + whole
    return max((math.sqrt(off / (whole or 1.0)) for off, whole in squares.values()), default=0.0)


def planned_collectives(
    plan: Plan, stage: int, phases: Collection[int]
) -> Counter[tuple[object, ...]]:
    """Counts of a stage's planned collectives, by kind, groups of device positions, and bytes."""
    mesh = plan.stages[stage].mesh
    positions = Mesh(mesh.shape, mesh.axis_names)

    def groups(c: Collective) -> tuple[tuple[int, ...], ...]:
        along = positions.groups(c.axes)
        return opposite_pairs(along) if c.group_size < len(along[0]) else along

    return Counter(
        (c.kind, in_order(groups(c)), c.n_bytes)
        for c in plan.stages[stage].collectives
        if c.phase in phases
    )


def in_order(groups: Iterable[Iterable[int]]) -> tuple[tuple[int, ...], ...]:
    """Groups of devices, each in increasing order, and these in the order of their first."""
    return tuple(sorted(tuple(sorted(group)) for group in groups))
