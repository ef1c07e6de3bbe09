"""The processes of test_processes.py: `mpiexec -n N processes.py STORY FOLDER`. Each writes what
became of it to FOLDER/rank.json, and its errors to rank.err."""

import doctest
import itertools
import json
import os
import random
import re
import sys
import time
from pathlib import Path
from typing import Any

import frontends.jax as mw
import jax
import jax.numpy as jnp
import numpy as np
from costmodel import Cluster
from faults import FAULTS
from frontends import BatchError, DeviceError, PlanError
from frontends.jax.run.runtime import Runtime
from frontends.jax.testing import EXAMPLES
from frontends.layers.layers import layer
from frontends.layers.replicas import copied_as
from frontends.testing import random_plan
from shardspec import Mesh

DEADLINE_S = 8.0
START_S = 15.0

UNEQUAL = 7, ((1, 2), (3,), (4, 6))
"""Devices of all processes, and of each stage."""

TO_AND_FRO = 4, ((0, 1), (2, 3), (0, 1), (2, 3))
V = 4, ((0, 1), (2, 3), (2, 3), (0, 1))
TWO_STAGES = 4, ((0, 1), (2, 3))
PLACES = {
    "gpipe": UNEQUAL,
    "1f1b": UNEQUAL,
    "eager-1f1b": UNEQUAL,
    "interleaved-1f1b": TO_AND_FRO,
    "looped-bfs": TO_AND_FRO,
    "zb-h1": UNEQUAL,
    "zb-h2": UNEQUAL,
    "zb-1p": UNEQUAL,
    "zb-v": V,
    "v-half": V,
    "v-min": V,
    "dualpipe-v": V,
    "dualpipe": TWO_STAGES,
    "chimera": TWO_STAGES,
}
AT_FAULT = 2


def stay_away(folder: Path) -> None:
    """A process that starts, but does not join the others; until they have given it up."""
    until_s = time.monotonic() + 4 * START_S
    while time.monotonic() < until_s:
        if len([path for path in folder.glob("*.err") if "DeviceError" in path.read_text()]) == 3:
            return
        time.sleep(0.1)


def readme() -> dict[str, int]:
    """The README's first example, word for word."""
    text = Path(__file__).parents[1].joinpath("README.md").read_text()
    (example,) = re.findall(r"^## Parallelize a step\n+```python\n(.*?)^```", text, re.S | re.M)
    test = doctest.DocTestParser().get_doctest(example, {}, "README", "README.md", 0)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    return runner.run(test, out=sys.stderr.write)._asdict()


def variants() -> dict[str, object]:
    """Short batches, and other state: the losses, and those of one device."""
    mw.init(4)
    example = EXAMPLES["adamw"]()

    def function(state: Any, batch: Any) -> Any:
        *state, loss = example.function(*state, batch)
        return tuple(state), loss

    cluster = Cluster.preset("two-hosts").resized(devices_per_host=2)
    step = mw.parallelize(
        function, cluster=cluster, microbatches=4, strategy="equal_layers", deadline_s=DEADLINE_S
    )
    mine = theirs = (example.params, example.opt_state)
    ours, expected = [], []
    for n in (8, 3, 8, 1, 3):
        batch = {name: rows[:n] for name, rows in example.batch.items()}
        mine, loss = step(mine, batch)
        theirs, other = jax.jit(function)(theirs, batch)
        ours.append(float(loss))
        expected.append(float(other))
    whole = step.state_dict(mine)
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    verified = step.verify(step.load_state_dict(whole), batch)
    evaluate = step.follow(error_of)
    for n in (8, 3):
        batch = {name: rows[:n] for name, rows in example.batch.items()}
        ours.append(float(evaluate(mine, batch)))
        expected.append(float(error_of(theirs, batch)))
    return {
        **padded(function, example),
        **alone(function, example),
        "compared": compared(),
        "accumulated": accumulated(),
        "unlike": unlike(function, example),
        "ours": ours,
        "expected": expected,
        "held": [v.is_held for v in (*step.variants, *evaluate.variants)],
        "verified": max(verified.results, verified.state),
    }


