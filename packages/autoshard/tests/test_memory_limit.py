"""Memory limits are kept, cost more if they are lower, and errors name the smallest one."""

import itertools
import math
from collections import Counter
from contextlib import suppress
from dataclasses import replace

import pytest
from autoshard import (
    GraphBuilder,
    InfeasibleError,
    Options,
    enumerate_strategies,
    held,
    prepare,
    shard,
    stored_specs,
)
from autoshard.answer.largest_first import fewest_sharded
from autoshard.programs import mlp_step
from autoshard.testing import check_sharding, tiny_graphs, toy_cluster
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from shardspec import Mesh, Spec

PAIR = Mesh((2,), ("x",))
SQUARE = Mesh((2, 2), ("x", "y"))


def optimum(prepared, **options):
    """The price of the best sharding; infinite if there is none."""
    try:
        found = prepared.solve(compare=False, **options)
    except InfeasibleError:
        return math.inf
    check_sharding(found)
    return found.objective_s


@settings(max_examples=settings().max_examples // 8)
@given(tiny_graphs(PAIR, 10**6), st.sampled_from([1, 2]), st.floats(0.3, 1.0))
def test_more_memory_never_costs_more(graph, in_flight, part):
    prepared = prepare(graph, PAIR, toy_cluster(), Options(in_flight=in_flight))
    free = prepared.solve(compare=False)
    limits = [int(free.peak_bytes * part), int(free.peak_bytes * (1 + part) / 2), free.peak_bytes]
    costs = [optimum(prepared, memory_bytes=limit) for limit in limits]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == free.objective_s


def late_reader():
    """Only the last of several possible readers uses a copy; the problem holds it for all."""
    p = GraphBuilder()
    x = p.input("x", 2)
    first = p.apply("runs whole", x)
    p.apply("tanh", x)
    p.output(p.apply("runs whole", first))
    return p.build()


@settings(max_examples=settings().max_examples // 8)
@given(tiny_graphs(PAIR, 10**6), st.floats(0.0, 1.0))
@example(late_reader(), 0.0)
def test_the_limit_that_an_error_names_would_do_and_less_would_not(graph, part):
    prepared = prepare(graph, PAIR, toy_cluster())
    with pytest.raises(InfeasibleError) as caught:
        prepared.solve(memory_bytes=0)
    smallest = math.ceil(caught.value.smallest_usage)
    found = prepared.solve(memory_bytes=smallest)
    check_sharding(found)
    assert found.peak_bytes == smallest
    for less in (smallest - 1, int(part * (smallest - 1))):
        with pytest.raises(InfeasibleError) as again:
            prepared.solve(memory_bytes=less)
        assert again.value.smallest_usage == smallest


@settings(max_examples=settings().max_examples // 4)
@given(tiny_graphs(PAIR, 100))
def test_no_sharding_takes_less_than_the_smallest_limit(graph):
    """No sharding with the fastest conversions; a value with three readers may count too long."""
    reads = Counter([*itertools.chain(*(op.inputs for op in graph.operators))])
    reads.update(output.value for output in graph.outputs)
    assume(max(reads.values()) <= 2)
    prepared = prepare(graph, PAIR, toy_cluster())
    with pytest.raises(InfeasibleError) as caught:
        prepared.solve(memory_bytes=0)
    names = (*graph.inputs, *(op.name for op in graph.operators))
    stored = (stored_specs(graph.value(name).shape, PAIR.shape) for name in graph.inputs)
    ways = (enumerate_strategies(op.rule, PAIR.shape) for op in graph.operators)
    peaks = []
    for choice in itertools.product(*stored, *ways):
        with suppress(InfeasibleError):  # a constant would have to be sent
            found = prepared.solve(pin=dict(zip(names, choice, strict=True)), compare=False)
            peaks.append(found.peak_bytes)
    assert caught.value.smallest_usage == min(peaks)


def test_a_gathered_parameter_counts_while_it_is_read():
    p = GraphBuilder()
    y = p.dot(p.input("x", 1024, 64), p.parameter("w", 64, 64))
    p.output(y)
    batch, whole = (Spec.parse(text) for text in ("S0R", "RR"))
    prepared = prepare(p.build(), PAIR, toy_cluster())
    found = prepared.solve(pin={"x": batch, "w": batch, y: batch}, compare=False)
    copies = [one for one in held(found) if one.kind == "copy"]
    assert [(one.value, one.spec, one.n_bytes) for one in copies] == [("w", whole, 4 * 64 * 64)]
    assert found.peak_bytes == 4 * (1024 * 64 + 64 * 64 // 2 + 64 * 64)
    with pytest.raises(InfeasibleError, match=r"when it holds at least x \(131072 bytes\)"):
        prepared.solve(
            pin={"x": batch, "w": batch, y: batch}, memory_bytes=found.peak_bytes - 1, compare=False
        )


def test_the_fewest_largest_parameters_are_sharded_and_a_constraint_is_never_worse():
    graph = mlp_step(batch=64, width=32, hidden=64)
    prepared = prepare(graph, SQUARE, toy_cluster(1e-5, 1e8))
    free = prepared.solve(compare=False)
    n_sharded = []
    for tenths in (10, 9, 7):
        limit = free.peak_bytes * tenths // 10
        found = prepared.solve(memory_rule="largest", memory_bytes=limit, compare=False)
        check_sharding(found)
        assert found.options.memory_rule == "largest"
        best = prepared.solve(memory_bytes=limit, compare=False)
        check_sharding(best)
        assert free.objective_s <= best.objective_s <= found.objective_s * (1 + 1e-9)
        assert found.lower_bound_s <= best.objective_s * (1 + 1e-9)
        n_sharded.append(sum(bool(spec.axes) for _, spec in found.input_specs))
    assert n_sharded[0] == 0 < n_sharded[1] < n_sharded[2] <= 6
    with pytest.raises(InfeasibleError, match="with all 6 of them sharded the peak is"):
        prepared.solve(memory_rule="largest", memory_bytes=1, compare=False)


def test_the_rule_of_the_largest_takes_the_smallest_number_that_fits():
    """The solver here is a function whose peak falls by one with each forced parameter."""
    graph = mlp_step(batch=64, width=32, hidden=64)
    free = shard(graph, SQUARE, toy_cluster(), compare=False)
    asked = []

    def solve(forced):
        asked.append(len(forced))
        bound = 1.0 + len(forced) / 10
        return replace(free, peak_bytes=100 - len(forced), objective_s=2.0, lower_bound_s=bound)

    for k in range(7):
        found = fewest_sharded(solve, graph, SQUARE.shape, memory_bytes=100 - k)
        assert found.peak_bytes == 100 - k
        assert found.lower_bound_s == 1.0  # of all shardings, not of those with so many forced
    by_size = sorted((n for n in graph.inputs if n != "x"), key=lambda n: -graph.value(n).n_bytes)
    assert len(by_size) == 6
    assert max(asked) == 6
