"""Activations that are computed again instead of held."""

import pytest
from autoshard import GraphError, baseline, rematerialize
from autoshard.graph.lifetime import saved_activations
from autoshard.programs import mlp_step
from autoshard.testing import check_sharding, toy_cluster
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


def test_only_saved_activations_are_computed_again():
    graph = mlp_step(batch=8, width=4, hidden=16)
    with pytest.raises(
        GraphError, match=r"got 'x', and such values of the graph are einsum_0, gelu_1, "
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
