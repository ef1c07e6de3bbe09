"""The problem of a graph has the true costs: checked by trying all shardings of tiny graphs."""

import pytest
from autoshard import (
    GraphBuilder,
    InfeasibleError,
    OptionError,
    Options,
    PinError,
    collectives,
    enumerate_strategies,
    prepare,
    shard,
    stored_specs,
)
from autoshard.testing import check_sharding, graphs, least_seconds, tiny_graphs, toy_cluster
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from shardspec import Mesh, Spec

PAIR = Mesh((2,), ("x",))


@settings(max_examples=settings().max_examples // 2)
@given(tiny_graphs(PAIR, 5_000), st.sampled_from([0.0, 1e-6]), st.sampled_from([1e6, 1e9]))
def test_the_optimum_is_that_of_trying_everything(graph, latency_s, bandwidth):
    prices = toy_cluster(latency_s, bandwidth)
    found = shard(graph, PAIR, prices, compare=False)
    check_sharding(found)
    assert found.solution.gap < 1e-9
    assert found.objective_s == pytest.approx(
        least_seconds(graph, PAIR, prices), rel=1e-9, abs=1e-15
    )


@settings(max_examples=settings().max_examples // 4)
@given(tiny_graphs(PAIR, 10**6), st.data())
def test_pinning_never_helps_and_is_kept(graph, data):
    prepared = prepare(graph, PAIR, toy_cluster())
    free = prepared.solve(compare=False)
    name = data.draw(st.sampled_from(graph.inputs))
    spec = data.draw(st.sampled_from(stored_specs(graph.value(name).shape, PAIR.shape)))
    index = data.draw(st.integers(0, len(graph.operators) - 1))
    ways = enumerate_strategies(graph.operators[index].rule, PAIR.shape)
    pins = {name: spec, graph.operators[index].name: data.draw(st.sampled_from(ways))}
    assume(len(pins) == 2)
    try:
        pinned = prepared.solve(pin=pins, compare=False)
    except InfeasibleError:  # a constant would have to be sent
        return
    check_sharding(pinned)
    assert dict(pinned.input_specs)[name] == spec
    assert pinned.strategies[index] == pins[graph.operators[index].name]
    assert pinned.objective_s >= free.objective_s * (1 - 1e-9)
    again = prepared.solve(
        pin={op.name: s for op, s in zip(graph.operators, free.strategies, strict=True)}
    )
    assert again.objective_s <= free.objective_s * (1 + 1e-9)


def test_pins_that_cannot_be_are_refused():
    p = GraphBuilder()
    p.output(p.apply("tanh", p.input("x", 4, 3)))
    prepared = prepare(p.build(), PAIR, toy_cluster())
    with pytest.raises(PinError, match="'nobody', which is none"):
        prepared.solve(pin={"nobody": Spec.parse("RR")})
    with pytest.raises(PinError, match=r"'x' on a mesh of shape \(2,\) cannot be RS0"):
        prepared.solve(pin={"x": Spec.parse("RS0")})
    with pytest.raises(PinError, match="pinned to an operator; got 'x'"):
        prepared.solve(pin={"x": enumerate_strategies(p.build().operators[0].rule, (2,))[0]})

    with pytest.raises(PinError, match=r"such as RS0; got 'R\?' for 'x': a spec is a letter"):
        prepared.solve(pin={"x": "R?"})
    with pytest.raises(PinError, match=r"or its text, or a tuple of Specs; got 7 for 'x'"):
        prepared.solve(pin={"x": 7})


def test_a_pin_may_be_text():
    p = GraphBuilder()
    p.output(p.apply("tanh", p.input("x", 4, 2)))
    prepared = prepare(p.build(), PAIR, toy_cluster())
    for text in ("RS0", ("RS0", "RS0"), (Spec.parse("RS0"), "RS0")):
        found = prepared.solve(pin={"x": text})
        assert dict(found.input_specs)["x"] == Spec.parse("RS0")


def test_options_that_mean_nothing_are_refused():
    with pytest.raises(OptionError, match="in flight; got in_flight=0"):
        Options(in_flight=0)
    with pytest.raises(OptionError, match="got memory_bytes=-1"):
        Options(memory_bytes=-1)
    with pytest.raises(OptionError, match="a memory rule is one of"):
        Options(memory_rule="magic")
    with pytest.raises(OptionError, match=r"below 1; got overlap=1\.0"):
        Options(overlap=1.0)
    with pytest.raises(OptionError, match="got bucket_bytes=0"):
        Options(bucket_bytes=0)


@settings(max_examples=settings().max_examples // 6)
@given(graphs(max_operators=4))
def test_a_nested_mesh_is_never_worse(graph):
    """The two axes of 2 into which an axis of 4 is split can do all that the axis can."""
    flat = Mesh((4,), ("x",))
    coarse, fine = (
        shard(graph, mesh, toy_cluster(), compare=False) for mesh in (flat, flat.split("x", (2, 2)))
    )
    check_sharding(fine)
    assert fine.objective_s <= coarse.objective_s * (1 + 1e-9)


@settings(max_examples=settings().max_examples // 6)
@given(tiny_graphs(PAIR, 10**6), st.sampled_from([0.25, 0.5, 0.9]))
def test_overlap_hides_no_more_than_compute_and_never_costs(graph, overlap):
    prices = toy_cluster(bandwidth_bytes_per_s=1e8)
    plain, hiding = (
        shard(graph, PAIR, prices, compare=False, overlap=part) for part in (0.0, overlap)
    )
    check_sharding(hiding)
    for hidden, computed in zip(hiding.hidden_s, hiding.compute_s, strict=True):
        assert 0.0 <= hidden <= computed
    assert hiding.lower_bound_s <= plain.objective_s * (1 + 1e-9)
    assert plain.hidden_s == (0.0,) * len(graph.phases)


def test_a_bucket_pays_one_latency():
    """Eight equal gradients are reduced in apply, one after the other or in one bucket."""
    prices = toy_cluster(latency_s=1e-3)
    p = GraphBuilder()
    x = p.input("x", 64, 8)
    p.phase("backward")
    names = [f"w{i}" for i in range(8)]
    for name in names:
        p.parameter(name, 8, 8)
    gradients = [p.einsum("bi,bj->ij", x, x) for _ in names]
    p.phase("apply")
    for name, gradient in zip(names, gradients, strict=True):
        p.output(p.add(name, gradient), alias=name)
    graph = p.build()
    pins = {"x": Spec.parse("S0R")} | {name: Spec.parse("RR") for name in names}
    pins |= {gradient: Spec.parse("RR+P0") for gradient in gradients}
    one = 8 * 8 * 4
    saved = []
    for size in (one - 1, one, 4 * one, 8 * one):
        options = Options(bucket_bytes=size)
        found = prepare(graph, PAIR, prices, options).solve(pin=pins, compare=False)
        sent = [c.step.kind for c in collectives(graph, found)]
        assert sent == ["all_reduce"] * 8
        saved.append(found.bucketed_s[-1])
    latency = prices.links(PAIR)[0].latency_s
    assert saved[0] == saved[1] == 0.0
    each = saved[3] - saved[2]  # two buckets become one: one latency less
    assert each > 0.9 * latency
    assert saved[2] == pytest.approx(6 * each)
    assert saved[3] == pytest.approx(7 * each)
