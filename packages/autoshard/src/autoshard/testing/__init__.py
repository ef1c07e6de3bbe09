"""Hypothesis strategies and oracles, one file a subject; needs the extra `testing`."""

from autoshard.testing.cases import Case, cases
from autoshard.testing.graphs import graphs
from autoshard.testing.problems import brute_force, problems
from autoshard.testing.rules import Part, check_rule, check_strategy, meshes

__all__ = [
    "Case",
    "Part",
    "brute_force",
    "cases",
    "check_rule",
    "check_strategy",
    "graphs",
    "meshes",
    "problems",
]
