"""Searches how to run every operator of a tensor program on a device mesh.

A `Graph` holds operators, each with a `Rule` of factors (`einsum`, `elementwise`, `reshape`, ...).
`shard` picks a `Strategy` for every operator so that compute and communication take the least time
within a memory limit; `collectives` lists the communication of the result. Alpa (OSDI 2022),
section 4.
"""

from importlib.metadata import version

from autoshard.answer.diff import Difference, diff
from autoshard.answer.explain import Explanation, explain
from autoshard.answer.memory import Footprint, Held, footprint, held, live_bytes
from autoshard.answer.sharding import Sharding
from autoshard.answer.sharding_fields import Alternative, Collective, collectives
from autoshard.answer.shardings_json import shardings_from_json, shardings_to_json
from autoshard.errors import (
    AutoshardError,
    BaselineError,
    GraphError,
    InfeasibleError,
    InternalError,
    MissingExtraError,
    OptionError,
    PictureError,
    PinError,
    ProblemError,
    RecordError,
    RuleError,
    VerificationError,
    WidthError,
)
from autoshard.graph.graph import Graph, structural_hash, verify
from autoshard.graph.graph_fields import Accesses, Operator, Output, Phase, Value
from autoshard.graph.rule import Factor, Reduction, Rule
from autoshard.picture import picture
from autoshard.problem.evaluate import Evaluation, evaluate
from autoshard.problem.pin import Pin
from autoshard.problem.problem import Problem
from autoshard.problem.solution import Incumbent, Solution
from autoshard.rules import (
    RULES,
    broadcast,
    einsum,
    elementwise,
    labelled,
    reduction,
    reshape,
    rule_of,
    transpose,
    whole,
)
from autoshard.rules.builder import GraphBuilder
from autoshard.rules.control import ControlFlow, control_flow
from autoshard.rules.flops import flops_of
from autoshard.shard import Prepared, baseline, prepare, shard
from autoshard.solvers.session import SolverSession
from autoshard.solvers.solve import METHODS, solve
from autoshard.space.arithmetic import arithmetic_dtype
from autoshard.space.baseline import Baseline, baseline_inputs
from autoshard.space.conversion import Conversion
from autoshard.space.matrix_sizes import matrix_sizes
from autoshard.space.options import MemoryRule, Options
from autoshard.space.permutations import Permutation, opposite_pairs
from autoshard.space.remat import least_saved, rematerialize
from autoshard.space.strategy import Strategy, enumerate_strategies, stored_specs
from autoshard.space.strategy_tables import work_share

__version__ = version("meshwright-autoshard")

__all__ = [
    "METHODS",
    "RULES",
    "Accesses",
    "Alternative",
    "AutoshardError",
    "Baseline",
    "BaselineError",
    "Collective",
    "ControlFlow",
    "Conversion",
    "Difference",
    "Evaluation",
    "Explanation",
    "Factor",
    "Footprint",
    "Graph",
    "GraphBuilder",
    "GraphError",
    "Held",
    "Incumbent",
    "InfeasibleError",
    "InternalError",
    "MemoryRule",
    "MissingExtraError",
    "Operator",
    "OptionError",
    "Options",
    "Output",
    "Permutation",
    "Phase",
    "PictureError",
    "Pin",
    "PinError",
    "Prepared",
    "Problem",
    "ProblemError",
    "RecordError",
    "Reduction",
    "Rule",
    "RuleError",
    "Sharding",
    "Solution",
    "SolverSession",
    "Strategy",
    "Value",
    "VerificationError",
    "WidthError",
    "arithmetic_dtype",
    "baseline",
    "baseline_inputs",
    "broadcast",
    "collectives",
    "control_flow",
    "diff",
    "einsum",
    "elementwise",
    "enumerate_strategies",
    "evaluate",
    "explain",
    "flops_of",
    "footprint",
    "held",
    "labelled",
    "least_saved",
    "live_bytes",
    "matrix_sizes",
    "opposite_pairs",
    "picture",
    "prepare",
    "reduction",
    "rematerialize",
    "reshape",
    "rule_of",
    "shard",
    "shardings_from_json",
    "shardings_to_json",
    "solve",
    "stored_specs",
    "structural_hash",
    "transpose",
    "verify",
    "whole",
    "work_share",
]
