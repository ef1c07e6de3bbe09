"""Documents are read back to equal values, and any other text raises an error."""

import contextlib
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from autoshard import (
    AutoshardError,
    Graph,
    GraphError,
    Incumbent,
    Problem,
    RecordError,
    Sharding,
    Solution,
    shard,
    shardings_from_json,
    shardings_to_json,
)
from autoshard.base import record
from autoshard.programs import gpt_step, mlp_step
from autoshard.solvers.solution_json import solution_to_json
from hypothesis import given, settings
from hypothesis import strategies as st

GPT = gpt_step(batch=2, length=4, width=8, heads=2, vocabulary=16, n_layers=2)
MLP = mlp_step(batch=8, width=4, hidden=16, microbatches=2)
TEXT = MLP.to_json()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


def replaced(draw, value, new):
    """A JSON value in which one part, at any depth, is replaced, removed or added."""
    if isinstance(value, list | dict) and value and draw(st.integers(0, 5)):
        value = value.copy()
        keys = list(value) if isinstance(value, dict) else range(len(value))
        key = draw(st.sampled_from(keys))
        match draw(st.sampled_from(["deeper", "deeper", "deeper", "out", "more"])):
            case "deeper":
                value[key] = replaced(draw, value[key], new)
            case "out":
                del value[key]
            case "more" if isinstance(value, dict):
                value[draw(st.text(max_size=3))] = new
            case "more":
                value.append(new)
        return value
    return new


@st.composite
def spoiled(draw, text):
    return json.dumps(replaced(draw, json.loads(text), draw(JSON)))


@pytest.mark.parametrize("graph", [GPT, MLP, Graph((), (), (), (), ())], ids=["gpt", "mlp", "none"])
def test_a_graph_is_read_back_equal(graph):
    again = Graph.from_json(graph.to_json())
    assert again == graph
    assert again.to_json() == graph.to_json()


def test_rules_that_operators_share_are_written_once():
    rules = json.loads(GPT.to_json())["shared"]["Rule"]
    assert len(rules) == len({operator.rule for operator in GPT.operators})


@given(spoiled(TEXT))
def test_any_spoiled_graph_is_a_graph_or_an_error_of_ours(text):
    with contextlib.suppress(AutoshardError):
        graph = Graph.from_json(text)
        assert Graph.from_json(graph.to_json()) == graph


@given(st.text() | st.builds(json.dumps, JSON))
def test_any_other_text_is_an_error_of_ours(text):
    with pytest.raises(RecordError):
        Graph.from_json(text)


def test_an_uneven_sharding_is_read_back_equal(mlp):
    graph = mlp_step(batch=6, width=1001, hidden=2003)
    sharding = shard(graph, mlp.mesh, mlp.cluster, uneven=True, compare=False)
    assert any(spec.axes for _, spec in sharding.input_specs)
    assert Sharding.from_json(sharding.to_json()) == sharding
    assert str(sharding)


def test_a_sharding_is_read_back_equal(mlp):
    again = Sharding.from_json(mlp.to_json())
    assert again == mlp
    assert again.to_json() == mlp.to_json()


@settings(max_examples=max(100, settings().max_examples // 5))
@given(st.data())
def test_any_spoiled_sharding_can_be_shown_or_is_an_error_of_ours(mlp, data):
    text = data.draw(spoiled(mlp.to_json()))
    with contextlib.suppress(AutoshardError):
        sharding = Sharding.from_json(text)
        assert Sharding.from_json(sharding.to_json()) == sharding
        assert str(sharding)


def test_shardings_are_read_back_equal_and_have_what_is_equal_once(mlp):
    of_other_graph = shard(mlp_step(batch=6, width=12, hidden=8), mlp.mesh, mlp.cluster)
    text = shardings_to_json([mlp, of_other_graph, mlp])
    assert shardings_from_json(text) == (mlp, of_other_graph, mlp)
    assert shardings_to_json(shardings_from_json(text)) == text
    shared = json.loads(text)["shared"]
    assert len(shared["Cluster"]) == 1
    rules = {op.rule for of in (mlp, of_other_graph) for op in of.graph.operators}
    assert len(shared["Rule"]) == len(rules)


@settings(max_examples=max(100, settings().max_examples // 5))
@given(st.data())
def test_any_spoiled_shardings_can_be_shown_or_are_an_error_of_ours(mlp, data):
    text = data.draw(spoiled(shardings_to_json([mlp])))
    with contextlib.suppress(AutoshardError):
        found = shardings_from_json(text)
        assert shardings_from_json(shardings_to_json(found)) == found
        assert all(map(str, found))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda of: of["graph"]["inputs"].append(-1), r"graph: a graph has values 0 to \d+; got"),
        (lambda of: of["graph"]["operators"][0][1].append(9999), r"0 to \d+; got \(.*9999\)"),
        (lambda of: of["graph"]["operators"][0].__setitem__(2, []), "has that of its first output"),
        (lambda of: of["strategies"].pop(), r"a sharding has \d+ strategies for this graph; got"),
        (lambda of: of.update(cluster=1), r"is an index into the 1 of shared\.Cluster; got 1"),
    ],
    ids=["input", "operand", "name", "strategies", "cluster"],
)
def test_shardings_that_do_not_fit_are_not_read(mlp, change, message):
    document = json.loads(shardings_to_json([mlp]))
    change(document["shardings"]["all"][0])
    with pytest.raises(RecordError, match=message):
        shardings_from_json(json.dumps(document))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda of: of["strategies"].pop(), r"a sharding has \d+ strategies for this graph; got"),
        (lambda of: of["compute_s"].append(0), "has 3 compute_s for this graph; got 4"),
        (lambda of: of["input_specs"].reverse(), "input_specs are for the inputs .* in this order"),
        (
            lambda of: of["mesh"].update(shape=[4, 1]),
            r"operator '.*' has no strategy .* on \(4, 1\)",
        ),
        (lambda of: of["input_specs"][0].__setitem__(1, "RS5"), "does not fit its graph and mesh"),
        (lambda of: of["conversions"][0].update(phase=3), "is in one of 3 phases; got phase 3"),
        (lambda of: of["conversions"][0].update(dst="RR", src="RR"), "a conversion is one step"),
        (lambda of: of["mesh"].update(device_ids=[0, 1, 2, 99]), "does not fit its graph and mesh"),
    ],
    ids=["strategies", "phases", "inputs", "mesh", "axis", "phase", "step", "devices"],
)
def test_a_sharding_that_does_not_fit_its_graph_is_not_read(mlp, change, message):
    document = json.loads(mlp.to_json())
    change(document["sharding"])
    with pytest.raises(RecordError, match=message):
        Sharding.from_json(json.dumps(document))


