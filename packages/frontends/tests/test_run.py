"""The oracle: whatever a plan chooses, the parallel step is the single device's step.

Random plans put every layout, conversion, cut and transfer to use that a planner might choose, and
many that it never would. Adam's epsilon is large in the examples: `frontends.jax.testing` says why.
"""

import os
import random
from typing import Any

import jax
import numpy as np
import pytest
from costmodel import Cluster
from frontends.jax.runtime import Runtime
from frontends.jax.testing import EXAMPLES, Example
from frontends.layers import layer
from frontends.testing import random_plan
from shardspec import Mesh

MESHES = {
    1: (Mesh((2, 2), ("x", "y"), (0, 1, 2, 3)),),
    2: (Mesh((2, 2), ("x", "y"), (0, 1, 2, 3)), Mesh((2,), ("x",), (4, 5))),
    3: (
        Mesh((2,), ("x",), (0, 1)),
        Mesh((1,), ("x",), (6,)),
        Mesh((2, 2), ("x", "y"), (2, 3, 4, 5)),
    ),
}

CASES = [
    ("mlp", 1, "gpipe"),
    ("mlp", 2, "1f1b"),
    ("adamw", 2, "eager-1f1b"),
    ("clipped", 3, "1f1b"),
    ("tied", 2, "gpipe"),
    ("tied", 3, "eager-1f1b"),
    ("skip", 3, "1f1b"),
    ("gpt", 2, "1f1b"),
]
SEEDS = range(25 if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else 1)


def runtime(
    example: Example,
    meshes: tuple[Mesh, ...],
    seed: int = 0,
    schedule: str = "1f1b",
    microbatches: int = 2,
) -> Runtime:
    traced = example.trace(microbatches)
    layered = layer(traced.step, 4)
    plan = random_plan(layered, meshes, random.Random(seed), schedule)
    return Runtime(traced, layered, plan, Cluster.preset("two-hosts"))


def assert_equal(ours: list[Any], theirs: Any) -> None:
    for a, b in zip(ours, jax.tree.leaves(theirs), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert np.abs(a - b).max() <= 1e-5 * max(np.abs(b).max(), 1e-6)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "n_stages", "schedule"), CASES)
def test_random_plans_compute_the_single_device_step(
    name: str, n_stages: int, schedule: str, seed: int
) -> None:
    example = EXAMPLES[name]()
    run = runtime(example, MESHES[n_stages], seed, schedule)
    single = jax.jit(example.function)
    ours, theirs = list(jax.tree.leaves(example.arguments)), example.arguments
    n_batch = len(jax.tree.leaves(example.batch))
    for _ in range(2):
        results = run(ours)
        expected = single(*theirs)
        assert_equal(results, expected)
        ours = [*results[:-1], *ours[-n_batch:]]  # state and loss out, state and batch in
        theirs = (*expected[:2], example.batch)
