"""Hypothesis strategies, and checkers that share no code with what they check (extra `testing`)."""

from pipesched.testing.interpret import expected_gradients, interpret
from pipesched.testing.made import LINEAR, made, sizes_of
from pipesched.testing.optimum import optimum_s
from pipesched.testing.schedules import actions, edge_sets, path, placements, schedules
from pipesched.testing.steps import can_be_run, steps
from pipesched.testing.timelines import check_timeline, costs_of

__all__ = [
    "LINEAR",
    "actions",
    "can_be_run",
    "check_timeline",
    "costs_of",
    "edge_sets",
    "expected_gradients",
    "interpret",
    "made",
    "optimum_s",
    "path",
    "placements",
    "schedules",
    "sizes_of",
    "steps",
]
