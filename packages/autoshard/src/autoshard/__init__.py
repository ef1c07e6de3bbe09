"""Search how to run every operator of a tensor program on a device mesh.

A `Graph` holds operators, each with a `Rule` of factors (`einsum`, `elementwise`, `reshape`, ...).
`shard` picks a `Strategy` for every operator so that compute and communication take the least time
within a memory limit; `collectives` lists what the result sends. Alpa (OSDI 2022), section 4.
"""

from importlib.metadata import version

from autoshard.errors import (
    AutoshardError,
    BaselineError,
    GraphError,
    InfeasibleError,
    ProblemError,
    RuleError,
)
from autoshard.graph import (
    Graph,
    Operator,
    Output,
    Phase,
    Value,
    structural_hash,
    verify,
)
from autoshard.rule import (
    Factor,
    Rule,
    broadcast,
    einsum,
    elementwise,
    labelled,
    reduction,
    reshape,
    transpose,
    whole,
)
from autoshard.strategy import Strategy, enumerate_strategies, stored_specs

__version__ = version("meshwright-autoshard")

__all__ = [
    "AutoshardError",
    "BaselineError",
    "Factor",
    "Graph",
    "GraphError",
    "InfeasibleError",
    "Operator",
    "Output",
    "Phase",
    "ProblemError",
    "Rule",
    "RuleError",
    "Strategy",
    "Value",
    "broadcast",
    "einsum",
    "elementwise",
    "enumerate_strategies",
    "labelled",
    "reduction",
    "reshape",
    "stored_specs",
    "structural_hash",
    "transpose",
    "verify",
    "whole",
]
