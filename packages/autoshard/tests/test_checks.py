"""Every public function raises an error of this package for wrong arguments."""

import contextlib
import inspect

import autoshard
import pytest
from autoshard import (
    AutoshardError,
    Graph,
    GraphBuilder,
    Options,
    Prepared,
    Problem,
    Rule,
    RuleError,
    Sharding,
    einsum,
    enumerate_strategies,
    prepare,
    shard,
    shardings_to_json,
)
from autoshard.programs import mlp_step
from costmodel import Cluster
from shardspec import Mesh

MESH, CLUSTER = Mesh((2,), ("x",)), Cluster.preset("two-hosts")
GRAPH = mlp_step(batch=8, width=4, hidden=16)
SHARDING = shard(GRAPH, MESH, CLUSTER, compare=False)
RULE = einsum("ij->i", (2, 3))
ARRAYS = ([[1.0]], [], [], [[0.0]], [(0, 1)])
PROBLEM = Problem(*ARRAYS)
WRONG = [None, 3, "?", (None,), object(), [[1]], {}]

CALLS = {
    "Factor": (2,),
    "Options": (None, "limit", 1),
    "Problem": ARRAYS,
    "Rule": ((), (), ()),
    "opposite_pairs": (((0, 1), (2, 3)),),
    "work_share": (RULE, enumerate_strategies(RULE, (2,))[0], (2,)),
    "matrix_sizes": (RULE, enumerate_strategies(RULE, (2,))[0], (2,)),
    "arithmetic_dtype": (RULE, ("float32", "float32")),
    "baseline": (GRAPH, MESH, CLUSTER, "zero"),
    "baseline_inputs": (GRAPH, MESH, "zero"),
    "broadcast": ((4,), (4, 8), (0,)),
    "collectives": (GRAPH, SHARDING),
    "diff": (SHARDING, SHARDING),
    "einsum": ("ij,jk->ik", (2, 3), (3, 4)),
    "elementwise": (((2,),), (2,)),
    "enumerate_strategies": (RULE, (2,)),
    "evaluate": (PROBLEM, (0,)),
    "explain": (SHARDING, "w1"),
    "flops_of": ("neg", ((2, 3),), ((2, 3),)),
    "footprint": (SHARDING,),
    "held": (SHARDING,),
    "labelled": ("a->a", ((2,),), ((2,),)),
    "least_saved": (GRAPH, ["gelu_1"]),
    "live_bytes": (SHARDING,),
    "picture": (SHARDING, "no such folder/x.txt"),
    "prepare": (GRAPH, MESH, CLUSTER, Options()),
    "reduction": ((2, 3), (1,)),
    "rematerialize": (GRAPH, ["gelu_1"]),
    "reshape": ((2, 3), (6,)),
    "control_flow": ("scan", ((2,),), ((2,),)),
    "rule_of": ("neg", ((2,),), ((2,),)),
    "shard": (GRAPH, MESH, CLUSTER),
    "shardings_from_json": (shardings_to_json([SHARDING]),),
    "shardings_to_json": ([SHARDING],),
    "solve": (PROBLEM,),
    "stored_specs": ((2, 3), (2,)),
    "structural_hash": (GRAPH,),
    "transpose": ((2, 3), (1, 0)),
    "verify": (GRAPH,),
    "whole": (((2,),), ((2,),)),
}
RECORDS = {
    *("Alternative", "Collective", "Conversion", "Difference", "Evaluation", "Explanation", "Held"),
    "Footprint",
    *("Incumbent", "Operator", "Output", "Phase", "Solution", "Strategy", "Value", "Graph"),
    *("Accesses", "ControlFlow", "Sharding", "Prepared", "Permutation"),
}
"""Classes without checks: functions that take their instances check (`verify`, `from_json`)."""
ELSEWHERE = {"GraphBuilder", "SolverSession"}
"""Tested below, and in test_options."""


def test_every_public_function_is_called_here():
    functions = {
        name
        for name in autoshard.__all__
        if inspect.isfunction(getattr(autoshard, name)) or inspect.isclass(getattr(autoshard, name))
    }
    errors = {name for name in functions if name.endswith("Error")}
    assert functions - errors == set(CALLS) | RECORDS | ELSEWHERE


@pytest.mark.parametrize("name", CALLS)
def test_arguments_of_another_kind_are_refused_by_an_error_of_ours(name):
    function, right = getattr(autoshard, name), CALLS[name]
    for place in range(len(right)):
        for wrong in WRONG:
            arguments = [*right[:place], wrong, *right[place + 1 :]]
            with contextlib.suppress(AutoshardError):  # an empty dict is also a shape, so to say
                function(*arguments)


@pytest.mark.parametrize(
    "parse",
    [Graph.parse, Graph.from_json, Rule.parse, Sharding.from_json, Problem.from_json],
    ids=lambda parse: parse.__qualname__,
)
@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: type(wrong).__name__)
def test_what_is_no_text_of_ours_is_refused(parse, wrong):
    with pytest.raises(AutoshardError):
        parse(wrong)


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: type(wrong).__name__)
def test_a_builder_refuses_what_is_no_value(wrong):
    builder = GraphBuilder()
    builder.output(builder.dot(builder.input("x", 4, 4), builder.parameter("w", 4, 4)))
    for call in (
        lambda: builder.shape(wrong),
        lambda: builder.apply("neg", wrong),
        lambda: builder.dot("x", wrong),
    ):
        with pytest.raises(AutoshardError):
            call()


@pytest.mark.parametrize("method", ["memory_bytes", "memory_rule", "restrict", "pin", "method"])
def test_a_solve_refuses_options_of_another_kind(method):
    prepared = prepare(GRAPH, MESH, CLUSTER)
    assert isinstance(prepared, Prepared)
    for wrong in ("?", [[1]], object()):
        with pytest.raises(AutoshardError):
            prepared.solve(**{method: wrong})


def test_a_rule_that_cannot_be_made_says_what_it_takes():
    with pytest.raises(
        RuleError, match=r"einsum takes \(formula.*; got formula=None, which raises"
    ):
        einsum(None)
    with pytest.raises(RuleError, match=r"enumerate_strategies takes .*; got rule=None"):
        enumerate_strategies(None, (2,))
    with pytest.raises(RuleError, match="a rule has a tuple of Factors"):
        Rule(None, (), ())
    with pytest.raises(TypeError, match="missing a required argument"):
        einsum()
