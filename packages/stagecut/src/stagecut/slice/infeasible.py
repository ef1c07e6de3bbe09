"""The reasons why there is no slicing, or none with some number of stages."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from shardspec.amounts import bytes_text

from stagecut.base.types import Span
from stagecut.errors import InfeasibleStagesError
from stagecut.placement.offers import Places
from stagecut.slice import phrases
from stagecut.slice.arcs import Arcs, Floats
from stagecut.slice.best_paths import best_path, tabulate
from stagecut.slice.bounds import placeable
from stagecut.slice.pipeline_lengths import Lengths
from stagecut.slice.search import Limits

_MOST_SUMS = 2**32
"""The most sums in a table, which take about 10 s; beyond it, reasons come from a relaxed problem.
"""


class Reasons:
    """For each number of stages, the slicing with the smallest peak memory, and why it fails."""

    def __init__(
        self,
        arcs: Arcs,
        limits: Limits,
        span: Callable[[int], Span],
        *,
        are_priced: bool,
    ) -> None:
        """Find these slicings.

        Args:
            arcs: All stages, except for those that are known to have no price.
            limits: The limits that no slicing keeps to.
            span: The stage of an `Arcs.row`.
            are_priced: Whether the memory of every arc is its price's, and not a bound.
        """
        arcs = placeable(Lengths(arcs), *limits.devices)
        if not Lengths(arcs).most_stages():
            arcs = arcs.take(np.zeros(arcs.row.size, dtype=np.bool_))
        self._arcs, self._limits, self._span = arcs, limits, span
        finite = limits.memory_bytes[limits.memory_bytes < math.inf]
        self._most_bytes = float(finite.max(initial=0.0)) if finite.size else math.inf
        # Peaks count as on devices with the most memory, so that one limit tells what fits.
        less = np.where(limits.memory_bytes < math.inf, limits.memory_bytes, self._most_bytes)
        self._missing_bytes = self._most_bytes - less if finite.size else np.zeros_like(less)
        self._counts = range(1, min(Lengths(arcs).most_stages(), limits.in_flight.size) + 1)
        is_exact = arcs.row.size * len(self._counts) * limits.places.n_states <= _MOST_SUMS
        if is_exact:
            self._table = limits.tabulate(arcs, self._peaks, np.maximum, len(self._counts))
        else:
            # The relaxed problem: a submesh takes no devices from the others.
            free = replace(arcs, size=np.zeros_like(arcs.size))
            self._table = tabulate(free, self._peaks, np.maximum, 0, True, len(self._counts))
        self._at_least = "" if is_exact and are_priced else "at least "

    def infeasible(self, counts: Sequence[int] | None) -> InfeasibleStagesError:
        """The error that says why there is no slicing with one of these numbers of stages."""
        allowed = self._counts if counts is None else counts
        peak, n_stages = min(((self._peak(n), n) for n in allowed), default=(math.inf, 0))
        memory_bytes = self._most_bytes
        fit = [
            n for n in self._counts if self._peak(n) <= memory_bytes and self._peak(n) < math.inf
        ]
        others = [n for n in fit if n not in allowed]
        way_out = f"n_stages of {', '.join(map(str, others))} would do" if others else ""
        if peak == math.inf and others:
            return InfeasibleStagesError(
                f"there is no slicing with n_stages={tuple(allowed)} stages; {way_out}"
            )
        if memory_bytes == math.inf or peak == math.inf:
            return InfeasibleStagesError(
                "every slicing of the layers over the cluster has a stage whose cost is None; "
                f"got {len(self._limits.in_flight)} stages at most, "
                f"shapes={self._limits.places.shapes}"
            )
        stage, (first, last, _), missing = self._largest(n_stages)
        skips = (
            " with the values that stages hold for later ones, without which"
            if peak <= memory_bytes
            else ";"
        )
        return InfeasibleStagesError(
            f"no slicing fits in {_size(memory_bytes - missing)} a device{skips} the smallest peak "
            f"is {self._at_least}{_size(peak - missing)} (stage {stage} of {n_stages}, layers "
            f"{first}-{last}); "
            + (way_out or "raise memory_bytes, take more devices, or make microbatches smaller"),
            peak_bytes=int(peak - missing),
            stage=stage,
            layers=(first, last),
        )

    def of_each(self, counts: Sequence[int]) -> Iterator[str]:
        """For each of these numbers of stages, why there is no slicing with it."""
        for n_stages in counts:
            peak = self._peak(n_stages)
            if peak <= self._most_bytes < math.inf:
                yield "memory of what stages keep for later ones"
            elif peak < math.inf:
                stage, _, missing = self._largest(n_stages)
                yield (
                    f"memory of stage {stage}: {self._at_least}"
                    f"{phrases.of(peak - missing, self._most_bytes - missing)}"
                )
            elif not _can_cover(self._limits.places, n_stages):
                yield f"cannot cover {self._limits.places.n_devices} devices"
            else:
                yield "always some stage has no cost"

    def _peaks(self, part: slice) -> Floats:
        held = self._limits.in_flight[: len(self._counts)]
        base_bytes = self._arcs.base_bytes[part] + self._missing_bytes[self._arcs.shape[part]]
        return base_bytes[:, None] + held * self._arcs.activation_bytes[part, None]

    def _peak(self, n_stages: int) -> float:
        return self._table.best(n_stages) if n_stages in self._counts else math.inf

    def _largest(self, n_stages: int) -> tuple[int, Span, float]:
        """The stage that lacks most memory: its number, counted from 0, and its span.

        And how many bytes less its devices have than those with the most.
        """
        path = best_path(self._table, n_stages)
        each = [
            float(self._peaks(slice(arc, arc + 1))[0, n_stages - 1 - stage])
            for stage, arc in enumerate(path.tolist())
        ]
        stage = int(np.argmax(each))
        row, shape = (int(each[path[stage]]) for each in (self._arcs.row, self._arcs.shape))
        return stage, self._span(row), float(self._missing_bytes[shape])


def _can_cover(places: Places, n_stages: int) -> bool:
    """Whether `n_stages` submeshes can be placed together and may be those of all stages."""
    reached = np.zeros(places.n_states + 1, dtype=np.bool_)
    reached[0] = True
    steps = [places.after(h) for h in range(len(places.shapes))]
    for _ in range(n_stages):
        following = np.zeros_like(reached)
        for step in steps:
            following[step[reached[:-1]]] = True
        following[-1] = False  # the entry to which -1, "does not fit", points
        reached = following
    return bool((reached[:-1] & places.complete).any())


def _size(n_bytes: float) -> str:
    return f"{bytes_text(n_bytes)} ({n_bytes:.0f} bytes)"
