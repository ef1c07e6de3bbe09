"""Which stages some slicing of all layers over the cluster contains; the others need no price."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stagecut.placement.offers import Places
from stagecut.slice.arcs import Ints


@dataclass(frozen=True, slots=True, eq=False)
class Stages:
    """Arrays of one entry for each stage: by first layer, then by shape, then by last layer."""

    first: Ints
    last: Ints
    """Included."""
    shape: Ints
    """Index in `Places.shapes`."""


def usable_stages(n_layers: int, places: Places) -> Stages:
    """The stages that some slicing contains.

    A stage can stay if the layers before it can take some part of the cluster, and those after it
    the rest. So few layers cannot follow a small submesh on a large cluster, for example.
    """
    after = np.array([places.after(h) for h in range(len(places.shapes))])
    is_left = after >= 0
    never = n_layers + 1
    # Fewest stages, and at least one, from the state of nothing taken to each state, ...
    fewest_before = np.full(places.n_states, never)
    # ... and from each to one that may be the last. The states that follow have larger numbers.
    fewest_after = np.full(places.n_states, never)
    for state in range(places.n_states):
        here = 0 if state == 0 else fewest_before[state]
        follow = after[is_left[:, state], state]
        fewest_before[follow] = np.minimum(fewest_before[follow], here + 1)
    for state in reversed(range(places.n_states)):
        follow = after[is_left[:, state], state]
        more = np.where(places.complete[follow], 0, fewest_after[follow])
        fewest_after[state] = 1 + more.min(initial=never)
    possible: NDArray[np.bool_] = np.zeros((n_layers, len(places.shapes), n_layers), dtype=np.bool_)
    layers = np.arange(n_layers)
    for h, states in enumerate(after):
        begins = is_left[h]
        ends, before = states[begins], np.flatnonzero(begins)
        needed = np.where(before == 0, 0, fewest_before[before])  # layers before the stage
        for first in range(n_layers):
            # State 0 is that of no layer before, and no other is.
            can = before == 0 if first == 0 else (needed <= first) & (before > 0)
            if can.any():
                possible[first, h, first:] = (
                    fewest_after[ends[can]].min() <= n_layers - 1 - layers[first:]
                )
                possible[first, h, -1] = places.complete[ends[can]].any()
    firsts, shapes, lasts = np.nonzero(possible)
    return Stages(firsts, lasts, shapes)
