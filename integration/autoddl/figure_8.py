"""Draw AutoDDL's figure 8: what its searches find, against how much they looked at.

Everything is counted in strategies or choices looked at, not in seconds, so that every run of this
draws the same picture. Lines are the median of ten runs, areas hold nine of ten; costs are relative
to the optimum and steps to the exhaustive search, as in the paper.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from autoshard import InfeasibleError, Problem, solve
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from autoddl.chain import FIGURE_8, PER_NODE, sbp_chain
from autoddl.searches import search

RUNS = 10
STEPS = {
    "random": 30_000,
    "exhaustive": 1_000_000,
    "metropolis": 10_000,
    "coordinate_descent": 30_000,
}
"""Looked at in each run; what the searches gain later is not seen in the picture."""


def curve(problem: Problem, method: str, at: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """The best objective after so many steps, infinite before the first."""
    try:
        trace = search(problem, method, steps=STEPS[method], seed=seed).trace
    except InfeasibleError:
        return np.full(len(at), math.inf)
    steps = [incumbent.steps for incumbent in trace]
    objectives = np.array([math.inf, *(incumbent.objective for incumbent in trace)])
    return objectives[np.searchsorted(steps, at, side="right")]


def draw(path: Path) -> None:
    """Draw both of the paper's settings."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    for panel, p in zip(figure.subplots(1, 2), (128, 4_096), strict=True):
        problem = sbp_chain(p, FIGURE_8, PER_NODE * p)
        optimum = solve(problem).objective
        choices = math.prod(len(cost) for cost in problem.node_costs)
        for colour, (method, steps) in enumerate(STEPS.items()):
            at = np.geomspace(10, steps, 200)
            runs = range(1 if method == "exhaustive" else RUNS)
            found = np.array([curve(problem, method, at, seed) for seed in runs]) / optimum
            low, middle, high = np.quantile(found, (0.05, 0.5, 0.95), axis=0, method="nearest")
            label = method.replace("_", " ")
            panel.plot(at / choices, middle, color=f"C{colour}", label=label)
            panel.fill_between(at / choices, low, high, color=f"C{colour}", alpha=0.2, linewidth=0)
        panel.set(
            title=f"4-layer MLP on {p:,} nodes",
            xscale="log",
            xlabel="steps / choices of the exhaustive search",
            ylabel="communication / optimum",
            ylim=(0.9, 3.0),
        )
        panel.legend()
    figure.savefig(path, dpi=120)
