"""A few copies of repeated layers stand for all: their shardings are shardings of the whole."""

from functools import cache

import autoshard
import jax
import jax.numpy as jnp
import optax
import pytest
from costmodel import Cluster
from frontends.jax.testing import EXAMPLES
from frontends.jax.trace.trace import trace
from frontends.layers.collapse import COPIES, Repeated, all_layers, without_repeats
from frontends.layers.expand import expand, layer_seconds, with_memory
from frontends.layers.layers import LayeredStep, layer
from frontends.price.device_pool import DevicePool
from frontends.price.parallel_options import logical_meshes
from frontends.price.pricing import Pricer
from frontends.step.stage_memory import peak_bytes

CLUSTER = Cluster.preset("two-hosts").resized(devices_per_host=2)


@cache
def deep(n_layers: int, width: int = 16) -> LayeredStep:
    """Equal residual blocks between an embedding and a head."""
    optimizer = optax.adam(1e-3)

    def loss(params, batch):
        x = params["embedding"][batch[0]]
        for block in params["blocks"]:
            x = x + jnp.tanh(x @ block["up"] + block["bias"]) @ block["down"]
        logits = x @ params["head"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch[1]).mean()

    def step(params, state, batch):
        value, gradients = jax.value_and_grad(loss)(params, batch)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    def floats(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    params = {
        "embedding": floats(32, width),
        "blocks": [
            {
                "up": floats(width, 4 * width),
                "bias": floats(4 * width),
                "down": floats(4 * width, width),
            }
            for _ in range(n_layers)
        ],
        "head": floats(width, 32),
    }
    tokens = jax.ShapeDtypeStruct((8, 4), jnp.int32)
    arguments = (params, jax.eval_shape(optimizer.init, params), (tokens, tokens))
    return layer(trace(step, arguments, batch_argnums=(2,), microbatches=2).step)


def repeated(n_layers: int) -> Repeated:
    return without_repeats(deep(n_layers))


def test_blocks_are_layers_and_equal_ones_are_left_out() -> None:
    found = repeated(9)
    assert deep(9).n_layers >= 9
    assert max(b - a + 1 for a, b in found.runs) >= 7
    assert all(sum(a <= k <= b for k in found.kept) <= COPIES for a, b in found.runs)
    autoshard.verify(found.short.step.graph)


def test_what_is_searched_does_not_grow_with_repeated_layers() -> None:
    sizes = {len(repeated(n).short.step.graph.operators) for n in (7, 9, 12)}
    assert len(sizes) == 1
    hashes = {autoshard.structural_hash(repeated(n).short.step.graph) for n in (7, 9, 12)}
    assert len(hashes) == 1


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_short_step_is_a_graph_whose_layers_are_those_of_the_whole(name: str) -> None:
    step = layer(EXAMPLES[name]().trace().step, 4)
    found = without_repeats(step)
    autoshard.verify(found.short.step.graph)
    for short, whole in enumerate(found.kept):
        kinds = [
            [layered.step.graph.operators[i].kind for i in layered.operators_of[k]]
            for layered, k in ((found.short, short), (step, whole))
        ]
        assert kinds[0] == kinds[1]


@pytest.mark.parametrize(("first", "last"), [(0, None), (2, 5), (1, 4), (3, None), (4, 4), (0, 3)])
@pytest.mark.parametrize("mesh", [0, 1])
def test_an_expanded_sharding_costs_what_its_layers_do(
    first: int, last: int | None, mesh: int
) -> None:
    step, found = deep(8), repeated(8)
    last = step.n_layers - 1 if last is None else last
    _, low, high = found.shortened(first, last)
    on = logical_meshes((2, 2), DevicePool(CLUSTER))[mesh]
    few = autoshard.prepare(found.short.stage(low, high), on, CLUSTER).solve(
        compare=False, tie=True
    )
    sharding = with_memory(expand(found, few, first, last), 1)
    graph = step.stage(first, last)
    assert sharding.graph == graph
    assert [name for name, _ in sharding.input_specs] == list(graph.inputs)
    pins: dict[str, autoshard.Pin] = dict(sharding.input_specs)
    pins |= {op.name: s for op, s in zip(graph.operators, sharding.strategies, strict=True)}
    judged = autoshard.prepare(graph, on, CLUSTER).solve(pin=pins, compare=False)
    assert judged.objective_s <= sharding.objective_s * (1 + 1e-9)
    assert sharding.objective_s == pytest.approx(judged.objective_s, rel=0.02)
    assert sum(sharding.compute_s) == pytest.approx(sum(judged.compute_s))
    assert sharding.peak_bytes == pytest.approx(peak_bytes(judged), rel=0.05)


def test_layers_take_what_the_sharding_takes() -> None:
    step = deep(6)
    on = logical_meshes((2, 2), DevicePool(CLUSTER))[0]
    graph = step.stage(0, step.n_layers - 1)
    sharding = autoshard.prepare(graph, on, CLUSTER).solve(compare=False)
    seconds = layer_seconds(step, sharding, 0)
    for phase in range(3):
        assert sum(s.compute_s[phase] for s in seconds) == pytest.approx(sharding.compute_s[phase])
        assert sum(s.communication_s[phase] for s in seconds) == pytest.approx(
            sharding.communication_s[phase]
        )


def test_a_stage_costs_at_the_fast_level_what_it_does_on_its_own() -> None:
    quick = Pricer(deep(8), DevicePool(CLUSTER, 10**9))
    thorough = Pricer(deep(8), DevicePool(CLUSTER, 10**9), level="O3")
    for span in ((0, 3), (2, 5), (4, 8)):
        times = []
        for pricer in (quick, thorough):
            costs = pricer.costs(*span, (1, 2))
            assert costs is not None
            times.append(min(cost.time_s for cost in costs))
        assert times[0] == pytest.approx(times[1], rel=0.05)


def test_every_layer_stands_for_itself_if_none_is_left_out() -> None:
    step = deep(5)
    every = all_layers(step)
    assert every.short is step
    assert every.shortened(1, 3) == ((1, 2, 3), 1, 3)
