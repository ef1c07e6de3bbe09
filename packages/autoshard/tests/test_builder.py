import math

import numpy as np
import pytest
from autoshard import (
    Graph,
    GraphBuilder,
    GraphError,
    RuleError,
    collectives,
    flops_of,
    shard,
    structural_hash,
    verify,
)
from autoshard.testing import cases, graphs
from costmodel import Cluster
from hypothesis import given
from shardspec import Mesh


@given(graphs())
def test_random_graphs_are_well_formed(graph):
    verify(graph)


def test_ten_lines_are_a_program_that_shards_as_megatron_does():
    graph = GraphBuilder()
    x = graph.input("x", 1, 1024)
    w1, w2 = graph.parameter("w1", 1024, 65536), graph.parameter("w2", 65536, 1024)
    y = graph.dot(graph.apply("gelu", graph.dot(x, w1)), w2, name="y")
    graph.output(y, whole=True)
    written = graph.build()
    found = shard(written, Mesh((4,), ("x",)), Cluster.preset("two-hosts"))
    assert [(c.value, c.step.kind) for c in collectives(written, found)] == [("y", "all_reduce")]


def test_dot_multiplies_as_numpy_does():
    graph = GraphBuilder()
    x, w, heads = graph.input("x", 2, 3, 4), graph.input("w", 4, 5), graph.input("h", 2, 4, 6)
    assert graph.shape(graph.dot(x, w)) == (2, 3, 5)
    assert graph.shape(graph.dot(x, heads)) == (2, 3, 6)


def test_numpys_whole_numbers_are_sizes():
    def graph(size):
        written = GraphBuilder()
        x = written.input("x", size, size)
        written.output(written.reshape(written.reduce_sum(x, 0, keepdims=True), size))
        return written.build()

    assert graph(np.int64(4)) == graph(4)
    assert structural_hash(graph(np.int64(4))) == structural_hash(graph(4))
    assert Graph.from_json(graph(np.int64(4)).to_json()) == graph(4)


@pytest.mark.parametrize("shape", [(4.0,), ("4",), ((4, 4),), (None,)])
def test_sizes_are_whole_numbers(shape):
    with pytest.raises(
        GraphError, match=r"whole numbers, each a separate argument; got .* for 'x'"
    ):
        GraphBuilder().input("x", *shape)


def test_operands_broadcast_unless_a_shape_is_given():
    graph = GraphBuilder()
    x, bias = graph.input("x", 4, 8), graph.parameter("b", 8)
    assert graph.shape(graph.add(x, bias)) == (4, 8)
    assert graph.shape(graph.apply("one_hot", bias, shape=(8, 16))) == (8, 16)


def test_flops_are_two_a_multiply_add_and_one_a_light_element():
    graph = GraphBuilder()
    x, w = graph.input("x", 4, 8), graph.parameter("w", 8, 16)
    y = graph.dot(x, w)
    z = graph.einsum("bd,de->be", x, w)
    graph.output(graph.reduce_sum(graph.mul(y, z), 0, 1))
    assert [operator.flops for operator in graph.build().operators] == [
        2 * 4 * 8 * 16,
        2 * 4 * 8 * 16,
        4 * 16,
        4 * 16,
    ]


@given(cases("convolution"))
def test_flops_of_a_convolution_are_those_of_its_products(case):
    """Counted in the forward pass: 2 for each element of the result, channel and tap."""
    kernel, result = case.attributes["kernel"], case.attributes["result"]
    shapes = list(case.operand_shapes)
    place = ["data", "kernel", "result"].index(case.attributes["computes"])
    shapes.insert(place, case.result_shapes[0])
    _, w, y = shapes
    taps, channels = w[kernel[2]], w[kernel[1]]
    positions = y[result[0]] * y[result[1]] * y[result[2]]
    found = flops_of(case.kind, case.operand_shapes, case.result_shapes, **case.attributes)
    assert found == 2 * positions * channels * taps


