"""How close each schedule comes to the signal bound: a table, and the timelines of one case."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pipesched import Costs, Timeline, delay_weight_gradients, make, plot, simulate

from .cases import Case, gpt, u_transformer

EFFICIENCIES = (0.4, 0.6, 0.8, 1.0)
"""Parts of the GPUs' peak rate. The paper does not say which part is reached in practice; 1.0 is
the hardest case, because shorter computations hide less communication."""

MARKER = "<!-- From here on written by `python integration/figure7`. -->"
_SCHEDULES = ("1F1B, blocking", "1F1B", "eager-1F1B", "delayed")
_HEADS = ("model", "of peak", "forward", "transfer", "signal bound", *_SCHEDULES, "held")


@dataclass(frozen=True, slots=True)
class Result:
    """One case at one efficiency."""

    case: Case
    efficiency: float
    costs: Costs
    bound_s: float
    """The time of the fastest of the schedules below if messages have one byte."""
    timelines: tuple[Timeline, ...]
    """1F1B with blocking sends, 1F1B, eager-1F1B, and eager-1F1B with delayed weight gradients."""

    @property
    def reached(self) -> tuple[float, ...]:
        """The throughput of each timeline, as a part of the bound's."""
        return tuple(self.bound_s / timeline.makespan_s for timeline in self.timelines)


def results() -> Iterator[Result]:
    """Yield the results of all cases at all efficiencies."""
    for case in (gpt(), u_transformer()):
        for efficiency in EFFICIENCIES:
            yield result(case, efficiency)


def result(case: Case, efficiency: float) -> Result:
    """Simulate one case."""
    costs = case.costs(efficiency)
    return Result(
        case,
        efficiency,
        costs,
        min(timeline.makespan_s for timeline in _timelines(case, costs.signal())),
        _timelines(case, costs),
    )


def _timelines(case: Case, costs: Costs) -> tuple[Timeline, ...]:
    plain, eager = (make(name, 2, case.n_microbatches) for name in ("1f1b", "eager-1f1b"))
    return (
        simulate(replace(plain, name="1f1b-blocking"), replace(costs, overlap=False)),
        simulate(plain, costs),
        simulate(eager, costs),
        simulate(replace(delay_weight_gradients(eager, costs), name="eager-1f1b-delayed"), costs),
    )


def table(results: Iterable[Result]) -> str:
    """A table of the throughputs, as parts of the signal bound's."""
    lines = [_row(_HEADS), f"|---|{'--:|' * (len(_HEADS) - 1)}"]
    for one in results:
        forward = " + ".join(f"{1e3 * s:.0f}" for s in one.case.forward_s(one.efficiency))
        held = " · ".join(str(_microbatches_held(timeline)) for timeline in one.timelines[1:])
        cells = [one.case.name, f"{one.efficiency:.0%}", f"{forward} ms"]
        cells += [f"{1e3 * one.case.transfer_s:.0f} ms", f"{one.bound_s:.2f} s"]
        lines.append(_row([*cells, *(f"{part:.1%}" for part in one.reached), held]))
    return "\n".join(lines)


def _microbatches_held(timeline: Timeline) -> int:
    """The most microbatches that any rank holds, from their forward to their weight gradient."""
    curves = timeline.memory()
    return round(max(h.activation_bytes + h.weight_gradient_bytes for c in curves for h in c))


def write(page: Path, picture: Path) -> None:
    """Rewrite the page after the marker, and draw the U-Transformer with 8 microbatches."""
    before, _, _ = page.read_text(encoding="utf-8").partition(MARKER)
    text = f"{before}{MARKER}\n\n{table(results())}\n"
    page.write_text(text, encoding="utf-8")
    plot(result(replace(u_transformer(), n_microbatches=8), 0.8).timelines, picture)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
