"""Bubble and peak memory of a schedule, as formulas.

For stages that all take the same time, F for a forward, I and W for the two parts of a backward
(B = I + W for a whole one), on p ranks with v stages (chunks) each, m microbatches and transfers
that take no time. A rank's bubble is the time of a step in which it does not compute; the span's
leaves out what is before its first action and after its last (where another step's can run), and
is given of the rank where it is largest. Peak activations are of the rank that holds the most,
counted from a forward until its backward or weight gradient has run, once for each stage.

The formulas stand beside the generators. Where a paper's table is for one size, or for the limit of
many microbatches, the formula here is for all sizes for which `closed_form` answers; the tests hold
it against the simulator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClosedForm:
    """What a step of a schedule wastes and holds."""

    bubble_s: float
    """Seconds of the step in which a rank does not compute; all ranks have the same."""
    span_bubble_s: float
    """The same between its first and its last action, of the rank where it is largest."""
    peak_activations: int
    """The most that a rank holds, in microbatches of one stage."""
    source: str
    """Whose formula it is; "ours" where no paper has it."""


@dataclass(frozen=True, slots=True)
class StepSizes:
    """What a closed form is of, under the letters of the papers."""

    p: int
    """Ranks."""
    v: int
    """Stages of each."""
    m: int
    """Microbatches."""
    f: float
    """Seconds of a stage's forward."""
    i: float
    """Seconds of its input gradient."""
    w: float
    """Seconds of its weight gradient."""


def always(sizes: StepSizes) -> bool:
    """Of a formula for all sizes and times."""
    return True


@dataclass(frozen=True, slots=True)
class KnownForm:
    """A closed form, and of which sizes and times it is."""

    form: Callable[[StepSizes], ClosedForm]
    rule: str = "always"
    """Of which it is, in words: "W <= F"."""
    holds: Callable[[StepSizes], bool] = always
    """Of which it is."""


def form_of(
    bubble_s: float, peak_activations: int, source: str, span_bubble_s: float | None = None
) -> ClosedForm:
    """A closed form whose span has the bubble of the step, if no other is given."""
    span_s = bubble_s if span_bubble_s is None else span_bubble_s
    return ClosedForm(bubble_s, span_s, peak_activations, source)
