"""Train an example both ways, and compare: what one device computes, and what a plan does.

Two runs of a step add up in other orders, and so round otherwise. How much that may be is known
from a third run, on one device in float64: its distance to the first is the first one's own error.
A plan is right if it is as near to one device as digits of float32 go, or as one device is to the
exact numbers: gradients that are zero but for rounding (of a bias of keys, which softmax does not
see) have no digits to compare, and some networks make every rounding larger at each step.

A max pool is not even continuous in its gradient: where two numbers are nearly equal, a rounding
decides which one it goes to. Such a network is also measured by what one device makes of weights
that are one unit in the last place away.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import frontends.jax as mw
import jax
import numpy as np
from costmodel import Cluster
from frontends import Plan
from frontends.jax.rules.rules import whole_share
from frontends.search.plan_options import Strategy

from zoo.example import Arguments, Example
from zoo.precise import precise

ONE_HOST = Cluster.preset("virtual-cpu").resized(devices_per_host=4)
"""Four devices that are all alike far."""

TWO_HOSTS = Cluster.preset("two-hosts").resized(n_hosts=2, devices_per_host=2)
"""Two by two, with a network between: pipelines of two stages with two devices each."""

TOLERANCE = 1e-5
"""Of the differences here, for every model and type."""

_OWN_ERROR = 2.5e-6
"""What one device's error is taken for: an array that it knows less well is measured by that error,
not by its magnitude, and may then differ by `TOLERANCE / _OWN_ERROR` = 4 of them [chosen: the sum
of two errors of up to twice the size]."""


_NUDGES = 4
"""Draws differ: by eight of them Wide-ResNet's first offset moved by 1e-8 to 4.5e-8."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Some steps of an example on one device."""

    state: Arguments
    """Before the first step."""

    given: tuple[Arguments, ...]
    """The other arguments of each step."""

    results: tuple[Any, ...]
    """What each step returns."""

    errors: tuple[float, ...]
    """For each leaf of a result, its largest distance at any step to that in float64."""


@dataclass(frozen=True, slots=True)
class Checked:
    """How a plan did."""

    plan: Plan
    whole_share: float
    """Of the step's FLOP, those of primitives without a rule."""

    difference: float
    """The largest between both runs' states and results, by `largest_difference`."""

    where: str
    """The array that differs most."""


def refer(example: Example, *, n_steps: int = 5, seed: int = 0, nudge: bool = False) -> Reference:
    """Take some steps on one device, in the step's own types and in float64.

    Args:
        example: Its step returns new state first, in the order of its arguments.
        n_steps: Each with a new batch, and a new key if there is one.
        seed: Of weights and batches.
        nudge: Count as an error, too, the most that changes in `_NUDGES` draws if all weights are
            one unit in the last place larger or smaller.
    """
    init, n_state = jax.jit(example.init), min(example.batch_argnums)
    keys = jax.random.split(jax.random.key(seed), n_steps)
    state = init(keys[0])[:n_state]
    given = tuple(init(key)[n_state:] for key in keys)

    def run(step: Any, state: Any = state) -> tuple[Any, ...]:
        found = [state]
        for batch in given:
            found.append(step(*found[-1][:n_state], *batch))
        return tuple(jax.tree.map(np.asarray, found[1:]))

    step = jax.jit(example.step)
    results = run(step)
    others = [run(precise(example.step, example.arguments))]
    others += [run(step, _nudged(state, draw)) for draw in range(_NUDGES if nudge else 0)]
    distances = [
        map(_distance, jax.tree.leaves(a), jax.tree.leaves(b))
        for other in others
        for a, b in zip(results, other, strict=True)
    ]
    return Reference(state, given, results, tuple(map(max, zip(*distances, strict=True))))


def _nudged(state: Any, draw: int) -> Any:
    """Every number of the arrays, one unit in the last place larger or smaller."""

    def nudged(array: Any) -> Any:
        if not np.issubdtype(array.dtype, np.floating):
            return array
        ends = np.array([-np.inf, np.inf], array.dtype)
        return np.nextafter(array, np.random.default_rng(draw).choice(ends, array.shape))

    return jax.tree.map(nudged, state)


def check(
    example: Example,
    cluster: Cluster,
    *,
    strategy: Strategy = "auto",
    microbatches: int | None = None,
    reference: Reference | None = None,
) -> Checked:
    """Take the reference's steps by a plan, each from what it made itself before, and compare.

    Args:
        example: What to plan.
        cluster: At most as many devices as JAX has.
        strategy: As in `parallelize`.
        microbatches: Likewise.
        reference: Of the same example; five steps are taken if there is none.
    """
    reference = reference or refer(example)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "planned without microbatches")
        parallel = mw.parallelize(
            example.step,
            cluster=cluster,
            batch_argnums=example.batch_argnums,
            strategy=strategy,
            microbatches=microbatches,
        )
        state, worst = reference.state, (0.0, "nothing")
        for given, theirs in zip(reference.given, reference.results, strict=True):
            ours = parallel(*state, *given)
            worst = max(worst, largest_difference(ours, theirs, reference.errors))
            state = ours[: len(state)]
    share = whole_share(parallel.planned.trace.equations.values())
    return Checked(parallel.plan, share, *worst)


def largest_difference(ours: Any, theirs: Any, errors: Sequence[float]) -> tuple[float, str]:
    """Of all pairs of arrays, and where.

    A difference is relative to the largest number of an array, or to 1 / `_OWN_ERROR` of how wrong
    `theirs` is in its own right, whichever is larger.
    """
    leaves = jax.tree_util.tree_leaves_with_path(theirs)
    return max(
        (_difference(a, b, error), jax.tree_util.keystr(path))
        for a, (path, b), error in zip(jax.tree.leaves(ours), leaves, errors, strict=True)
    )


def _difference(a: Any, b: Any, error: float) -> float:
    assert (a.shape, a.dtype) == (b.shape, b.dtype), "the results must be of the same kind"
    distance = _distance(a, b)
    return distance / max(_distance(b, 0), error / _OWN_ERROR) if distance else 0.0


def _distance(a: Any, b: Any) -> float:
    wide = np.asarray(a, np.float64) - np.asarray(b, np.float64)
    return float(np.abs(wide).max(initial=0.0))
