"""Phases that always follow each other at once are one program, which does what they did."""

import random
from typing import Any

import frontends.jax as mw
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from costmodel import Cluster
from frontends.jax.run.runtime import Runtime
from frontends.jax.run.verify import check_collectives, measured_peaks
from frontends.jax.testing import EXAMPLES
from frontends.layers.layers import layer
from frontends.program.instructions import Run, Send
from frontends.step.step import APPLY, BACKWARD, FORWARD
from frontends.testing import random_plan
from shardspec import Mesh

SQUARE = Mesh((2, 2), ("x", "y"), (0, 1, 2, 3))
PAIR = Mesh((2,), ("x",), (4, 5))
TWO_HOSTS = Cluster.preset("two-hosts")


def runtime(name: str, meshes: tuple[Mesh, ...], microbatches: int, schedule: str) -> Runtime:
    traced = EXAMPLES[name]().trace(microbatches)
    layered = layer(traced.step, 4)
    plan = random_plan(layered, meshes, random.Random(0), schedule)
    return Runtime(traced, layered, plan, TWO_HOSTS)


@pytest.mark.parametrize("name", ["mlp", "adamw", "clipped", "tied"])
def test_one_stage_and_one_microbatch_are_one_program(name: str) -> None:
    run, example = runtime(name, (SQUARE,), 1, "1f1b"), EXAMPLES[name]()
    assert [chunk.phases for chunk in run.program.chunks] == [(FORWARD, BACKWARD, APPLY)]
    ours, theirs = jax.tree.leaves(example.arguments), example.arguments
    n_batch = len(jax.tree.leaves(example.batch))
    for _ in range(2):
        results, expected = run(ours), jax.jit(example.function)(*theirs)
        for a, b in zip(results, jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
        ours = [*results[:-1], *ours[-n_batch:]]
        theirs = (*expected[:2], example.batch)


@pytest.mark.parametrize(
    ("schedule", "joined"),
    [("1f1b", [False, True]), ("gpipe", [False, False]), ("zb-h1", [False, True])],
)
def test_a_backward_that_follows_at_once_is_in_one_program_with_its_forward(
    schedule: str, joined: list[bool]
) -> None:
    run = runtime("mlp", (SQUARE, PAIR), 2, schedule)
    forward = [chunk for chunk in run.program.chunks if FORWARD in chunk.phases]
    assert [chunk.phases == (FORWARD, BACKWARD) for chunk in forward] == joined


def test_gradients_are_sent_as_soon_as_they_are_there() -> None:
    schedule = """2-late stages=2 microbatches=2
rank 0: F0.0 F0.1 B0.0 B0.1
rank 1: F1.0 B1.0 F1.1 B1.1"""
    run = runtime("mlp", (SQUARE, PAIR), 2, schedule)
    mine = [i for i in run.program.instructions if i.stage == 1 and isinstance(i, Run | Send)]
    joined = next(
        i for i, chunk in enumerate(run.program.chunks) if chunk.phases == (FORWARD, BACKWARD)
    )
    for microbatch in range(2):
        at = mine.index(Run(1, joined, microbatch))
        assert isinstance(mine[at + 1], Send)
        assert mine[at + 1].microbatch == microbatch


def deep(remat: bool) -> tuple[Any, tuple[Any, Any]]:
    """Layers that make much of little, all of which their backwards need."""

    def block(weight: jax.Array, x: jax.Array) -> jax.Array:
        return x + jnp.sin(jnp.cos(jnp.sin(x @ weight))) @ weight.T

    def step(weights: list[jax.Array], batch: jax.Array) -> tuple[list[jax.Array], jax.Array]:
        def loss(weights: list[jax.Array]) -> jax.Array:
            x = batch
            for weight in weights:
                x = (jax.checkpoint(block) if remat else block)(weight, x)
            return jnp.mean(x**2)

        value, gradients = jax.value_and_grad(loss)(weights)
        return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)], value

    return step, ([jnp.ones((16, 256)) / 100] * 6, jnp.ones((256, 16)))


def test_what_is_computed_again_is_not_kept() -> None:
    """As XLA would where it sees both computations in one program."""
    found = []
    for remat in (False, True):
        step, arguments = deep(remat)
        cluster = TWO_HOSTS.resized(n_hosts=1, devices_per_host=1)
        run = mw.parallelize(step, cluster=cluster, microbatches=1).compile(*arguments)
        assert [chunk.phases for chunk in run.program.chunks] == [(FORWARD, BACKWARD, APPLY)]
        found.append(measured_peaks(run).stages[0].n_bytes)
    assert found[1] < 0.6 * found[0]


def test_what_is_gathered_again_is_not_kept() -> None:
    step, arguments = deep(remat=False)
    cluster = TWO_HOSTS.resized(n_hosts=1)
    run = mw.parallelize(step, cluster=cluster, microbatches=1, strategy="zero").compile(*arguments)
    (stage,) = run.plan.stages
    gathered = [
        {c.value for c in stage.conversions if c.phase == phase} for phase in (FORWARD, BACKWARD)
    ]
    assert gathered[0] & gathered[1], "no weight is gathered twice"
    assert check_collectives(run) == len(stage.collectives)
