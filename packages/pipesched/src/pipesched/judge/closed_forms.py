"""Bubbles and peak memory of the known schedules, as formulas.

For stages that all take the same time, F for a forward, I and W for the two parts of a backward
(B = I + W for a whole one), on p ranks with v stages (chunks) each, m microbatches and transfers
that take no time. A rank's bubble is the time of a step in which it does not compute; the span's
leaves out what is before its first action and after its last (where another step's can run), and
is given of the rank where it is largest. Peak activations are of the rank that holds the most,
counted from a forward until its backward or weight gradient has run, once for each stage.

Where a paper's table is for one size, or for the limit of many microbatches, the formula here is
for all sizes for which `closed_form` answers; the tests hold it against the simulator.

References:
    [G] Huang et al., "GPipe", NeurIPS 2019, section 2.3: O((p - 1) / (m + p - 1)) of the step.
    [N] Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
        Megatron-LM", SC 2021, sections 2.2.1 (1F1B) and 2.2.2 (interleaved).
    [L] Lamy-Poirier, "Breadth-First Pipeline Parallelism", MLSys 2023, section 4.
    [Z] Zhuang et al., "On Optimizing the Communication of Model Parallelism", MLSys 2023, sec. 4.
    [Q] Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, table 2 and section 6.
    [V] Qi et al., "Pipeline Parallelism with Controllable Memory", NeurIPS 2024, table 1.
    [D] DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv 2412.19437, table 2.
    [C] Li, Hoefler, "Chimera", SC 2021, table 2 and section 3.5.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from pipesched.base.checks import is_amount
from pipesched.errors import ArgumentError
from pipesched.generators import make


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
    """Whose formula it is: a key of this module's references; "ours" where no paper has it."""


class _Sizes(NamedTuple):
    p: int
    v: int
    m: int
    f: float
    i: float
    w: float


