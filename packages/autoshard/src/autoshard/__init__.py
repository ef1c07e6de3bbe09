"""Search how to run every operator of a tensor program on a device mesh.

A `Graph` holds operators, each with a `Rule` of factors (`einsum`, `elementwise`, `reshape`, ...).
`shard` picks a `Strategy` for every operator so that compute and communication take the least time
within a memory limit; `collectives` lists what the result sends. Alpa (OSDI 2022), section 4.
"""

from importlib.metadata import version

from autoshard.arithmetic import arithmetic_dtype
from autoshard.baseline import Baseline, baseline_inputs
from autoshard.builder import GraphBuilder
from autoshard.conversion import Conversion
from autoshard.difference import Difference, diff
from autoshard.errors import (
    AutoshardError,
    BaselineError,
    GraphError,
    InfeasibleError,
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
from autoshard.evaluate import Evaluation, evaluate
from autoshard.explain import Explanation, explain
from autoshard.flops import flops_of
from autoshard.graph import (
    Graph,
    Operator,
    Output,
    Phase,
    Value,
    structural_hash,
    verify,
)
from autoshard.memory import Footprint, Held, footprint, held, live_bytes
from autoshard.options import MemoryRule, Options
from autoshard.picture import picture
from autoshard.pin import Pin
from autoshard.problem import Problem
from autoshard.remat import rematerialize
from autoshard.rule import Factor, Reduction, Rule
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
from autoshard.run import Incumbent, Run, Solution
from autoshard.shard import Prepared, baseline, prepare, shard
from autoshard.sharding import Alternative, Collective, Sharding, collectives
from autoshard.solve import METHODS, solve
from autoshard.strategy import Strategy, enumerate_strategies, stored_specs

__version__ = version("meshwright-autoshard")

__all__ = [
    "METHODS",
    "RULES",
    "Alternative",
    "AutoshardError",
    "Baseline",
    "BaselineError",
    "Collective",
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
    "MemoryRule",
    "MissingExtraError",
    "Operator",
    "OptionError",
    "Options",
    "Output",
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
    "Run",
    "Sharding",
    "Solution",
    "Strategy",
    "Value",
    "VerificationError",
    "WidthError",
    "arithmetic_dtype",
    "baseline",
    "baseline_inputs",
    "broadcast",
    "collectives",
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
    "live_bytes",
    "picture",
    "prepare",
    "reduction",
    "rematerialize",
    "reshape",
    "rule_of",
    "shard",
    "solve",
    "stored_specs",
    "structural_hash",
    "transpose",
    "verify",
    "whole",
]
