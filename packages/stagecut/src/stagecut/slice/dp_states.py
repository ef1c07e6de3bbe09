"""The dynamic program of paths.py where counting devices is not enough (places.py).

    F(s, u, q) = min over arcs u -> v:  t + F(s - 1, v, after[h][q])

where q is what the stages before u have taken of the cluster, and h the shape that the arc takes.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stagecut.slice.arcs import Arcs, Floats, Ints
from stagecut.slice.best_paths import BLOCK, Values


@dataclass(frozen=True, eq=False)
class StateTable:
    """F, with what is needed to find its paths."""

    arcs: Arcs
    values: Values
    combine: np.ufunc
    steps: Ints
    """State after each, for each shape: (n_shapes, n_states); -1 if there is none."""
    least: Floats
    """F: shape (n_nodes, n_stages + 1, n_states + 1). The last column is inf."""

    @property
    def begin(self) -> int:
        """The state at the first node."""
        return 0

    def onward(self, leaving: slice, row: int, state: int) -> tuple[Floats, Ints]:
        """F behind arcs of one node that are taken from `state`, and the states after them."""
        states = self.steps[self.arcs.shape[leaving], state]
        return self.least[self.arcs.head[leaving], row, states], states

    def best(self, n_stages: int = 0) -> float:
        """The value of the best path, with so many stages if they are counted; inf if none."""
        return float(self.least[0, n_stages, 0])


def tabulate_states(
    arcs: Arcs,
    values: Values,
    combine: np.ufunc,
    steps: Ints,
    complete: NDArray[np.bool_],
    n_stages: int,
) -> StateTable:
    """Fill F.

    Args:
        arcs: The stages.
        values: What is combined along a path.
        combine: `np.add`, or `np.maximum` for the smallest largest value.
        steps: State after each state, for each shape; -1 if there is none.
        complete: Of each state, whether it may be the last.
        n_stages: Count stages, up to this number; 0 to leave them uncounted.
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
