"""Graphs so small that all their shardings can be tried, and a cluster for them."""

from __future__ import annotations

import math

from costmodel import Cluster, Device, Link
from hypothesis import assume
from hypothesis import strategies as st
from shardspec import Mesh

from autoshard.graph.graph import Graph
from autoshard.space.strategy import enumerate_strategies, stored_specs
from autoshard.testing.graphs import graphs


def toy_cluster(latency_s: float = 1e-6, bandwidth_bytes_per_s: float = 1e9) -> Cluster:
    """Two hosts of four devices, on which communication and compute of tiny tensors cost alike.

    Communication between hosts takes ten times as long as inside.
    """
    rates = tuple((dtype, 1e10) for dtype in ("float32", "bfloat16", "int32"))
    device = Device("toy", rates, 2**30, 1e10, 0.0)
    inside = Link(latency_s, bandwidth_bytes_per_s)
    between = Link(10 * latency_s, bandwidth_bytes_per_s / 10)
    return Cluster.uniform("toy", 2, 4, device, inside, between)


def count_shardings(graph: Graph, mesh: Mesh) -> int:
    """The number of ways to store all inputs and run all operators, including uneven ones."""
    shapes = [graph.value(name).shape for name in graph.inputs]
    inputs = [len(stored_specs(shape, mesh.shape, uneven=True)) for shape in shapes]
    rules = [operator.rule for operator in graph.operators]
    strategies = [len(enumerate_strategies(rule, mesh.shape, uneven=True)) for rule in rules]
    return math.prod(inputs + strategies)


@st.composite
def tiny_graphs(draw: st.DrawFn, mesh: Mesh, most: int) -> Graph:
    """Graphs of up to four operators with at most `most` shardings."""
    graph = draw(graphs(max_operators=4, updates=draw(st.booleans())))
    assume(count_shardings(graph, mesh) <= most)
    return graph
