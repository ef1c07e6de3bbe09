"""The stages that occur in some slicing of all layers over the cluster; others need no price."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stagecut.placement.offers import Places
from stagecut.slice.arcs import Ints


@dataclass(frozen=True, slots=True, eq=False)
class Stages:
    """Arrays with one entry for each stage, sorted by first layer, then shape, then last layer."""

    first: Ints
    last: Ints
    """Included."""
    shape: Ints
    """Index in `Places.shapes`."""


def usable_stages(n_layers: int, places: Places) -> Stages:
    """The stages that occur in some slicing of all layers over the cluster.

    A stage occurs if the layers before it can take some part of the cluster, and the layers after
    it the rest. For example, one layer cannot follow a small submesh on a large cluster, if no
    submesh has all the devices that are left.
    """
    after = np.array([places.after(h) for h in range(len(places.shapes))])
    is_left = after >= 0
    never = n_layers + 1
    # The fewest stages, at least one, from the state in which nothing is taken to each state, ...
    fewest_before = np.full(places.n_states, never)
    # ... and from each state to one that may be the last. States that follow have larger numbers.
    fewest_after = np.full(places.n_states, never)
    for state in range(places.n_states):
        here = 0 if state == 0 else fewest_before[state]
        following = after[is_left[:, state], state]
        fewest_before[following] = np.minimum(fewest_before[following], here + 1)
    for state in reversed(range(places.n_states)):
        following = after[is_left[:, state], state]
        more = np.where(places.complete[following], 0, fewest_after[following])
        fewest_after[state] = 1 + more.min(initial=never)
    possible: NDArray[np.bool_] = np.zeros((n_layers, len(places.shapes), n_layers), dtype=np.bool_)
    layers = np.arange(n_layers)
    for h, states in enumerate(after):
        begins = is_left[h]
        ends, before = states[begins], np.flatnonzero(begins)
        needed = np.where(before == 0, 0, fewest_before[before])  # layers before the stage
        for first in range(n_layers):
            # In state 0, and in no other, there is no layer before the stage.
            is_before = before == 0 if first == 0 else (needed <= first) & (before > 0)
            if is_before.any():
                possible[first, h, first:] = (
                    fewest_after[ends[is_before]].min() <= n_layers - 1 - layers[first:]
                )
                possible[first, h, -1] = places.complete[ends[is_before]].any()
    firsts, shapes, lasts = np.nonzero(possible)
    return Stages(firsts, lasts, shapes)
