"""What operators read, write and launch as parts of kernels: priced, kept in files, and judged."""

from dataclasses import replace

import pytest
from autoshard import Accesses, Graph, GraphError, RecordError, shard, structural_hash, verify
from autoshard.answer.judge import operator_seconds
from autoshard.programs import gpt_step, mlp_step, vgg13_step
from autoshard.space.options import Options
from autoshard.space.strategy_tables import compute_seconds, table_of
from costmodel import Cluster
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Mesh

H200 = Cluster.preset("h200-sxm").resized(devices_per_host=4)
MESH = Mesh((2, 2), ("x", "y"))
GRAPHS = [mlp_step(batch=8, width=4, hidden=16), vgg13_step(batch=8)]
NUMBERS = st.sampled_from([0.0, 0.5, 1.0, 2.0])


@st.composite
def fused(draw: st.DrawFn) -> Graph:
    """A graph some of whose operators are parts of kernels, or have more work in later indices."""
    graph = draw(st.sampled_from(GRAPHS))
    operators = []
    for op in graph.operators:
        n = len(op.inputs) + len(op.outputs)
        times = draw(st.none() | st.lists(NUMBERS, min_size=n, max_size=n))
        accesses = None if times is None else Accesses(tuple(times), draw(NUMBERS))
        rises = draw(st.booleans())  # of all loops that may be split
        factors = tuple(replace(f, rises=rises and f.kind != "whole") for f in op.rule.factors)
        operators.append(replace(op, accesses=accesses, rule=replace(op.rule, factors=factors)))
    return replace(graph, operators=tuple(operators))


@given(fused())
def test_they_are_kept_in_text_and_json(graph: Graph) -> None:
    assert Graph.parse(str(graph)).operators == graph.operators
    assert Graph.from_json(graph.to_json()) == graph


@given(fused(), st.data())
def test_every_strategy_has_the_seconds_that_the_judge_finds(
    graph: Graph, data: st.DataObject
) -> None:
    operator = data.draw(st.sampled_from(graph.operators))
    table = table_of(graph, operator, MESH.shape, Options())
    operands, results = (
        [graph.value(name) for name in names] for names in (operator.inputs, operator.outputs)
    )
    seconds = compute_seconds(operator, operands, results, H200.device, table)
    expected = [operator_seconds(graph, operator, s, MESH, H200.device) for s in table.strategies]
    assert list(seconds) == pytest.approx(expected, rel=1e-12)


def test_a_sharding_of_kernels_verifies_and_is_faster() -> None:
    graph = gpt_step(n_layers=1, batch=4, length=16, width=16, heads=2, vocabulary=32)
    inside = Accesses((0.0, 0.0), 0.0)
    light = [
        replace(op, accesses=inside) if (len(op.inputs), len(op.outputs)) == (1, 1) else op
        for op in graph.operators
    ]
    alone, together = (
        shard(one, MESH, H200, compare=False)
        for one in (graph, replace(graph, operators=tuple(light)))
    )
    together.verify()
    assert together.objective_s < alone.objective_s
    assert structural_hash(alone.graph) != structural_hash(together.graph)


def test_a_number_for_each_operand_and_result_is_asked_for() -> None:
    graph = GRAPHS[0]
    (first, *others) = graph.operators
    wrong = replace(graph, operators=(replace(first, accesses=Accesses((1.0,))), *others))
    with pytest.raises(GraphError, match="accesses of an operator have a number for each"):
        verify(wrong)
    with pytest.raises(GraphError, match="the accesses of each of a graph's operators is"):
        verify(replace(graph, operators=(replace(first, accesses=Accesses((-1.0,))), *others)))


def test_accesses_that_are_no_numbers_are_refused_in_text_and_json() -> None:
    graph = GRAPHS[0]
    n = len(graph.operators[0].inputs) + len(graph.operators[0].outputs)
    first = replace(graph.operators[0], accesses=Accesses((1.0,) * n))
    whole = replace(graph, operators=(first, *graph.operators[1:]))
    with pytest.raises(GraphError, match="accesses of an operator are numbers"):
        Graph.parse(str(whole).replace("accesses=1.0", "accesses=one"))
    with pytest.raises(RecordError, match="times"):
        Graph.from_json(whole.to_json().replace('"times": [1.0', '"times": ["one"'))
