import numpy as np
from autoshard import prepare
from autoshard.graph.structure import outline_of
from autoshard.programs import deep_mlp_step
from autoshard.testing import graphs, toy_cluster
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Mesh

MESH = Mesh((2, 2), ("x", "y"))


@given(graphs(), st.integers(1, 3))
def test_all_that_reads_a_value_is_in_one_reading_a_phase(graph, in_flight):
    outline = outline_of(graph, in_flight, False)
    found = [(one.value, one.phase, time) for one in outline.readings for time in one.times]
    operands = [(n, op.phase, i) for i, op in enumerate(graph.operators) for n in op.inputs]
    assert [one for one in operands if one not in found] == []
    assert len({(one.value, one.phase) for one in outline.readings}) == len(outline.readings)
    for index, first in enumerate(outline.readings_alike):
        assert first <= index
        assert outline.readings_alike[first] == first


def test_layers_that_are_alike_are_found():
    graph = deep_mlp_step(widths=(8,) * 9, batch=4)
    outline = outline_of(graph, 1, False)
    assert len(set(outline.operators)) < len(graph.operators) / 2
    assert len(set(outline.readings_alike)) < len(outline.readings) / 2


@given(graphs(), graphs())
def test_a_problem_does_not_depend_on_what_was_built_before(first, second):
    cluster = toy_cluster()
    alone = prepare(second, MESH, cluster).light.problem
    _ = prepare(first, MESH, cluster).light  # which fills the mesh's tables
    again = prepare(second, MESH, cluster).light.problem
    assert (again.edges, again.intervals) == (alone.edges, alone.intervals)
    for one, other in zip(
        alone.node_costs + alone.edge_costs + alone.usages,
        again.node_costs + again.edge_costs + again.usages,
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)
