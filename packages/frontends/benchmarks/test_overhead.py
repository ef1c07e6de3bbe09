"""What does a step of our runtime cost beside the same plan written by hand in JAX?

Baseline: `shard_map` with explicit collectives in the same process: data parallel on two devices,
Megatron with sequence parallelism on two, and 1F1B on two stages of one device with four
microbatches. Ours is the plan of that strategy for the same step. A round is one step, compiling
left out; rounds of both take turns, so that both see the same machine. New weights and loss of the
first are equal to one device's. `instructions` runs four stages and four microbatches of something
so small that nothing is left but the runtime and JAX's dispatch; its last column is the time of one
instruction.

Seconds are of CPU time, summed over all threads, as the devices share their cores with whatever
else runs. Not shown: GPUs, whose programs run while the next are dispatched.
"""

import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from costmodel import Cluster
from frontends.jax import parallelize
from frontends.jax.testing import mlp
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

HOST = Cluster.preset("virtual-cpu").resized(devices_per_host=2)
HOSTS = Cluster.preset("two-hosts").resized(n_hosts=2, devices_per_host=1)
FOUR_HOSTS = HOSTS.resized(n_hosts=4)
EXAMPLES = {"data_parallel": 2048, "megatron": 256, "pipeline": 2048}
"""In a batch: as many as make the planner run the strategy as its name says."""

WIDTH, HIDDEN, BLOCKS = 256, 1024, 4
RATE, MICROBATCHES = 0.1, 4


def arguments(n_examples):
    """Weights, and a batch of so many examples."""
    rng = np.random.default_rng(0)
    weights = [
        {
            "up": rng.normal(size=(WIDTH, HIDDEN), scale=WIDTH**-0.5).astype(np.float32),
            "down": rng.normal(size=(HIDDEN, WIDTH), scale=HIDDEN**-0.5).astype(np.float32),
        }
        for _ in range(BLOCKS)
    ]
    data = {name: rng.normal(size=(n_examples, WIDTH)).astype(np.float32) for name in ("x", "y")}
    return jax.tree.map(jnp.asarray, weights), data


def network(params, x):
    """Blocks on one device."""
    for block in params:
        x = x + jnp.tanh(x @ block["up"]) @ block["down"]
    return x


def update(params, gradients):
    """Plain SGD."""
    return jax.tree.map(lambda p, g: p - RATE * g, params, gradients)


def single(params, batch):
    """The step as a user writes it."""

    def loss(params):
        return jnp.mean((network(params, batch["x"]) - batch["y"]) ** 2)

    value, gradients = jax.value_and_grad(loss)(params)
    return update(params, gradients), value


def _on(devices, local, params):
    """A local step, on all devices; the batch is cut, and weights lie as `params` says."""
    mesh = Mesh(np.array(devices), ("x",))
    specs = (params, PartitionSpec("x"))
    run = jax.jit(
        jax.shard_map(
            local, mesh=mesh, in_specs=specs, out_specs=(params, PartitionSpec()), check_vma=False
        )
    )
    rows = NamedSharding(mesh, PartitionSpec("x"))
    return lambda params, batch: run(params, jax.device_put(batch, rows))


def data_parallel(devices):
    """Gradients are all-reduced."""

    def local(params, batch):
        n = batch["y"].size * len(devices)

        def loss(params):
            return jnp.sum((network(params, batch["x"]) - batch["y"]) ** 2) / n

        value, gradients = jax.value_and_grad(loss)(params)
        return update(params, lax.psum(gradients, "x")), lax.psum(value, "x")

    return _on(devices, local, PartitionSpec())


def megatron(devices):
    """Hidden units are split, and between blocks the examples (sequence parallelism)."""

    def local(params, batch):
        n = batch["y"].size * len(devices)

        def loss(params):
            x = batch["x"]
            for block in params:
                whole = lax.all_gather(x, "x", axis=0, tiled=True)
                part = jnp.tanh(whole @ block["up"]) @ block["down"]
                x = x + lax.psum_scatter(part, "x", scatter_dimension=0, tiled=True)
            return jnp.sum((x - batch["y"]) ** 2) / n

        value, gradients = jax.value_and_grad(loss)(params)
        return update(params, gradients), lax.psum(value, "x")

    split = {"up": PartitionSpec(None, "x"), "down": PartitionSpec("x", None)}
    return _on(devices, local, [split] * BLOCKS)


