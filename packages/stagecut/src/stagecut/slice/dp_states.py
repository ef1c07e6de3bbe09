"""The dynamic program of best_paths.py for clusters where counting devices is not enough.

    F(s, u, q) = min over arcs u -> v:  t + F(s - 1, v, after[h][q])

where the state q says what the stages before u have taken of the cluster (packing_states.py), and h
is the shape that the arc takes.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stagecut.slice.arcs import Arcs, Floats, Ints
from stagecut.slice.best_paths import BLOCK, Values


@dataclass(frozen=True, eq=False)
class StateTable:
    """The table F, with what is needed to follow its best paths."""

    arcs: Arcs
    values: Values
    combine: np.ufunc
    steps: Ints
    """For each shape, the state that follows each state: (n_shapes, n_states); -1 if none."""
    least: Floats
    """F: shape (n_nodes, n_stages + 1, n_states + 1). The last column is inf."""

    @property
    def begin(self) -> int:
        """The state at the first node."""
        return 0

    def onward(self, leaving: slice, row: int, state: int) -> tuple[Floats, Ints]:
        """F at the heads of the arcs of one node, and the state after each of these arcs.

        Before the arcs, the state is `state`.
        """
        states = self.steps[self.arcs.shape[leaving], state]
        return self.least[self.arcs.head[leaving], row, states], states

    def best(self, n_stages: int = 0) -> float:
        """The value of the best path; inf if none.

        The path has `n_stages` stages if they are counted.
        """
        return float(self.least[0, n_stages, 0])


def tabulate_states(
    arcs: Arcs,
    values: Values,
    combine: np.ufunc,
    steps: Ints,
    complete: NDArray[np.bool_],
    n_stages: int,
) -> StateTable:
    """Compute the table F.

    Args:
        arcs: The stages.
        values: The values that are combined along a path.
        combine: `np.add` for the smallest sum, or `np.maximum` for the smallest maximum.
        steps: For each shape, the state that follows each state; -1 if none.
        complete: For each state, whether it may be the last.
        n_stages: Count stages up to this number; 0 not to count them.
    """
    least = np.full((arcs.n_nodes, n_stages + 1, complete.size + 1), np.inf)
    least[-1, 0, :-1][complete] = 0.0
    first = min(n_stages, 1)  # row of the tail for row 0 of the head
    rows = np.arange(n_stages + 1 - first)[:, None]
    at_once = max(1, BLOCK // (rows.size * complete.size))
    for group in reversed(arcs.by_tail):
        here = least[arcs.tail[group.start], first:, :-1]
        for start in range(group.start, group.stop, at_once):
            part = slice(start, min(start + at_once, group.stop))
            states = steps[arcs.shape[part]][:, None, :]
            ways = least[arcs.head[part][:, None, None], rows, states]
            combine(ways, values(part)[:, :, None], out=ways)
            np.minimum(here, ways.min(axis=0), out=here)
    return StateTable(arcs, values, combine, steps, least)
