"""Activations that are computed again instead of held."""

from dataclasses import replace
from itertools import combinations

import pytest
from autoshard import (
    Graph,
    GraphError,
    Operator,
    Phase,
    Value,
    baseline,
    elementwise,
    least_saved,
    rematerialize,
    verify,
)
from autoshard.graph.lifetime import saved_activations
from autoshard.programs import mlp_step, transformer_step
from autoshard.testing import check_sharding, graphs, toy_cluster
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Mesh

PAIR = Mesh((2,), ("x",))


def test_what_is_computed_again_is_not_held_and_costs_its_operator():
    graph = mlp_step(batch=256, width=16, hidden=64, microbatches=4)
    lean = rematerialize(graph, ["gelu_1"])
    assert set(saved_activations(graph)) - set(saved_activations(lean)) == {"gelu_1"}
    assert len(lean.operators) == len(graph.operators) + 1
    fat, thin = (
        baseline(one, PAIR, toy_cluster(), "data_parallel", in_flight=4) for one in (graph, lean)
    )
    check_sharding(thin)
    part = 256 * 64 * 4 // 2
    assert thin.activation_bytes == fat.activation_bytes - part
    assert thin.peak_bytes <= fat.peak_bytes - 4 * part + part
    assert thin.compute_s[1] > fat.compute_s[1]


def test_only_results_of_the_first_phase_are_computed_again():
    graph = mlp_step(batch=8, width=4, hidden=16)
    with pytest.raises(
        GraphError, match=r"got 'x', and later phases read of these einsum_0, gelu_1, "
    ):
        rematerialize(graph, ["x"])


def test_a_chain_that_is_computed_again_starts_from_what_is_saved():
    graph = mlp_step(batch=8, width=4, hidden=16)
    lean = rematerialize(graph, ["einsum_0", "gelu_1"])
    assert not {"einsum_0", "gelu_1"} & set(saved_activations(lean))
    again = [op for op in lean.operators if op.name.startswith("backward@")]
    assert [(op.name, op.inputs) for op in again] == [
        ("backward@einsum_0", ("x", "w1")),
        ("backward@gelu_1", ("backward@einsum_0",)),
    ]


@st.composite
def read_later(draw: st.DrawFn) -> Graph:
    """A random graph, of whose results a later phase reads some."""
    graph = draw(graphs(max_operators=5, updates=False))
    results = st.sampled_from([name for op in graph.operators for name in op.outputs])
    values, operators = [*graph.values], [*graph.operators]
    for name in draw(st.lists(results, min_size=1, unique=True)):
        value = graph.value(name)
        rule = elementwise((value.shape,), value.shape, ((0,),))
        values.append(Value(f"d{name}", value.shape, value.dtype))
        operators.append(Operator(f"d{name}", "neg", (name,), (f"d{name}",), rule, 0.0, 1))
    phases = (*graph.phases, Phase("backward", 1))
    whole = replace(graph, phases=phases, values=tuple(values), operators=tuple(operators))
    verify(whole)
    return whole


def saved_bytes(graph: Graph) -> int:
    saved = (name for name in saved_activations(graph) if name in graph.producers)
    return sum(graph.value(name).n_bytes for name in saved)


@given(read_later(), st.data())
def test_no_other_choice_saves_fewer_bytes_or_as_few_with_less_work(
    graph: Graph, data: st.DataObject
):
    forward = [op for op in graph.operators if op.phase == 0]
    repeatable = data.draw(st.lists(st.sampled_from(forward), unique_by=lambda op: op.name))
    results = [name for op in repeatable for name in op.outputs]
    found = rematerialize(graph, least_saved(graph, [op.name for op in repeatable]))
    choices = (c for n in range(len(results) + 1) for c in combinations(results, n))
    others = [rematerialize(graph, choice) for choice in choices]
    best = min((saved_bytes(other), len(other.operators)) for other in others)
    assert (saved_bytes(found), len(found.operators)) == best


def test_only_some_readers_and_what_is_saved_anyhow():
    graph = mlp_step(batch=8, width=4, hidden=16)
    repeatable = ["einsum_0", "gelu_1"]
    assert least_saved(graph, repeatable) == ("einsum_0", "gelu_1")
    assert least_saved(graph, repeatable, saved=["einsum_0"]) == ("gelu_1",)
    assert least_saved(graph, repeatable, readers=[]) == ()


def test_a_transformer_keeps_its_products_or_its_inputs():
    sizes = {"n_layers": 1, "batch": 8, "length": 16, "width": 32, "heads": 4, "vocabulary": 64}
    graph = transformer_step(**sizes)
    forward = [op for op in graph.operators if op.phase == 0]
    products = {op.name for op in forward if len(op.inputs) == 2 and op.flops > 1e4}
    cheap = [op.name for op in forward if op.name not in products]
    lean = rematerialize(graph, least_saved(graph, cheap))
    assert 0 < saved_bytes(lean) < saved_bytes(graph)
    again = {op.name.removeprefix("backward@") for op in lean.operators if "@" in op.name}
    assert again
    assert not again & products
    everything = rematerialize(graph, least_saved(graph, [op.name for op in forward]))
    assert saved_bytes(everything) == 0
