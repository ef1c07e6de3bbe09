"""Train an example on one device and by a plan, and compare the two runs.

Two runs of a step add numbers in different orders, so they round differently. A third run, on one
device in float64, tells how large such differences may be: its distance to the run of one device in
the step's types is the error of that run. A plan is right if it differs from one device by no more
than the digits of float32 allow, or by no more than one device differs from the exact numbers.
Gradients that are zero but for rounding have no digits to compare, such as those of a bias of
attention's keys, which softmax cancels; and some networks amplify every rounding in each step.

The gradient of a max pool is not even continuous: where two numbers are nearly equal, a rounding
decides which of them the gradient goes to. For such a network, what one device computes from
weights that are changed by one unit in the last place counts as an error, too.
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
"""Four devices with equal distances between them."""

TWO_HOSTS = Cluster.preset("two-hosts").resized(n_hosts=2, devices_per_host=2)
"""Two hosts of two devices with a network between them: for pipelines of two stages with two
devices each."""

TOLERANCE = 1e-5
"""Largest difference that is accepted, for every model and type."""

_OWN_ERROR = 2.5e-6
"""The relative error that is assumed of one device at least. An array whose error on one device is
larger is compared relative to that error instead of its magnitude, and may then differ by
`TOLERANCE / _OWN_ERROR` = 4 times the error [chosen: the sum of two errors of up to twice the
size]."""


_NUDGES = 4
"""Number of draws of changed weights. They differ: in eight draws, Wide-ResNet's first offset moved
by 1e-8 to 4.5e-8."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Some steps of an example on one device."""

    state: Arguments
    """The state before the first step."""

    given: tuple[Arguments, ...]
    """The other arguments of each step."""

    results: tuple[Any, ...]
    """What each step returns."""

    errors: tuple[float, ...]
    """For each leaf of a result, the largest distance in any step to the same leaf in float64."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A plan, and how far its run is from one device."""

    plan: Plan
    whole_share: float
    """The share of the step's FLOP in primitives without a rule."""

    difference: float
    """The largest difference of states and results between both runs, by `largest_difference`."""

    where: str
    """The array with the largest difference."""


def refer(example: Example, *, n_steps: int = 5, seed: int = 0, nudge: bool = False) -> Reference:
    """Take some steps on one device, in the step's types and in float64.

    Args:
        example: An example whose step returns the new state first, in the order of its arguments.
        n_steps: Number of steps; each has a new batch, and a new key if the step takes one.
        seed: The seed of weights and batches.
        nudge: Whether changes count as errors, too, that appear if every weight is one unit in the
            last place larger or smaller: the largest change in `_NUDGES` draws.
    """
    init, n_state = jax.jit(example.init), min(example.batch_argnums)
    keys = jax.random.split(jax.random.key(seed), n_steps)
    state = init(keys[0])[:n_state]
    batches = tuple(init(key)[n_state:] for key in keys)

    def run(step: Any, state: Any = state) -> tuple[Any, ...]:
        results = [state]
        for batch in batches:
            results.append(step(*results[-1][:n_state], *batch))
        return tuple(jax.tree.map(np.asarray, results[1:]))

    step = jax.jit(example.step)
    results = run(step)
    others = [run(precise(example.step, example.arguments))]
    others += [run(step, _nudged(state, draw)) for draw in range(_NUDGES if nudge else 0)]
    distances = [
        map(_distance, jax.tree.leaves(a), jax.tree.leaves(b))
        for other in others
        for a, b in zip(results, other, strict=True)
    ]
    return Reference(state, batches, results, tuple(map(max, zip(*distances, strict=True))))


def _nudged(state: Any, draw: int) -> Any:
    """The state with every number one unit in the last place larger or smaller, at random."""

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
    """Take the steps of the reference by a plan, and compare.

    The plan's run goes on from its own state, as the reference does.

    Args:
        example: The example to plan.
        cluster: A cluster of at most as many devices as JAX has.
        strategy: As in `parallelize`.
        microbatches: As in `parallelize`.
        reference: The reference of the same example; without it, five steps are taken.
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
        for batch, theirs in zip(reference.given, reference.results, strict=True):
            ours = parallel(*state, *batch)
            worst = max(worst, largest_difference(ours, theirs, reference.errors))
            state = ours[: len(state)]
    share = whole_share(parallel.planned.trace.equations.values())
    return Checked(parallel.plan, share, *worst)


def largest_difference(ours: Any, theirs: Any, errors: Sequence[float]) -> tuple[float, str]:
    """The largest difference of a pair of arrays, and the path of that array.

    A difference is relative to the largest number of the array in `theirs`, or to the error of
    `theirs` divided by `_OWN_ERROR`, whichever is larger.
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
