"""Uneven shards: dims that no number of devices divides, as if padded."""

import pytest
from autoshard import GraphBuilder, Options, collectives, enumerate_strategies, prepare, shard
from autoshard.testing import (
    cases,
    check_sharding,
    check_strategy,
    least_seconds,
    tiny_graphs,
    toy_cluster,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from shardspec import Mesh, Spec

TRIPLE = Mesh((3,), ("x",))


@given(cases(), st.sampled_from([TRIPLE, Mesh((4,), ("x",)), Mesh((2, 3), ("x", "y"))]), st.data())
def test_every_uneven_strategy_computes_the_right_result(case, mesh, data):
    strategies = enumerate_strategies(case.rule, mesh.shape, uneven=True)
    assert set(enumerate_strategies(case.rule, mesh.shape)) <= set(strategies)
    strategy = data.draw(st.sampled_from(strategies))
    seed = data.draw(st.integers(0, 99))
    check_strategy(case.rule, case.run, mesh, strategy, operands=case.operands, seed=seed)


def test_an_uneven_dim_costs_as_if_it_were_padded():
    costs = []
    mesh = Mesh((4,), ("x",))
    for n in (10, 12):
        p = GraphBuilder()
        p.output(p.apply("tanh", p.input("x", n, 64), name="y"), whole=True)
        pins = {"x": Spec.parse("S0R"), "y": Spec.parse("S0R")}
        options = Options(uneven=True)
        found = prepare(p.build(), mesh, toy_cluster(), options).solve(pin=pins, compare=False)
        check_sharding(found)
        costs.append((found.compute_s[0] / n, found.communication_s, found.peak_bytes))
        assert [c.step.kind for c in collectives(found.graph, found)] == ["all_gather"]
    (ten, *rest), (twelve, *padded) = costs
    assert ten == pytest.approx(twelve * 12 / 10)
    assert rest[0] == padded[0]
    assert rest[1] == padded[1] - 2 * 64 * 4  # the gathered copy is not padded


@settings(max_examples=settings().max_examples // 3)
@given(tiny_graphs(TRIPLE, 3_000), st.sampled_from([0.0, 1e-6]), st.sampled_from([1e6, 1e9]))
def test_uneven_strategies_never_hurt_and_the_optimum_is_found(graph, latency_s, bandwidth):
    prices = toy_cluster(latency_s, bandwidth)
    found = shard(graph, TRIPLE, prices, uneven=True, compare=False)
    check_sharding(found)
    even = shard(graph, TRIPLE, prices, compare=False)
    assert found.objective_s <= even.objective_s * (1 + 1e-9)
    least = least_seconds(graph, TRIPLE, prices, uneven=True)
    assert found.objective_s == pytest.approx(least, rel=1e-9, abs=1e-15)
