"""Closed forms: formulas for the bubble and the peak memory of a schedule.

They assume that all stages take the same time: F for a forward, I and W for the two parts of a
backward (B = I + W for a whole one). There are p ranks with v stages (chunks) each, m microbatches,
and transfers take no time. The bubble of a rank is the time of a step in which it does not compute.
The span bubble leaves out the time before the rank's first action and after its last, where actions
of another step can run; the formula is for the rank where it is largest. Peak activations are for
the rank that holds the most. An activation counts from a forward until its backward or weight
gradient has run, once for each stage.

The formulas are in the files of the generators. If the table of a paper is for one size, or for the
limit of many microbatches, our formula holds for all sizes for which `closed_form` answers; the
tests compare it with the simulator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClosedForm:
    """The bubble and the peak activations of a step of a schedule."""

    bubble_s: float
    """Seconds of the step in which a rank does not compute; equal for all ranks."""
    span_bubble_s: float
    """Seconds between a rank's first and last action in which it does not compute, for the rank
    where they are most."""
    peak_activations: int
    """The most that a rank holds, in microbatches of one stage."""
    source: str
    """Source of the formula; "ours" if no paper has it."""


@dataclass(frozen=True, slots=True)
class StepSizes:
    """The arguments of a closed form, named by the letters of the papers."""

    p: int
    """Number of ranks."""
    v: int
    """Number of stages on each rank."""
    m: int
    """Number of microbatches."""
    f: float
    """Seconds of a stage's forward."""
    i: float
    """Seconds of a stage's input gradient."""
    w: float
    """Seconds of a stage's weight gradient."""


def always(sizes: StepSizes) -> bool:
    """True: the condition of a formula that holds for all sizes and times."""
    return True


@dataclass(frozen=True, slots=True)
class KnownForm:
    """A closed form, and the sizes and times for which it holds."""

    form: Callable[[StepSizes], ClosedForm]
    """The formula."""
    rule: str = "always"
    """The condition in words, such as "W <= F"."""
    holds: Callable[[StepSizes], bool] = always
    """The condition: whether the formula holds for these sizes and times."""


def form_of(
    bubble_s: float, peak_activations: int, source: str, span_bubble_s: float | None = None
) -> ClosedForm:
    """A closed form; the bubble of the span is that of the step unless it is given."""
    span_s = bubble_s if span_bubble_s is None else span_bubble_s
    return ClosedForm(bubble_s, span_s, peak_activations, source)
