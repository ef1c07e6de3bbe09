"""Train an example both ways, and compare: what one device computes, and what a plan does."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import frontends.jax as mw
import jax
import numpy as np
from costmodel import Cluster
from frontends import Plan
from frontends.jax.rules import whole_share

from zoo.example import Example

ONE_HOST = Cluster.preset("virtual-cpu").resized(devices_per_host=4)
"""Four devices that are all alike far."""

TWO_HOSTS = Cluster.preset("two-hosts").resized(n_hosts=2, devices_per_host=2)
"""Two by two, with a network between: pipelines of two stages with two devices each."""

LEAST = 1e-3
"""Magnitude below which numbers are compared as if they had it: a gradient that is zero but for
rounding (of a bias of keys, which softmax does not see) has no digits that are its own."""


@dataclass(frozen=True, slots=True)
class Checked:
    """How a plan did."""

    plan: Plan
    whole_share: float
    """Of the step's FLOP, those of primitives without a rule."""

    difference: float
    """The largest between both runs' states and results, relative to each array's magnitude."""

    where: str
    """The array that differs most."""


def check(
    example: Example,
    cluster: Cluster,
    *,
    strategy: str = "auto",
    microbatches: int | None = None,
    n_steps: int = 5,
    seed: int = 0,
) -> Checked:
    """Take some steps on one device and by a plan, each from what it made itself before.

    Args:
        example: Its step returns new state first, in the order of its arguments.
        cluster: At most as many devices as JAX has.
        strategy: As in `parallelize`.
        microbatches: Likewise.
        n_steps: Each with a new batch, and a new key if there is one.
        seed: Of weights and batches.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "planned without microbatches")
        parallel = mw.parallelize(
            example.step,
            cluster=cluster,
            batch_argnums=example.batch_argnums,
            strategy=strategy,
            microbatches=microbatches,
        )
        single, init = jax.jit(example.step), jax.jit(example.init)
        n_state = min(example.batch_argnums)
        keys = jax.random.split(jax.random.key(seed), n_steps)
        ours = theirs = init(keys[0])[:n_state]
        worst = (0.0, "nothing")
        for key in keys:
            given = init(key)[n_state:]
            our_results, their_results = parallel(*ours, *given), single(*theirs, *given)
            worst = max(worst, largest_difference(our_results, their_results))
            ours, theirs = our_results[:n_state], their_results[:n_state]
    share = whole_share(parallel.planned.trace.equations.values())
    return Checked(parallel.plan, share, *worst)


def largest_difference(ours: Any, theirs: Any) -> tuple[float, str]:
    """Of all pairs of arrays, relative to the largest number of each, or to `LEAST`; and where."""
    mine, others = jax.tree.leaves(ours), jax.tree_util.tree_leaves_with_path(theirs)
    return max(
        (_difference(np.asarray(a), np.asarray(b)), jax.tree_util.keystr(path))
        for a, (path, b) in zip(mine, others, strict=True)
    )


def _difference(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float:
    assert (a.shape, a.dtype) == (b.shape, b.dtype), "the results must be of the same kind"
    wide, other = a.astype(np.float64), b.astype(np.float64)
    difference = np.abs(wide - other).max(initial=0.0) / max(np.abs(other).max(initial=0.0), LEAST)
    return float(difference)
