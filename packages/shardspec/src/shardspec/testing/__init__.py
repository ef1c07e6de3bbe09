"""Hypothesis strategies and checkers, for the tests of all packages (extra `testing`)."""

from shardspec.testing.checkers import check_covers_once, check_layout
from shardspec.testing.plans import check_plan
from shardspec.testing.strategies import (
    EVERY_RULE,
    every_spec,
    layout_pairs,
    layouts,
    meshes,
    specs,
)

__all__ = [
    "EVERY_RULE",
    "check_covers_once",
    "check_layout",
    "check_plan",
    "every_spec",
    "layout_pairs",
    "layouts",
    "meshes",
    "specs",
]
