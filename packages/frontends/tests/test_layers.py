"""A layered step can be cut anywhere: what crosses a cut flows forwards, then backwards."""

from functools import cache
from itertools import pairwise
from typing import Any

import autoshard
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from autoshard import Graph
from frontends.errors import AccumulationError
from frontends.jax.testing import EXAMPLES, Example, mlp, steps, tied
from frontends.jax.trace.trace import trace
from frontends.layers.layers import LayeredStep, crossings, layer
from frontends.step.step import APPLY, BACKWARD, FORWARD, IDENTITY
from hypothesis import given, settings
from hypothesis import strategies as st


@cache
def layered(name: str, n_layers: int = 4) -> LayeredStep:
    return layer(EXAMPLES[name]().trace().step, n_layers)


def readers(graph: Graph, name: str) -> list[int]:
    return [i for i, op in enumerate(graph.operators) if name in op.inputs]


def stages(step: LayeredStep, cuts: list[int]) -> dict[str, int]:
    """The stage of each operator, if layers are cut before each of `cuts`."""
    return {name: sum(at >= cut for cut in cuts) for name, at in step.layer_of.items()}


@settings(max_examples=max(100, settings().max_examples // 5))
@given(st.sampled_from(sorted(EXAMPLES)), st.integers(2, 8), st.data())
def test_values_flow_forwards_and_gradients_backwards(
    name: str, n_layers: int, data: st.DataObject
) -> None:
    step = layered(name, n_layers)
    cuts = data.draw(st.sets(st.integers(1, step.n_layers - 1), min_size=1, max_size=3))
    assert_flows(step, sorted(cuts))


@settings(max_examples=max(100, settings().max_examples // 5))
@given(steps(max_operations=8), st.sampled_from([1, 2]))
def test_values_of_random_steps_flow_so_too(
    drawn: tuple[Any, tuple[Any, Any]], microbatches: int
) -> None:
    function, arguments = drawn
    try:
        found = trace(function, arguments, batch_argnums=(1,), microbatches=microbatches)
    except AccumulationError:
        return
    step = layer(found.step, 3)
    for k in range(step.n_layers):
        autoshard.verify(step.stage(k, k))
    assert_flows(step, list(range(1, step.n_layers)))


def assert_flows(step: LayeredStep, cuts: list[int]) -> None:
    graph, stage_of = step.step.graph, stages(step, cuts)
    for value, (source, destinations) in crossings(graph, stage_of).items():
        phase = graph.operators[graph.producers[value][0]].phase
        for index in readers(graph, value):
            reader = graph.operators[index]
            destination = stage_of[reader.name]
            if destination == source:
                continue
            assert destination in destinations
            assert (phase == APPLY) == (reader.phase == APPLY), "totals cross in apply only"
            if phase == FORWARD and reader.phase == FORWARD:
                assert source < destination
            if phase == BACKWARD:
                assert source > destination


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_run_of_layers_is_a_graph(name: str) -> None:
    step = layered(name)
    for first in range(step.n_layers):
        for last in range(first, step.n_layers):
            autoshard.verify(step.stage(first, last))


@settings(max_examples=max(100, settings().max_examples // 5))
@given(st.sampled_from(sorted(EXAMPLES)), st.data())
def test_stages_partition_the_step(name: str, data: st.DataObject) -> None:
    step = layered(name, 8)
    cuts = sorted(data.draw(st.sets(st.integers(1, step.n_layers - 1), max_size=3)))
    graphs = [step.stage(a, b - 1) for a, b in pairwise([0, *cuts, step.n_layers])]
    whole = step.step.graph
    names = [op.name for graph in graphs for op in graph.operators]
    assert sorted(names) == sorted(op.name for op in whole.operators)
    made = [{n for op in graph.operators for n in op.outputs} for graph in graphs]
    for graph, mine in zip(graphs, made, strict=True):
        sent = {output.value for output in graph.outputs}
        assert sent <= mine
        for name in graph.inputs:
            if name not in whole.inputs:
                assert any(
                    name in {output.value for output in other.outputs} for other in graphs
                ), "what a stage receives, another one sends"
    results = [output for graph in graphs for output in graph.outputs if output in whole.outputs]
    assert {output.value for output in results} >= {output.value for output in whole.outputs}


@pytest.mark.parametrize("name", EXAMPLES)
def test_all_that_a_step_updates_is_kept_in_one_layer(name: str) -> None:
    step = layered(name)
    graph = step.step.graph
    for output in graph.outputs:
        if output.alias is None:
            continue
        updater = graph.operators[graph.producers[output.value][0]]
        assert step.home[output.alias] == step.layer_of[updater.name]
        holders = [
            k
            for k in range(step.n_layers)
            if output.alias in step.stage(k, k).inputs and step.home[output.alias] == k
        ]
        assert holders == [step.home[output.alias]]


def test_a_parameter_of_two_layers_has_one_home_and_its_totals_are_added_in_apply() -> None:
    step = layered("tied")
    graph = step.step.graph
    assert step.home["params['embedding']"] == 0
    logits = next(
        step.layer_of[op.name]
        for op in graph.operators
        if op.phase == FORWARD and graph.value(op.outputs[0]).shape == (4, 4, 16)
    )
    assert logits != 0
    copy = step.stage(logits, logits)
    # held once, however many microbatches are in flight
    assert copy.value("params['embedding']").role == "parameter"
    shape = graph.value("params['embedding']").shape
    added = [op for op in graph.operators if op.kind == "add_any" and op.phase == APPLY]
    assert [graph.value(op.outputs[0]).shape for op in added] == [shape]
    crossing = crossings(graph, stages(step, [logits]))
    large = [
        graph.operators[graph.producers[n][0]]
        for n in crossing
        if graph.value(n).shape == shape and n not in graph.inputs
    ]
    assert [op.kind for op in large] == [IDENTITY]
    totals = {n for op in added for n in op.inputs}
    (handed,) = large
    assert handed.outputs[0] in totals
    assert handed.inputs[0] in step.step.summed


def test_only_one_activation_and_its_gradient_cross_a_plain_model() -> None:
    step = layered("mlp")
    graph = step.step.graph
    for cut in range(1, step.n_layers):
        crossing = crossings(graph, stages(step, [cut]))
        shapes = [graph.value(n).shape for n in crossing if graph.value(n).shape != ()]
        assert len(shapes) == 2
        assert set(shapes) == {(4, 8)}


def test_weights_are_cast_where_they_are_used() -> None:
    def loss(params: list[jax.Array], x: jax.Array) -> jax.Array:
        for weight in [p.astype(jnp.bfloat16).T for p in params]:
            x = jnp.tanh(x.astype(jnp.bfloat16) @ weight)
        return jnp.sum(x.astype(jnp.float32))

    def step(params: list[jax.Array], x: jax.Array) -> list[jax.Array]:
        return jax.tree.map(lambda p, g: p - g, params, jax.grad(loss)(params, x))

    params, x = [jnp.ones((8, 8))] * 4, np.ones((8, 8), np.float32)
    found = layer(trace(step, (params, x), batch_argnums=(1,), microbatches=2).step, 4)
    assert [found.home[f"params[{i}]"] for i in range(4)] == [0, 1, 2, 3]
    for cut in range(1, 4):
        crossing = crossings(found.step.graph, stages(found, [cut]))
        assert {found.step.graph.value(name).shape for name in crossing} == {(4, 8)}


def test_a_penalty_on_the_weights_stays_with_them() -> None:
    def loss(params: list[jax.Array], x: jax.Array) -> jax.Array:
        for weight in params:
            x = jnp.tanh(x @ weight)
        return jnp.mean(x) + 0.1 * sum(jnp.sum(weight**2) for weight in params)

    def step(params: list[jax.Array], x: jax.Array) -> tuple[list[jax.Array], jax.Array]:
        value, gradients = jax.value_and_grad(loss)(params, x)
        return jax.tree.map(lambda p, g: p - g, params, gradients), value

    params, x = [jnp.ones((8, 8))] * 4, np.ones((8, 8), np.float32)
    found = layer(trace(step, (params, x), batch_argnums=(1,), microbatches=2).step, 4)
    for k in range(4):
        inputs = [name for name in found.stage(k, k).inputs if name.startswith("params")]
        assert inputs == [f"params[{k}]"]


def test_a_skip_connection_crosses_every_cut_between_its_ends() -> None:
    step = layered("skip")
    graph = step.step.graph
    middle = step.n_layers // 2
    crossing = crossings(graph, stages(step, [1, middle, step.n_layers - 1]))
    assert any(len(destinations) > 1 for _, destinations in crossing.values())


def test_optimizer_state_lives_with_its_parameter() -> None:
    step = layered("adamw")
    for i in range(4):
        for part in ("mu", "nu"):
            for leaf in ("w", "b"):
                state = f"opt_state[0].{part}[{i}]['{leaf}']"
                assert step.home[state] == step.home[f"params[{i}]['{leaf}']"]


def test_nothing_but_scalars_of_apply_crosses_between_residual_blocks() -> None:
    """The gradient of a block's last bias needs only what the next block makes."""

    def loss(params: list[dict[str, jax.Array]], x: jax.Array) -> jax.Array:
        for p in params:
            x = x + jax.nn.gelu(x @ p["up"] + p["inner"]) @ p["down"] + p["outer"]
        return jnp.mean(x**2)

    def step(params: Any, state: Any, x: jax.Array) -> tuple[Any, Any]:
        updates, state = optimizer.update(jax.grad(loss)(params, x), state, params)
        return optax.apply_updates(params, updates), state

    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    block = {"up": (8, 32), "inner": (32,), "down": (32, 8), "outer": (8,)}
    params = [{k: jnp.ones(shape) for k, shape in block.items()} for _ in range(4)]
    arguments = (params, optimizer.init(params), jnp.ones((8, 8)))
    found = layer(trace(step, arguments, batch_argnums=(2,), microbatches=2).step)
    for i in range(4):
        for leaf in block:
            home = found.home[f"params[{i}]['{leaf}']"]
            for part in ("mu", "nu"):
                assert found.home[f"state[1][0].{part}[{i}]['{leaf}']"] == home == i
    graph = found.step.graph
    for name in crossings(graph, stages(found, [*range(1, found.n_layers)])):
        producer, _ = graph.producers[name]
        assert graph.operators[producer].phase != APPLY or graph.value(name).shape == ()


def test_scalars_of_the_optimizer_cross_a_cut_once() -> None:
    step = layered("adamw")
    graph = step.step.graph
    crossing = crossings(graph, stages(step, [2]))
    scalars = [n for n in crossing if graph.value(n).shape == ()]
    assert len(scalars) <= 4  # learning rate, and the bias corrections


def test_equal_layers_have_equal_structure() -> None:
    step = layered("mlp")
    assert autoshard.structural_hash(step.stage(1, 1)) == autoshard.structural_hash(
        step.stage(2, 2)
    )


def test_layers_share_the_work_evenly() -> None:
    step = layer(mlp().trace().step, 4)
    work = [0.0] * step.n_layers
    for op in step.step.graph.operators:
        if op.phase == FORWARD:
            work[step.layer_of[op.name]] += op.flops
    assert max(work) < 2 * min(work)


@pytest.mark.parametrize("n_layers", [1, 2, 3, 8, 1000])
def test_there_are_at_most_as_many_layers_as_asked_for(n_layers: int) -> None:
    step = layer(tied().trace().step, n_layers)
    assert 1 <= step.n_layers <= n_layers
    assert set(step.layer_of.values()) <= set(range(step.n_layers))
    assert step.layer_of.keys() == {op.name for op in step.step.graph.operators}


def test_a_linear_model_whose_loss_is_not_returned_has_a_layer() -> None:
    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        return w - jax.grad(lambda w: jnp.sum(x @ w))(w)

    w, x = jnp.ones((4, 4)), np.ones((8, 4), np.float32)
    found = layer(trace(step, (w, x), batch_argnums=(1,), microbatches=2).step)
    assert found.n_layers == 1
    autoshard.verify(found.stage(0, 0))


def test_layering_is_deterministic() -> None:
    example: Example = tied()
    first, second = (layer(example.trace().step, 3) for _ in range(2))
    assert first == second
