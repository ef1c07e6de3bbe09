"""Padded microbatches compute what those without padding do, and devices share their examples."""

import autoshard
import frontends.jax as mw
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from costmodel import Cluster
from frontends.errors import AccumulationError
from frontends.jax.testing import assert_same, run_in_microbatches, sgd, steps
from frontends.jax.trace.trace import Capture, Trace
from frontends.step.padding import padded_size
from hypothesis import assume, given, settings
from hypothesis import strategies as st


@given(st.integers(1, 200), st.integers(1, 48))
def test_a_padded_size_is_divided_by_as_many_devices_as_a_quarter_more_allows(n, devices):
    size = padded_size(n, devices)
    sharing = max(d for d in range(1, devices + 1) if devices % d == 0 and size % d == 0)
    others = [d for d in range(1, devices + 1) if devices % d == 0 and -(-n // d) * d <= 1.25 * n]
    assert n <= size <= 1.25 * n
    assert sharing == max(others)


@settings(max_examples=settings().max_examples // 5)
@given(steps(), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 3]))
def test_random_steps_are_the_same_with_padding(example, microbatches, added):
    step, (w, batch) = example
    capture = Capture(step, (w, batch), (1,))
    examples = len(batch["token"]) // microbatches
    try:
        padded = capture.at(microbatches, min(examples + added, 2 * examples))
    except AccumulationError:
        assume(False)
    autoshard.verify(padded.step.graph)
    ours = run_in_microbatches(padded, (w, batch))
    assert_same(ours, step(w, batch), tolerance=1e-4, least=0.1)  # sums may cancel


def normalized_gradient(w, x):
    """Reads 0 / 0 in examples without a gradient."""
    g = jax.grad(lambda y: jnp.sum(jnp.sin(y)))(x @ w)
    return jnp.sum(jnp.tanh(x @ w) * g / jnp.linalg.norm(g, axis=1, keepdims=True))


def clipped_gradients(w, x):
    """The mean of gradients that are clipped by example, by `vmap` of `grad`."""
    gradients = jax.vmap(jax.grad(lambda w, row: jnp.sum(jnp.tanh(row @ w))), (None, 0))(w, x)
    norms = jnp.sqrt((gradients**2).sum((1, 2)))
    return jnp.sum(w * (gradients / jnp.maximum(1.0, norms)[:, None, None]).mean(0))


def batch_norm(w, x):
    y = x @ w
    return jnp.sum(jnp.tanh((y - y.mean(0)) / jnp.sqrt(y.var(0) + 1e-3)) ** 3)


def contrastive(w, x):
    y = x @ w
    return optax.softmax_cross_entropy_with_integer_labels(y @ y.T, jnp.arange(len(y))).mean()


def hardest(w, x):
    return jnp.max(jnp.sum((x @ w) ** 2, 1)) + jnp.sum(jnp.sort(x @ w, 0)[:3])


def recurrent(w, x):
    def step(h, row):
        h = jnp.tanh(h @ w + row)
        return h, h

    rows = jnp.stack([x, 2 * x, x + 1])
    _, hidden = jax.lax.scan(step, jnp.zeros_like(x), rows)
    return jnp.mean(hidden**2)


def convolution(w, x):
    images = jnp.tile(x[:, :, None, None], (1, 4, 4, 2))
    kernel = jnp.tile(w[:3, :3, None, None], (1, 1, 2, 3))
    y = jax.lax.conv_general_dilated(
        images, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return jnp.mean(jax.nn.relu(y) ** 2)


def dropout(w, x):
    keep = jax.random.bernoulli(jax.random.key(0), 0.7, x.shape)
    return jnp.sum(jnp.where(keep, x @ w, 0.0) ** 2)


def per_row_positions(w, x):
    return jnp.sum(jnp.cumsum(x @ w, 1) * jnp.arange(4.0)) / x.shape[0]


def mixed_up(w, x):
    """Examples in another order, mixtures of pairs, and noise whose examples are in dim 1."""
    keys = jax.random.split(jax.random.key(1), 4)
    y = jax.random.permutation(keys[0], x)
    share = jax.random.beta(keys[1], 0.2, 0.2, (len(x), 1))
    other = x[jax.random.randint(keys[2], (len(x),), 0, len(x))]
    noise = jax.random.normal(keys[3], (3, len(x), 4)).sum(0)
    return jnp.mean(jnp.tanh((share * y + (1 - share) * other) @ w) ** 2 * noise)


def over_examples(w, x):
    """Loops, scans, Fourier transforms, singular values and numbers along the examples."""

    def step(h, row):
        h = jnp.tanh(h @ w + row)
        return h, h

    last, hidden = jax.lax.scan(step, jnp.zeros(4), x)
    y = jax.lax.map(lambda row: jnp.tanh(row @ w), x) + jnp.fft.fft(hidden, axis=0).real
    values = jnp.linalg.svd(x @ w, compute_uv=False)
    places = jnp.linspace(0, 1, len(x))[:, None] + jnp.eye(len(x))[:, :4]
    parts = jax.ops.segment_sum(y * places, jnp.arange(len(x)) // 3, num_segments=4)
    return jnp.sum(parts**2) + last.sum() + values.sum() + jnp.quantile(y, 0.5)


@pytest.mark.parametrize(
    "loss",
    [
        mixed_up,
        over_examples,
        normalized_gradient,
        clipped_gradients,
        batch_norm,
        contrastive,
        hardest,
        recurrent,
        convolution,
        dropout,
        per_row_positions,
    ],
)
def test_steps_that_read_more_than_sums_are_the_same_with_padding(loss):
    rng = np.random.default_rng(0)
    w, x = (rng.standard_normal(shape).astype(np.float32) for shape in ((4, 4), (10, 4)))
    padded = Capture(sgd(loss), (w, x), (1,)).at(1, 12)
    assert padded.rows == {"x": [*range(10), 8, 9]}
    autoshard.verify(padded.step.graph)
    assert_same(run_in_microbatches(padded, (w, x)), sgd(loss)(w, x), tolerance=1e-4)


def masks(trace: Trace) -> int:
    """How many operators set the examples that were added to zero."""
    return sum(op.kind == "select_n" for op in trace.step.graph.operators)


def test_one_gradient_of_zero_serves_all_layers():
    def step_of(n_layers):
        def loss(ws, x):
            for w in ws:
                x = jnp.sin(x @ w)
            return jnp.mean(x)

        return Capture(
            sgd(loss), ([np.eye(4, dtype=np.float32)] * n_layers, np.ones((10, 4))), (1,)
        )

    assert masks(step_of(2).at(1, 12)) == masks(step_of(8).at(1, 12)) == 2


def test_rows_of_a_batch_are_cut_into_microbatches_first():
    x = np.arange(8, dtype=np.float32)[:, None]
    trace = Capture(sgd(lambda w, x: jnp.sum(x * w)), (np.ones(1, np.float32), x), (1,)).at(2, 5)
    assert trace.rows == {"x": [0, 1, 2, 3, 3, 4, 5, 6, 7, 7]}


def classifier(n_layers=2):
    """A small language model with tied embeddings, and a batch that 3 and 6 do not divide."""

    def loss(params, batch):
        x = params["e"][batch["x"]]
        for w in params["w"]:
            x = x + jax.nn.gelu(x @ w)
            x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
        logits = x @ params["e"].T
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()

    optimizer = optax.adam(1e-3)

    def step(params, state, batch):
        value, gradients = jax.value_and_grad(loss)(params, batch)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    rng = np.random.default_rng(1)
    params = {
        "e": rng.normal(size=(24, 16)).astype(np.float32),
        "w": [rng.normal(size=(16, 16)).astype(np.float32) for _ in range(n_layers)],
    }
    batch = {name: rng.integers(0, 24, (20, 4)).astype(np.int32) for name in ("x", "y")}
    return step, (params, optimizer.init(params), batch)


def times(n, batch):
    """The shapes of a batch of so many times as many examples."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((n * x.shape[0], *x.shape[1:]), x.dtype), batch
    )


def devices(n, n_hosts=1):
    return Cluster.preset("two-hosts").resized(n_hosts=n_hosts, devices_per_host=n // n_hosts)


@pytest.mark.parametrize(
    ("cluster", "options"),
    [
        (devices(3), {"strategy": "data_parallel", "microbatches": 1}),
        (devices(3), {"strategy": "zero", "microbatches": 2}),
        (devices(6, 2), {"stages": 2, "dp": 3, "microbatches": 2, "remat": "all"}),
        (devices(6), {"dp": 3, "tp": 2, "microbatches": 4}),
    ],
)
def test_padded_plans_run_as_one_device_does(cluster, options):
    function, arguments = classifier()
    step = mw.parallelize(function, cluster=cluster, **options)
    params, state, batch = arguments
    step.verify(params, state, batch=batch, n_steps=3)
    assert step.plan.padded_to % 3 == 0 < step.plan.padded_to
    assert "padded" in str(step.plan)
    again = type(step.plan).from_json(step.plan.to_json())
    assert again == step.plan
    assert mw.plan_for(function, arguments, cluster, plan=again).plan == again


def test_padding_is_chosen_where_it_is_faster_and_the_others_are_named():
    function, arguments = classifier(8)
    big = times(64, arguments[2])
    one = {"microbatches": 1, "stages": 1}
    plan = mw.plan_for(function, (*arguments[:2], big), devices(6), **one).plan
    assert plan.padded_to == 1_284
    (whole,) = (a for a in plan.alternatives if a.name == "without padding")
    assert whole.step_s > 1.5 * plan.step_s


def test_a_batch_that_devices_divide_is_not_padded():
    function, arguments = classifier()
    plan = mw.plan_for(function, arguments, devices(4), microbatches=1).plan
    assert plan.padded_to == 0
    assert not any("padd" in a.name for a in plan.alternatives)


def test_short_batches_of_a_padded_step_are_the_same():
    function, (params, state, batch) = classifier()
    step = mw.parallelize(function, cluster=devices(3), strategy="zero", microbatches=1)
    ours, theirs = (params, state), (params, state)
    for n in (20, 14, 20, 12):
        part = jax.tree.map(lambda x, n=n: x[:n], batch)
        *ours, _ = step(*ours, part)
        *theirs, _ = jax.jit(function)(*theirs, part)
    assert_same(jax.tree.leaves(ours), theirs, tolerance=1e-4, least=0.1)
    assert step.plan.padded_to == 21


def test_a_short_batch_is_padded_where_that_is_faster():
    function, (params, state, batch) = classifier(8)
    whole, short = times(60, batch), times(41, batch)
    cluster = devices(6)
    hold = mw.plan_for(function, (params, state, whole), cluster, strategy="zero2").plan
    plan = mw.plan_for(function, (params, state, short), cluster, hold=hold).plan
    assert (hold.padded_to, hold.microbatches) == (0, 1)
    assert plan.padded_to * plan.microbatches == 822


def test_a_pin_on_a_computed_value_keeps_the_step_as_it_is():
    function, arguments = classifier()
    cluster, one = devices(3), {"microbatches": 1, "stages": 1}
    graph = mw.plan_for(function, arguments, cluster, **one).layered.step.graph
    value = next(op.outputs[0] for op in graph.operators if op.kind == "dot_general")
    pin = {value: "R" * len(graph.value(value).shape)}
    assert mw.plan_for(function, arguments, cluster, **one, pin=pin).plan.padded_to == 0
