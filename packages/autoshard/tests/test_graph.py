import dataclasses
import math
from dataclasses import replace

import numpy as np
import pytest
from autoshard import (
    Graph,
    GraphError,
    Operator,
    Output,
    Phase,
    Value,
    elementwise,
    structural_hash,
    verify,
)
from autoshard.programs import gpt_step, mlp_step
from autoshard.testing import graphs
from hypothesis import given, settings


def chain(**changes):
    """Y = tanh(x), z = y + w."""
    graph = Graph(
        phases=(Phase("forward", 2), Phase("apply")),
        values=tuple(Value(name, (4, 8), "float32") for name in "xwyz"),
        operators=(
            Operator("o1", "tanh", ("x",), ("y",), elementwise(((4, 8),), (4, 8))),
            Operator(
                "o2", "add", ("y", "w"), ("z",), elementwise(((4, 8), (4, 8)), (4, 8)), phase=1
            ),
        ),
        inputs=("x", "w"),
        outputs=(Output("z", alias="w"), Output("y")),
    )
    return replace(graph, **changes)


@pytest.mark.parametrize("graph", [chain(), mlp_step(batch=4, width=8, hidden=16)])
def test_well_formed_graphs_pass(graph):
    verify(graph)


def test_a_gpt_passes():
    verify(gpt_step(n_layers=2, batch=2, length=4, width=8, heads=2, vocabulary=16, microbatches=4))


def operator(index, **changes):
    operators = list(chain().operators)
    operators[index] = replace(operators[index], **changes)
    return {"operators": tuple(operators)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"values": (*chain().values, chain().values[0])}, "names of values are unique"),
        ({"phases": (Phase("apply", 2), Phase("apply"))}, "names of phases are unique; 'apply'"),
        (operator(1, name="o1"), "names of operators are unique; 'o1'"),
        ({"phases": (Phase("forward", 0), Phase("apply"))}, "runs at least once a step"),
        (
            {"values": (*chain().values[:3], Value("z", (-4, 8), "float32"))},
            r"dims >= 0 and at most 4611686018427387904 bytes; got 'z: float32\[-4,8\]'",
        ),
        ({"values": (*chain().values, Value("v", (2**31, 2**30), "int32"))}, "at most 46"),
        ({"inputs": ("x", "w", "w")}, "distinct values of the graph; got 'w'"),
        (operator(0, phase=5), "ordered by phase, and their phases are in range"),
        (operator(1, inputs=("z", "w")), "reads 'z' before it is made"),
        (operator(1, outputs=("y",)), "unknown or already made"),
        (operator(0, outputs=()), "has at least one output"),
        (operator(0, rule=elementwise(((4, 4),), (4, 4))), "is for operand shapes"),
        ({"values": (*chain().values, Value("v", (), "bool"))}, "'v' is neither"),
        ({"outputs": (Output("q"),)}, "outputs are values of the graph; got 'q'"),
        ({"outputs": (Output("z", alias="w", whole=True),)}, "whole or an alias, not both"),
        ({"outputs": (Output("z", alias="y"),)}, "an alias is an input"),
        ({"outputs": (Output("z", alias="w"), Output("y", alias="w"))}, "no other output has"),
        (
            {
                "values": tuple(
                    replace(v, dtype="int32") if v.name == "w" else v for v in chain().values
                )
            },
            "its input's shape and dtype",
        ),
    ],
)
def test_verify_names_the_broken_rule(changes, message):
    with pytest.raises(GraphError, match=message):
        verify(chain(**changes))


def value(**changes):
    return {"values": (*chain().values[:3], replace(chain().values[3], **changes))}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"phases": None}, "phases are a tuple of Phases; got None"),
        ({"phases": ("forward",)}, "phases are a tuple of Phases; got 'forward' in it"),
        ({"phases": (Phase("forward", 1.5),)}, r"repeats .* is an int; got repeats=1.5 in phases"),
        ({"phases": (Phase("forward", math.nan),)}, "got repeats=nan"),
        ({"phases": (Phase(None),)}, "the name .* is a string; got name=None"),
        ({"inputs": ["x", "w"]}, "inputs are a tuple of names; got"),
        ({"outputs": ("z",)}, "outputs are a tuple of Outputs; got 'z' in it"),
        ({"outputs": (Output("z", whole="no"),)}, "the whole .* is True or False; got whole='no'"),
        ({"outputs": (Output("z", alias=3),)}, "the alias .* is a name or None; got alias=3"),
        (
            value(shape=[4, 8]),
            r"the shape .* is a tuple of ints; got shape=\[4, 8\] in values\[3\]",
        ),
        (value(shape=(np.int64(4), 8)), "is a tuple of ints"),
        (value(shape=None), "got shape=None"),
        (value(dtype=None), "a name with its size in bits, .*; got dtype=None"),
        (value(dtype="text"), "a name with its size in bits, .*; got dtype='text'"),
        (value(dtype="float0"), "a name with its size in bits, .*; got dtype='float0'"),
        (value(role="weight"), "the role .* is one of .*; got role='weight'"),
        (operator(0, kind=None), "the kind .* is a string; got kind=None"),
        (operator(0, inputs="x"), "a tuple of names; got inputs='x'"),
        (operator(0, rule=None), r"is a Rule, .*; got rule=None in operators\[0\]"),
        (operator(0, flops=math.nan), "the flops .* is a finite number >= 0; got flops=nan"),
        (operator(0, flops=-1.0), "got flops=-1.0"),
        (operator(0, flops=math.inf), "got flops=inf"),
        (operator(0, flops=None), "got flops=None"),
        (operator(0, phase=0.5), "the phase .* is an int; got phase=0.5"),
    ],
)
def test_verify_names_a_field_that_means_nothing(changes, message):
    with pytest.raises(GraphError, match=message):
        verify(chain(**changes))


