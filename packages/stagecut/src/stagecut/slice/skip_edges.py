"""Slicings with values that skip stages: a depth-first branch and bound over pipelines.

A stage that reads a value from an earlier stage than the previous one receives it from the stage
that produced it, which holds the value until then. The time of this transfer, and the memory of the
held value, depend on stages that no state of the dynamic program contains. So the dynamic program
assumes that such a value comes from the submesh that sends it fastest, and that nothing is held:
its result is a lower bound. A depth-first search then builds pipelines stage by stage, with all
earlier stages known. It uses the lower bound from each node to the end, and continues only where
the bound is below the time of the best pipeline so far.
"""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from stagecut.errors import UnfinishedSearchError
from stagecut.slice.arcs import Arcs
from stagecut.slice.best_paths import Onward
from stagecut.slice.search import FoundSlicing, Limits, lengths_within, promising, shortest_step
from stagecut.slice.transfers import StageNetwork

MOST_STEPS = 20_000
"""How many stages the search places before it returns the best slicing so far: some seconds. The
limit is a number of steps and not a time, so that equal input gives equal output."""


def shortest_with_skips(
    arcs: Arcs, limits: Limits, network: StageNetwork, counts: Sequence[int] | None, gap: float
) -> tuple[FoundSlicing | None, float]:
    """The slicing with the shortest step, and a lower bound of the shortest step.

    Args:
        arcs: The stages to choose from, as `network` makes them.
        limits: The cluster and the memory that the stages must fit.
        network: Knows which stage sends what to which.
        counts: Numbers of stages that the slicing may have, ascending; None for any.
        gap: The slicing may take up to `1 + gap` times as long as the shortest.

    Returns:
        The slicing, or None if there is none; and the lower bound. The bound is the slicing's time
        over `1 + gap`, or less if the search ended early.

    Raises:
        UnfinishedSearchError: The search ended early, before it found a slicing.
    """
    if limits.has_memory and counts is None:
        counts = range(1, limits.in_flight.size + 1)  # memory depends on how many stages follow
    search = _Search(limits, network, gap)
    bound_s = math.inf
    for count in [None] if counts is None else [(each,) for each in counts]:
        relaxed = shortest_step(arcs, limits, count)
        if relaxed is None or relaxed.time_s >= search.target_s:
            continue
        bound_s = min(bound_s, relaxed.time_s)
        search.among(arcs.take(np.isin(arcs.row, relaxed.rows)), count)
        if relaxed.time_s < search.target_s:
            search.among(promising(arcs, limits, count, search.target_s), count)
    if search.n_steps < MOST_STEPS:
        bound_s = search.target_s
    elif not search.rows:
        raise UnfinishedSearchError(
            "no slicing with memory for all values that skip stages was found in "
            f"{MOST_STEPS} steps, though there may be one; "
            f"got memory_bytes={limits.memory_bytes.min():.0f}: raise it or give n_stages"
        )
    slicing = FoundSlicing(search.rows, search.time_s) if search.rows else None
    return slicing, min(bound_s, search.target_s)


class _Search:
    """The best pipeline so far, and the search for better ones."""

    def __init__(self, limits: Limits, network: StageNetwork, gap: float) -> None:
        self.time_s, self.rows, self.n_steps = math.inf, tuple[int, ...](), 0
        self._limits, self._network, self._gap = limits, network, gap

    @property
    def target_s(self) -> float:
        """A pipeline must take less time than this to be worth keeping."""
        return self.time_s / (1 + self._gap)

    def among(self, arcs: Arcs, counts: Sequence[int] | None) -> None:
        """Look for a better pipeline among the stages of `arcs`."""
        lengths = lengths_within(arcs, self._limits, counts)
        if not lengths.counts:
            return
        values = partial(lengths.stages, weight=arcs.time_s)
        table = self._limits.tabulate(arcs, values, np.add, lengths.n_stages)
        self._go_on(table, [], lengths.n_stages, table.begin, 0.0, 0.0)

    def _go_on(
        self,
        table: Onward,
        path: list[int],
        n_after: int,
        state: int,
        sum_s: float,
        rest_s: float,
    ) -> None:
        """Try all stages that can follow `path`, those with the smallest bound first.

        Args:
            table: The dynamic program, for bounds.
            path: The stages so far, as indices of arcs.
            n_after: Number of stages still to come; 0 if stages are not counted.
            state: What is left, or taken, of the cluster after `path`.
            sum_s: Sum of the times of the stages of `path`.
            rest_s: The largest r (see `search`) of these stages.
        """
        arcs = table.arcs
        node = int(arcs.head[path[-1]]) if path else 0
        if node == arcs.n_nodes - 1:
            if sum_s + rest_s < self.target_s:
                self.time_s, self.rows = sum_s + rest_s, tuple(arcs.row[path].tolist())
            return
        leaving, row = arcs.leaving(node), max(n_after - 1, 0)
        after_s, states = table.onward(leaving, row, state)
        more_s = self._network.more_s(arcs, path, leaving)
        sums_s = sum_s + table.values(leaving)[:, row] + more_s
        rests_s = arcs.rest_s[leaving] + (self._network.n_microbatches - 1) * more_s
        rests_s = np.maximum(rest_s, rests_s)
        bounds_s = sums_s + after_s + rests_s
        for at in np.argsort(bounds_s, kind="stable").tolist():
            if not bounds_s[at] < self.target_s or self.n_steps >= MOST_STEPS:
                return
            self.n_steps += 1
            arc = leaving.start + at
            if not path or self._holds(arcs, path[-1], arc, n_after):
                onward = [*path, arc]
                longer = float(sums_s[at]), float(rests_s[at])
                self._go_on(table, onward, row, int(states[at]), *longer)

    def _holds(self, arcs: Arcs, arc: int, following: int, n_after: int) -> bool:
        """Whether a stage has memory for the values that it holds for stages after the next one."""
        if not self._limits.has_memory:
            return True
        held = self._network.held_bytes(arcs, arc, following) + arcs.activation_bytes[arc]
        peak = arcs.base_bytes[arc] + self._limits.in_flight[n_after] * held
        return bool(peak <= self._limits.memory_bytes[arcs.shape[arc]])