def pipeline(devices, cut):
    """1F1B on two stages of one device each; a backward gets what its forward saved."""
    first, second = devices

    def loss(params, x, y):
        return jnp.mean((network(params, x) - y) ** 2) / MICROBATCHES

    forward = jax.jit(lambda params, x: jax.vjp(lambda p: network(p, x), params))
    backward = jax.jit(
        lambda saved, g, total: jax.tree.map(jnp.add, total, *saved(g)), donate_argnums=2
    )
    both = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    add = jax.jit(lambda a, b: jax.tree.map(jnp.add, a, b), donate_argnums=0)
    apply = jax.jit(update)

    def step(params, batch):
        front, back = params[:cut], params[cut:]
        xs, ys = (np.split(batch[name], MICROBATCHES) for name in ("x", "y"))
        totals = jax.tree.map(jnp.zeros_like, front), jax.tree.map(jnp.zeros_like, back)
        sums, value = list(totals), 0.0
        held = [forward(front, jax.device_put(xs[0], first))]
        for m in range(MICROBATCHES):
            out, saved = held.pop(0)
            if m + 1 < MICROBATCHES:
                held.append(forward(front, jax.device_put(xs[m + 1], first)))
            here = jax.device_put(out, second)
            part, (gradient, to_front) = both(back, here, jax.device_put(ys[m], second))
            sums[1], value = add(sums[1], gradient), value + part
            sums[0] = backward(saved, jax.device_put(to_front, first), sums[0])
        return [*apply(front, sums[0]), *apply(back, sums[1])], value

    return step


def ours(plan):
    """The step by our runtime."""
    if plan == "pipeline":
        options = {"schedule": "1f1b", "microbatches": MICROBATCHES}
        return parallelize(single, cluster=HOSTS, strategy="equal_layers", **options)
    return parallelize(single, cluster=HOST, strategy=plan, microbatches=1)


def by_hand(plan, found):
    """The step by hand; a pipeline is cut where the plan found cuts it."""
    devices = jax.devices()[:2]
    if plan == "pipeline":
        cut = sum(stored.value.endswith("['up']") for stored in found.stages[0].inputs)
        return pipeline(devices, cut)
    return {"data_parallel": data_parallel, "megatron": megatron}[plan](devices)


@pytest.mark.benchmark(timer=time.process_time)
@pytest.mark.parametrize("plan", EXAMPLES)
def test_step(benchmark, plan):
    params, batch = arguments(64 if benchmark.disabled else EXAMPLES[plan])
    expected = jax.jit(single)(params, batch)
    step = ours(plan)
    results = step(params, batch)
    hand = by_hand(plan, step.plan)
    by_hands = hand(params, batch)
    for found in (results, by_hands):
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)

    mine, theirs, seconds = results[0], by_hands[0], []

    def train_by_hand():
        nonlocal theirs
        start_s = time.process_time()
        theirs, _ = jax.block_until_ready(hand(theirs, batch))
        seconds.append(time.process_time() - start_s)

    def train():
        nonlocal mine
        mine, _ = jax.block_until_ready(step(mine, batch))

    benchmark.pedantic(train, setup=train_by_hand, rounds=25, warmup_rounds=3)
    if not benchmark.disabled:
        theirs_s = statistics.median(seconds[3:])
        benchmark.extra_info["by hand"] = f"{theirs_s * 1e3:.0f} ms"
        ratio = benchmark.stats.stats.median / theirs_s
        benchmark.extra_info["beside by hand"] = f"{ratio:.3f} times"


@pytest.mark.benchmark(timer=time.process_time)
def test_instructions(benchmark):
    example = mlp()
    step = parallelize(
        example.function,
        cluster=FOUR_HOSTS,
        strategy="equal_layers",
        microbatches=MICROBATCHES,
        n_layers=4,
    )
    *state, batch = example.arguments
    n_instructions = len(step.compile(*state, batch).program.instructions)
    losses = []

    def train():
        nonlocal state
        *state, loss = jax.block_until_ready(step(*state, batch))
        losses.append(float(loss))

    benchmark.pedantic(train, rounds=100, warmup_rounds=5)
    assert losses[-1] < losses[0] or len(losses) == 1
    if not benchmark.disabled:
        each_s = benchmark.stats.stats.median / n_instructions
        benchmark.extra_info["instructions"] = n_instructions
        benchmark.extra_info["each"] = f"{each_s * 1e6:.0f} us"
