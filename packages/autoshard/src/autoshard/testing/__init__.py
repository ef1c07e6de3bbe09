"""Hypothesis strategies, oracles and checkers, a file for each subject; needs extra `testing`."""

from autoshard.testing.cases import Case, cases
from autoshard.testing.graphs import graphs
from autoshard.testing.problems import brute_force, problems
from autoshard.testing.rules import Part, check_rule, check_strategy, meshes
from autoshard.testing.sharding import (
    check_conversions,
    check_results,
    check_sharding,
    least_seconds,
    run_sharded,
    run_whole,
)
from autoshard.testing.tiny import count_shardings, tiny_graphs, toy_cluster

__all__ = [
    "Case",
    "Part",
    "brute_force",
    "cases",
    "check_conversions",
    "check_results",
    "check_rule",
    "check_sharding",
    "check_strategy",
    "count_shardings",
    "graphs",
    "least_seconds",
    "meshes",
    "problems",
    "run_sharded",
    "run_whole",
    "tiny_graphs",
    "toy_cluster",
]