@given(cases())
def test_every_kind_has_flops(case):
    found = flops_of(case.kind, case.operand_shapes, case.result_shapes, **case.attributes)
    sizes = [math.prod(shape) for shape in case.operand_shapes + case.result_shapes]
    assert found > 0
    assert found == max(sizes) or case.kind in (
        "einsum", "dot_general", "convolution", "attention", "triangular_solve", "cholesky",
        "eig", "eigh", "lu", "qr", "schur", "svd",
    )  # fmt: skip


def test_several_results_are_numbered():
    graph = GraphBuilder()
    x = graph.input("x", 4, 8)
    values, places = graph.apply_all("top_k", x, shapes=((4, 2), (4, 2)), dim=1)
    assert (values, places) == ("top_k.0", "top_k.1")
    graph.output(values)
    assert len(graph.build().operators[0].outputs) == 2


def test_operators_run_in_the_phase_that_was_begun_last():
    graph = GraphBuilder()
    graph.phase("forward", repeats=4)
    x = graph.apply("exp", graph.parameter("x", 4))
    graph.phase("apply")
    graph.output(graph.apply("sgd", "x", x), alias="x")
    built = graph.build()
    assert [built.phases[operator.phase].name for operator in built.operators] == [
        "forward",
        "apply",
    ]


def test_an_unknown_kind_runs_whole_and_an_unknown_value_is_an_error():
    graph = GraphBuilder()
    x = graph.input("x", 4)
    graph.output(graph.apply("my own", x))
    assert {factor.kind for factor in graph.build().operators[0].rule.factors} == {"whole"}
    with pytest.raises(GraphError, match="reads values that were added before it; got 'y'"):
        graph.apply("exp", "y")


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda graph: graph.add("x", "y"), r"those of 'add' have shapes \(2, 3\), \(4, 5\)"),
        (lambda graph: graph.dot("v", "v"), r"got shapes \(3,\) and \(3,\)"),
        (lambda graph: graph.transpose("x", 0, 7), r"0 to 1 of 'x'; got \(0, 7\)"),
        (lambda graph: graph.reduce_sum("v", 5), r"dims of shape \(3,\) are 0 to 0; got 5"),
        (lambda graph: graph.einsum("ij", "x"), "has an arrow"),
    ],
)
def test_shapes_that_do_not_fit_are_an_error(write, message):
    graph = GraphBuilder()
    graph.input("x", 2, 3)
    graph.input("y", 4, 5)
    graph.input("v", 3)
    with pytest.raises((GraphError, RuleError), match=message):
        write(graph)


def test_names_are_given_once():
    graph = GraphBuilder()
    x = graph.input("x", 4)
    graph.apply("exp", x, name="y")
    with pytest.raises(GraphError, match="'y' is already 'y: float32"):
        graph.apply("exp", x, name="y")


def test_attributes_that_a_rule_does_not_take_are_an_error():
    graph = GraphBuilder()
    x = graph.input("x", 4)
    with pytest.raises(RuleError, match="'reduce_sum' takes other attributes: missing"):
        graph.apply("reduce_sum", x, shape=())
    with pytest.raises(RuleError, match="has result shapes"):
        graph.apply("transpose", x, shape=(5,), permutation=(0,))


def test_adafactor_of_pieces_communicates_its_factored_statistics_only():
    """Shazeer, Stern, ICML 2018, algorithm 4: the second moment is a product of two vectors."""
    graph = GraphBuilder()
    w, g = graph.parameter("w", 4096, 4096), graph.input("g", 4096, 4096)
    squares = graph.mul(g, g)
    rows, columns = graph.reduce_sum(squares, 1, name="rows"), graph.reduce_sum(squares, 0)
    moment = graph.einsum("i,j->ij", rows, columns)
    step = graph.mul(g, graph.apply("rsqrt", moment))
    graph.output(graph.apply("sgd", w, step), alias=w)
    written = graph.build()
    found = shard(written, Mesh((4,), ("x",)), Cluster.preset("two-hosts"))
    (collective,) = collectives(written, found)
    assert collective.step.kind == "all_reduce"
    assert written.value(collective.value).shape == (4096,)