def closed_form(
    name: str,
    n_stages: int,
    n_microbatches: int,
    *,
    forward_s: float,
    input_gradient_s: float,
    weight_gradient_s: float,
    n_chunks: int | None = None,
) -> ClosedForm:
    """The formula for a schedule, evaluated.

    Args:
        name: One of `pipesched.NAMES`.
        n_stages: As for `pipesched.make`.
        n_microbatches: As for `pipesched.make`.
        forward_s: Seconds of one stage (F).
        input_gradient_s: Seconds of one stage (I).
        weight_gradient_s: Seconds of one stage (W); a whole backward takes both.
        n_chunks: Of "interleaved-1f1b", "looped-bfs" and "inference"; their default if None.

    Raises:
        UnknownScheduleError: No schedule is called `name`.
        ArgumentError: Sizes for which the schedule is not defined, or sizes or times for which it
            has no closed form that we know.

    Examples:
        >>> closed_form(
        ...     "zb-h1", 4, 8, forward_s=1.0, input_gradient_s=1.0, weight_gradient_s=1.0
        ... ).bubble_s
        3.0
    """
    options = {} if n_chunks is None else {"n_chunks": n_chunks}
    p = len(make(name, n_stages, n_microbatches, **options).ranks)
    times = forward_s, input_gradient_s, weight_gradient_s
    if not all(map(is_amount, times)):
        raise ArgumentError(
            f"a time is finite and not negative; got F={times[0]!r}, I={times[1]!r}, W={times[2]!r}"
        )
    sizes = _Sizes(p, n_stages // p, n_microbatches, *times)
    form, rule, holds = _FORMS.get(name, (None, "none is known", _never))
    if form is None or not holds(sizes):
        raise ArgumentError(
            f"a closed form of {name} is known if: {rule}; got p={p}, m={n_microbatches}, "
            f"F={forward_s}, I={input_gradient_s}, W={weight_gradient_s}"
        )
    return form(sizes)


def _never(sizes: _Sizes) -> bool:
    return False


def _always(sizes: _Sizes) -> bool:
    return True


def _equal_times(sizes: _Sizes) -> bool:
    return sizes.f == sizes.i == sizes.w


def _short_weight_gradient(sizes: _Sizes) -> bool:
    return sizes.w <= min(sizes.f, sizes.i)


def _balanced(sizes: _Sizes) -> bool:
    return sizes.w <= sizes.i <= sizes.f <= sizes.i + sizes.w


def _looped_slots(s: _Sizes) -> int:
    """Slots in which a rank waits for its first microbatch, in each chunk too if they are few."""
    return s.p - 1 + (s.v - 1) * max(0, s.p - s.m)


def _of(bubble_s: float, peak: int, source: str, span_s: float | None = None) -> ClosedForm:
    return ClosedForm(bubble_s, bubble_s if span_s is None else span_s, peak, source)


def _gpipe(s: _Sizes) -> ClosedForm:
    return _of((s.p - 1) * (s.f + s.i + s.w), s.m, "G")


def _one_f_one_b(s: _Sizes) -> ClosedForm:
    return _of((s.p - 1) * (s.f + s.i + s.w), min(s.m, s.p), "N")


def _eager_1f1b(s: _Sizes) -> ClosedForm:
    return _of((s.p - 1) * (s.f + s.i + s.w), min(s.m, 2 * s.p - 1), "Z")


def _interleaved_1f1b(s: _Sizes) -> ClosedForm:
    group = -(-s.m // max(1, s.m // s.p))
    peak = min(s.m * s.v, 2 * (s.p - 1) + (s.v - 1) * group + 1)
    return _of(_looped_slots(s) * (s.f + s.i + s.w), peak, "N")


def _looped_bfs(s: _Sizes) -> ClosedForm:
    return _of(_looped_slots(s) * (s.f + s.i + s.w), s.m * s.v, "L")


def _zb_h1(s: _Sizes) -> ClosedForm:
    # [Q] has the case of m >= p, (p - 1) (F + I - W), and in appendix H that of m <= p.
    peak = min(s.m, s.p)
    return _of((s.p - 1) * (s.f + s.i) - (peak - 1) * s.w, peak, "Q")


def _zb_h2(s: _Sizes) -> ClosedForm:
    span_s = s.f + s.i - 2 * s.w
    bubble_s = (s.p - 1) * max(s.f, span_s)
    return _of(bubble_s, 2 * s.p - 1, "Q", span_s=(s.p - 1) * span_s)


def _zb_v(s: _Sizes) -> ClosedForm:
    # [Q] has the case of m >= 2 p - 1: no bubble in the span.
    span = max(0, 4 * (s.p - 1) - 2 * (s.m - 1))
    return _of(max(s.p - 1, span) * s.f, 2 * min(s.m, s.p), "Q", span_s=span * s.f)


def _v_half(s: _Sizes) -> ClosedForm:
    # [V] has the peak for many ranks: half of 1F1B's 2 p.
    odd = s.p % 2
    filling = 4 * s.p - 5 - 2 * max(0, s.m - 2 + odd)
    slots = max(3 * (s.p - 1) - odd, filling) if s.p > 1 else 0
    return _of(slots * s.f, min(2 * s.m, s.p + 2 - odd), "ours")


def _v_min(s: _Sizes) -> ClosedForm:
    # [V] has the peak for many ranks: a third of 1F1B's 2 p.
    longer = 2 if s.p % 3 == 0 and s.m > 1 else 0
    slots = 4 * s.p - 5 + longer if s.p > 1 else 0
    return _of(slots * s.f, min(2 * s.m, 2 * ((s.p + 1) // 3 + 1)), "ours")


def _dualpipe(s: _Sizes) -> ClosedForm:
    # [D] has (p / 2 - 1) (F&B + B - 3 W), with F&B an overlapped pair; here a pair takes F + B,
    # and ranks do not wait for each other between pairs.
    return _of((s.p // 2 - 1) * (s.f + s.i - s.w), s.p + 1, "ours")


def _dualpipe_v(s: _Sizes) -> ClosedForm:
    return _of((s.p - 1) * (s.f + s.i - s.w), 2 * s.p + 1, "ours")


def _chimera(s: _Sizes) -> ClosedForm:
    # [C] has one unit of p microbatches; each more adds what its backwards take longer.
    b = s.i + s.w
    return _of((s.p - 2) * (b + (s.m // s.p - 1) * (b - s.f)), s.p, "C")


def _inference(s: _Sizes) -> ClosedForm:
    # Nothing waits for the last rank, so only F's way to it counts, in the span not at all.
    return _of(_looped_slots(s) * s.f, 1, "ours", span_s=(_looped_slots(s) - s.p + 1) * s.f)


_FORMS: dict[str, tuple[Callable[[_Sizes], ClosedForm], str, Callable[[_Sizes], bool]]] = {
    "gpipe": (_gpipe, "always", _always),
    "1f1b": (_one_f_one_b, "always", _always),
    "eager-1f1b": (_eager_1f1b, "always", _always),
    "interleaved-1f1b": (_interleaved_1f1b, "always", _always),
    "looped-bfs": (_looped_bfs, "always", _always),
    "zb-h1": (_zb_h1, "W <= F and W <= I", _short_weight_gradient),
    "zb-h2": (
        _zb_h2,
        "W <= F, W <= I and m >= 2 p - 1",
        lambda s: _short_weight_gradient(s) and s.m >= 2 * s.p - 1,
    ),
    "zb-v": (_zb_v, "F = I = W", _equal_times),
    "v-half": (_v_half, "F = I = W", _equal_times),
    "v-min": (_v_min, "F = I = W", _equal_times),
    "dualpipe": (_dualpipe, "W <= I <= F <= I + W", _balanced),
    "dualpipe-v": (_dualpipe_v, "W <= I <= F <= I + W", _balanced),
    "chimera": (
        _chimera,
        "m is a multiple of p, and F <= I + W",
        lambda s: s.m % s.p == 0 and s.f <= s.i + s.w,
    ),
    "inference": (_inference, "always", _always),
}