def without(*path):
    document = json.loads(TEXT)
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return json.dumps(document)


def put(value, *path):
    document = json.loads(TEXT)
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return json.dumps(document)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "this is not JSON that can be read: Expecting"),
        ("[" * 100_000, "this is not JSON that can be read"),
        ('{"autoshard": NaN}', "NaN is not a number in JSON"),
        (
            "3",
            "a graph is JSON with the entry 'autoshard': 'graph', as its to_json writes it; got 3",
        ),
        (put("sharding", "autoshard"), "got 'sharding'"),
        (
            put(7, "version"),
            "this graph was written by a newer autoshard, in version 7 of the format; this one "
            "reads version 1: update autoshard, or write the graph again with this one",
        ),
        (put("1", "version"), "reads version 1 of a graph; got version '1': write the graph again"),
        (put([], "shared"), "'shared' has a list for each class"),
        (put(None, "graph"), "graph is an object; got None"),
        (without("graph", "values"), r"graph has the entries .*; 'values' is missing"),
        (put(1, "graph", "more"), "graph has the entries .*; got 'more', too"),
        (put(5, "graph", "inputs"), r"graph\.inputs is a list; got 5"),
        (put("x", "graph", "values", 2, "role"), r"graph\.values\[2\]\.role is one of .*; got 'x'"),
        (put(1.5, "graph", "values", 0, "shape"), r"graph\.values\[0\]\.shape is a list; got 1\.5"),
        (put(["4"], "graph", "values", 0, "shape"), r"shape\[0\] is a whole number; got '4'"),
        (put(True, "graph", "operators", 0, "flops"), r"flops is a number; got True"),
        (put(10**400, "graph", "operators", 0, "flops"), r"flops: int too large"),
        (put(999, "graph", "operators", 0, "rule"), r"is an index into the \d+ of shared\.Rule"),
        (put([[9]], "shared", "Rule", 0, "linear"), r"shared\.Rule\[0\]: linear names operands"),
    ],
)
def test_the_error_says_where_and_what(text, message):
    with pytest.raises(RecordError, match=message):
        Graph.from_json(text)


def test_a_graph_that_is_not_well_formed_is_not_read():
    with pytest.raises(GraphError, match="reads 'nothing' before it is made"):
        Graph.from_json(put(["nothing"], "graph", "operators", 0, "inputs"))


@pytest.mark.parametrize(
    ("text", "kind"), [(TEXT, "graph"), ('{"problem": {}}', None), ("[]", None)]
)
def test_a_document_says_what_it_is(text, kind):
    assert record.kind_of(text) == kind


@pytest.mark.parametrize("of", [Graph, Sharding])
def test_what_is_no_text_is_not_read(of):
    with pytest.raises(RecordError, match="JSON is read from a string; got None"):
        of.from_json(None)


def test_what_is_written_to_files_is_as_it_always_was(mlp, check_golden):
    check_golden("graph.json", mlp.graph.to_json())
    sharding = replace(mlp, solution=replace(mlp.solution, seconds=0.5, trace=()))
    check_golden("sharding.json", sharding.to_json())
    check_golden("shardings.json", shardings_to_json([sharding, sharding]))
    trace = (Incumbent(0.25, math.inf, 1.5, 3), Incumbent(0.5, 3.0, -math.inf, 4))
    solution = Solution((0, 2), 3.0, -math.inf, "auto", 1.5, trace)
    check_golden("solution.json", solution_to_json(solution, peak_bytes=4096))
    costs = (np.array([0.0, 3.0]), np.array([0.0, 2.0]))
    table = np.array([[0.0, 1.0], [math.inf, 5.0]])
    problem = Problem(costs, ((0, 1),), (table,), costs, ((0, 2), (1, 3)), 5.0)
    check_golden("problem.json", problem.to_json())