@pytest.mark.parametrize("nothing", [None, 3, "x", Graph])
def test_what_is_no_graph_is_refused(nothing):
    with pytest.raises(GraphError, match=r"a graph is a Graph, as .* makes it; got"):
        verify(nothing)


def test_what_is_no_text_is_no_graph():
    with pytest.raises(GraphError, match=r"from its text, as str\(graph\) prints it; got None"):
        Graph.parse(None)


def test_prints_one_operator_a_line():
    assert str(chain()).splitlines() == [
        "phases: forward*2, apply",
        "inputs: x: float32[4,8], w: float32[4,8]",
        "forward: y: float32[4,8] = tanh(x)  o1: (a,b)->(a,b) {a=4, b=8}",
        "apply: z: float32[4,8] = add(y, w)  o2: (a,b)(a,b)->(a,b) {a=4, b=8}",
        "outputs: z -> w, y",
    ]


def in_order_of_making(graph):
    made = [name for operator in graph.operators for name in operator.outputs]
    return replace(graph, values=tuple(graph.value(name) for name in (*graph.inputs, *made)))


@settings(max_examples=max(100, settings().max_examples // 5))
@given(graphs(strange_names=True))
def test_what_prints_is_parsed_to_an_equal_graph(graph):
    assert Graph.parse(str(graph)) == in_order_of_making(graph)


def test_a_training_step_is_parsed_to_an_equal_graph():
    graph = gpt_step(n_layers=1, batch=2, length=4, width=8, heads=2, vocabulary=16, microbatches=4)
    assert Graph.parse(str(graph)) == in_order_of_making(graph)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("phases:", "parts:", "has a line of phases"),
        ("forward*2, apply", "forward*2; apply", "has phases separated by commas"),
        ("x: float32[4,8],", "x of float32,", "has inputs separated by commas"),
        (" = tanh(x)", " tanh(x)", "has operators as"),
        ("y: float32[4,8]", "y: float32[4,,8]", "has operators as"),
        ("a=4, b=8}", "a=4, b=8} flops=1.2.3", "flops of an operator are a number; got '1.2.3'"),
        ("apply: z", "backward: z", "operators of the phases"),
        ("a=4, b=8}", "a=4}", "is not valid: a rule's dims are made of its factors"),
        ("->(a,b) {a", "->(a,b {a", "is not valid: a rule is written as"),
        ("add(y, w)", "add(y, q)", "reads 'q' before it is made"),
        ("outputs: z -> w, y", "outputs: z ->", "has outputs separated by commas"),
    ],
)
def test_text_that_is_no_graph_is_an_error(old, new, message):
    with pytest.raises(GraphError, match=message):
        Graph.parse(str(chain()).replace(old, new, 1))


def test_a_text_of_two_lines_is_no_graph():
    with pytest.raises(GraphError, match="lines of phases, inputs, operators and outputs"):
        Graph.parse("phases: forward\ninputs: x: float32[4]")


def renamed(graph, prefix):
    def name(old):
        return None if old is None else prefix + old

    return Graph(
        tuple(replace(p, name=prefix + p.name) for p in graph.phases),
        tuple(replace(v, name=name(v.name)) for v in reversed(graph.values)),
        tuple(
            replace(
                o,
                name=name(o.name),
                inputs=tuple(map(name, o.inputs)),
                outputs=tuple(map(name, o.outputs)),
            )
            for o in graph.operators
        ),
        tuple(map(name, graph.inputs)),
        tuple(replace(o, value=name(o.value), alias=name(o.alias)) for o in graph.outputs),
    )


def test_names_do_not_change_the_structural_hash():
    graph = mlp_step(batch=4, width=8, hidden=16)
    assert structural_hash(renamed(graph, "other_")) == structural_hash(graph)


@pytest.mark.parametrize(
    "changes",
    [
        {"phases": (Phase("forward", 3), Phase("apply"))},
        operator(0, kind="sin"),
        operator(0, flops=9.0),
        operator(1, inputs=("w", "y")),
        {"outputs": (Output("z", alias="w"),)},
        {"outputs": (Output("z", alias="w"), Output("y", whole=True))},
        {"values": tuple(dataclasses.replace(v, dtype="float64") for v in chain().values)},
        {"inputs": ("w", "x")},
    ],
)
def test_whatever_decides_a_sharding_changes_the_structural_hash(changes):
    assert structural_hash(chain(**changes)) != structural_hash(chain())


@pytest.mark.parametrize(
    ("dtype", "n_bytes"),
    [("float32", 4), ("bfloat16", 2), ("bool", 1), ("int64", 8), ("float8_e4m3fn", 1)],
)
def test_bytes_follow_from_the_name_of_the_dtype(dtype, n_bytes):
    assert Value("x", (3,), dtype).n_bytes == 3 * n_bytes


def test_a_dtype_without_a_size_is_an_error():
    with pytest.raises(GraphError, match="has its size in bits"):
        _ = Value("x", (), "object").n_bytes


def test_an_unknown_value_is_an_error():
    with pytest.raises(GraphError, match="no value called 'q'"):
        chain().value("q")
