"""Hypothesis strategies and oracles, one file a subject; needs the extra `testing`."""

from autoshard.testing.graphs import graphs
from autoshard.testing.problems import brute_force, problems
from autoshard.testing.rules import Case, cases, check_strategy, meshes

__all__ = ["Case", "brute_force", "cases", "check_strategy", "graphs", "meshes", "problems"]
