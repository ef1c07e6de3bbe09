"""A footprint gives the bytes that a device holds for any number of microbatches in flight."""

from dataclasses import replace

import pytest
from autoshard import OptionError, footprint, live_bytes, prepare
from autoshard.answer.judge import recompute_memory
from autoshard.programs import mlp_step
from autoshard.testing import graphs
from costmodel import Cluster
from hypothesis import given, settings
from hypothesis import strategies as st
from shardspec import Mesh

CLUSTER = Cluster.preset("two-hosts")


@given(graphs(), st.sampled_from([(2,), (2, 2)]), st.integers(1, 5))
@settings(max_examples=settings().max_examples // 2)
def test_a_footprint_knows_the_peak_of_any_number_of_microbatches_in_flight(graph, shape, n):
    mesh = Mesh(shape, ("x", "y")[: len(shape)])
    found = prepare(graph, mesh, CLUSTER).solve(compare=False)
    held = footprint(found)
    several = replace(found, options=replace(found.options, in_flight=n))
    assert held.peak_bytes(n) == recompute_memory(several)[0] == max(live_bytes(several))
    assert held.activation_bytes == found.activation_bytes


def test_each_microbatch_in_flight_takes_its_saved_activations():
    graph = mlp_step(batch=32, width=64, hidden=256, microbatches=8)
    found = footprint(prepare(graph, Mesh((2,), ("x",)), CLUSTER).solve(compare=False))
    assert found.activation_bytes > 0
    assert max(found.saved) == found.activation_bytes
    grown = found.peak_bytes(5) - found.peak_bytes(4)
    assert grown == pytest.approx(found.activation_bytes)
    with pytest.raises(OptionError, match="in_flight"):
        found.peak_bytes(0)