def accumulated() -> float:
    """How far weights are off by a step that accumulates gradients over parts with keys."""

    def function(w: Any, batch: Any) -> Any:
        def loss_of(w: Any, x: Any, key: Any) -> Any:
            keep = jax.random.bernoulli(key, 0.7, x.shape)
            return (jnp.tanh((x * keep) @ w["up"]) @ w["square"]).mean()

        def add(carry: Any, x: Any) -> Any:
            total, key = carry
            key, own = jax.random.split(key)
            more = jax.value_and_grad(loss_of)(w, x, own)
            return (jax.tree.map(jnp.add, total, more), key), None

        zeros = jnp.float32(0), jax.tree.map(jnp.zeros_like, w)
        parts = batch["x"].reshape(4, -1, 8)
        ((loss, gradients), _), _ = jax.lax.scan(add, (zeros, jax.random.key(1)), parts)
        return jax.tree.map(lambda p, g: p - 0.1 * g, w, gradients), loss

    rng = np.random.default_rng(0)
    batch = {"x": rng.normal(size=(16, 8)).astype(np.float32)}
    shapes = {"up": (8, 16), "square": (16, 16)}
    w = {name: jnp.asarray(rng.normal(size=s) / 4, jnp.float32) for name, s in shapes.items()}
    step = mw.parallelize(function, stages=2, microbatches=4, deadline_s=DEADLINE_S)
    mine, _ = step(w, batch)
    theirs, _ = jax.jit(function)(w, batch)
    pairs = zip(jax.tree.leaves(step.state_dict(mine)), jax.tree.leaves(theirs), strict=True)
    return max(float(np.abs(a - b).max()) for a, b in pairs)


def compared() -> float:
    """How far weights are off by a loss that compares examples, in two passes.

    It returns what each of the two stages computes.
    """

    def function(w: Any, batch: Any) -> Any:
        def loss_of(w: Any) -> Any:
            first = jnp.tanh(batch["x"] @ w["up"])
            z = jnp.tanh(first @ w["square"]) @ w["square"].T
            return -jnp.diag(jax.nn.log_softmax(z @ z.T)).mean(), (first**2).mean()

        (loss, size), gradients = jax.value_and_grad(loss_of, has_aux=True)(w)
        return jax.tree.map(lambda p, g: p - 0.1 * g, w, gradients), (loss, size)

    rng = np.random.default_rng(0)
    batch = {"x": rng.normal(size=(16, 8)).astype(np.float32)}
    shapes = {"up": (8, 16), "square": (16, 16)}
    mine = theirs = {name: jnp.asarray(rng.normal(size=s) / 4) for name, s in shapes.items()}
    step = mw.parallelize(function, stages=2, microbatches=4, deadline_s=DEADLINE_S)
    for _ in range(2):
        mine, ours = step(mine, batch)
        theirs, expected = jax.jit(function)(theirs, batch)
    assert step.plan.first_pass_s > 0
    mine, theirs = (
        jax.tree.leaves((step.state_dict(mine), ours)),
        jax.tree.leaves((theirs, expected)),
    )
    pairs = zip(mine, theirs, strict=True)
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)


def scaled(function: Any, factor: float, state: Any, batch: Any) -> Any:
    """A step whose loss is another one if a number that it takes from elsewhere is."""
    state, loss = function(state, batch)
    return state, factor * loss


def unlike(function: Any, example: Any) -> list[str]:
    """What is said of calls that are not the same in all processes; they change nothing."""
    me, said = jax.process_index(), []
    step = mw.parallelize(function, stages=2, microbatches=4, deadline_s=DEADLINE_S)
    state, batch = (example.params, example.opt_state), example.batch
    others: list[tuple[Any, Any]] = [
        (jax.tree.map(lambda a: a * (1 + me), state), batch),
        (None, jax.tree.map(lambda a: np.roll(a, me // 2, 0), batch)),
        (None, jax.tree.map(lambda a: a[: 8 - 4 * (me == 2)], batch)),
        (None, batch if me < 3 else {**batch, "z": batch["y"]}),
    ]
    for other, rows in others:
        try:
            step(other or state, rows)
        except BatchError as error:
            said.append(str(error))
        if len(said) == 1:  # the first was the first call
            state, _ = step(state, batch)
    static = mw.parallelize(lambda n, state, batch: function(state, batch), static_argnums=0)
    taken = mw.parallelize(lambda state, batch: scaled(function, 1 + me // 3, state, batch))
    for call in (lambda: static(me, state, batch), lambda: taken(state, batch)):
        try:
            call()
        except (BatchError, PlanError) as error:
            said.append(str(error))
    try:
        _ = step.state_dict(state) if me == 0 else step(state, batch)
    except DeviceError as error:
        said.append(str(error))
    _, loss = step(state, batch)
    single = jax.jit(function)
    expected = single(single((example.params, example.opt_state), batch)[0], batch)[1]
    np.testing.assert_allclose(float(loss), float(expected), rtol=1e-5)
    return said


def error_of(state: Any, batch: Any) -> Any:
    """The loss of the example, for an evaluation."""
    x = batch["x"]
    for weights in state[0]:
        x = jnp.tanh(x @ weights["w"] + weights["b"])
    return jnp.mean((x - batch["y"]) ** 2)


def alone(function: Any, example: Any) -> dict[str, object]:
    """A stage in each process, for which its own arrays look like those that each process has."""
    step = mw.parallelize(function, stages=4, microbatches=4, deadline_s=DEADLINE_S)
    theirs = (example.params, example.opt_state)
    mine, _ = step(theirs, example.batch)
    theirs, _ = jax.jit(function)(theirs, example.batch)
    whole = step.state_dict(mine)
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    evaluate = step.follow(error_of)
    found, expected = (float(f(s, example.batch)) for f, s in ((evaluate, mine), (error_of, whole)))
    return {"alone": (found, expected), "follows": evaluate.variants[0].is_held}


def padded(function: Any, example: Any) -> dict[str, object]:
    """Batches of 7 examples on 4 devices, of which each process reads what its device needs."""
    cluster = Cluster.preset("two-hosts").resized(n_hosts=1)
    step = mw.parallelize(
        function, cluster=cluster, microbatches=1, strategy="zero", deadline_s=DEADLINE_S
    )
    mine = theirs = (example.params, example.opt_state)
    rows = [{name: leaf[i] for name, leaf in example.batch.items()} for i in range(7)]
    step.prepare(mine, {name: leaf[:7] for name, leaf in example.batch.items()})
    losses = []
    for batch in itertools.islice(step.feed(rows), 2):
        read = {name: int((leaf != 0).any(1).sum()) for name, leaf in batch.items()}
        mine, loss = step(mine, batch)
        whole = {name: leaf[:7] for name, leaf in example.batch.items()}
        theirs, other = jax.jit(function)(theirs, whole)
        losses.append((float(loss), float(other)))
    return {"padded": losses, "padded_to": step.plan.padded_to, "read": read}


def main(story: str, folder: Path) -> None:
    schedule, (n_devices, meshes) = "1f1b", TWO_STAGES
    if story in PLACES:
        schedule, (n_devices, meshes) = story, PLACES[story]
    me = int(os.environ["PMI_RANK"])
    # A launcher loses what processes print when one of them has ended.
    os.dup2(os.open(folder / f"{me}.err", os.O_CREAT | os.O_WRONLY), sys.stderr.fileno())
    if story == "readme":
        Path(folder, f"{me}.json").write_text(json.dumps(readme()))
        return
    if story == "variants":
        Path(folder, f"{me}.json").write_text(json.dumps(variants()))
        return
    if (story, me) == ("absent", AT_FAULT):
        stay_away(folder)
        return
    mw.init(n_devices, start_s=START_S if story == "absent" else 300.0)
    assert jax.process_index() == me
    example = EXAMPLES["tied" if meshes is V[1] else "mlp"]()
    traced = example.trace(4)
    layered = layer(traced.step, 4)
    stages = [Mesh((len(ids),), ("x",), ids) for ids in meshes]
    plan = random_plan(layered, stages, random.Random(0), schedule)
    copied = copied_as(layered, plan)
    traced, layered = traced.with_copies(copied.traced), copied.layered
    run = Runtime(traced, layered, plan, Cluster.preset("two-hosts"), deadline_s=DEADLINE_S)
    assert [p is None for p in run.programs] == [
        me not in run.submeshes.processes(plan.stages[c.stage].mesh) for c in run.program.chunks
    ]
    leaves = jax.tree.leaves(example.arguments)
    n_batch = len(jax.tree.leaves(example.batch))
    theirs = example.arguments
    single = jax.jit(example.function)
    worst, losses = 0.0, []
    for step in range(3):
        if story in FAULTS and (step, me) == (2, AT_FAULT):
            FAULTS[story]()
        results = run(leaves)
        theirs = (*single(*theirs)[:2], example.batch)
        for ours, expected in zip(results, jax.tree.leaves(theirs[:2]), strict=False):
            for shard in ours.addressable_shards:
                whole = np.asarray(expected, np.float64)
                error = np.abs(np.asarray(shard.data, np.float64) - whole[shard.index])
                worst = max(worst, float(error.max(initial=0)) / max(np.abs(whole).max(), 1e-6))
        losses.append(float(results[-1]))
        leaves = [*results[:-1], *leaves[-n_batch:]]
    found = {"worst": worst, "losses": losses, "devices": jax.local_device_count()}
    Path(folder, f"{me}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
