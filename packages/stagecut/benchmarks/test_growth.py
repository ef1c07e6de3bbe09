"""How long does the dynamic program take once all costs are known, and how does that grow?

"slice": layers of different sizes are cut for hosts of eight devices, with 64 microbatches; in
"tight", a device has little more memory than the leanest slicing needs, so it matters how many
stages follow. Alpa reports 1.65 s for the dynamic program of its largest model, 48 layers on 64
devices (Zheng et al., OSDI 2022, table 5, on other hardware). "alpa" is the program as the paper
prints it (algorithm 1, lines 25 to 43, epsilon = 0), in plain Python and so on a small case only;
both find the same step. "peak MiB" is what the search allocated at most beside the costs.

![Seconds and memory against layers on 64 devices, and against devices for 48
layers](pictures/slicing.svg)

Not shown: asking for the costs, which takes longer than all of this in any real planner; costs with
no sense in them, whose bounds are loose; and more than one slicing, as with `alternatives`.
"""

import itertools
import math
import tracemalloc
from functools import partial
from itertools import starmap
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from stagecut import Places, StageCost
from stagecut.slice.price_requests import Asker
from stagecut.slice.prices import Prices
from stagecut.slice.search import Limits, shortest_step
from stagecut.slice.transfers import StageNetwork

N_MICROBATCHES = 64
ROUNDS = {"rounds": 3, "warmup_rounds": 1}
PICTURE = Path(__file__).parents[3] / "docs" / "pictures" / "slicing.svg"


def cost(first, last, submesh):
    """Layers of 1 to 1.6 s on one device; more devices lose more time to each other."""
    hosts, devices = submesh
    work = sum(1 + layer * 5 % 7 / 10 for layer in range(first, last + 1))
    overhead = 1 + 0.1 * math.log2(devices) + 0.15 * math.log2(hosts)
    return StageCost(
        work / (hosts * devices) * overhead,
        fixed_bytes=int(work * 2**30 / (hosts * devices)),
        activation_bytes=int(work * 2**26 / (hosts * devices)),
    )


class Problem:
    """One search, with all costs known."""

    def __init__(self, n_layers, cluster_shape, n_microbatches, memory_bytes=math.inf):
        self.places = Places.uniform(*cluster_shape)
        self.n_layers, self.n_microbatches = n_layers, n_microbatches
        # A pattern of seven layers that repeats: the same costs, asked for more quickly.
        structure = [layer % 7 for layer in range(n_layers)]
        asker = Asker(partial(starmap, cost), None)
        self.prices = Prices(n_layers, self.places, asker, None, structure, None)
        self.prices.learn_all()
        shapes = self.places.shapes
        self.network = StageNetwork(n_layers, n_microbatches, shapes, [0.0] * n_layers, (), None)
        most = min(n_layers, self.places.n_devices)
        held = [min(s, n_microbatches) for s in range(1, most + 1)]
        self.limits = Limits.of(self.places, [memory_bytes] * len(shapes), held)

    def solve(self):
        candidates = self.prices.candidates()
        arcs = self.network.arcs(self.prices.stages, candidates)
        return shortest_step(arcs, self.limits)


LAYERS = {f"{n} layers on 8x8": (n, (8, 8), math.inf) for n in (12, 24, 48, 96, 200)}
DEVICES = {f"48 layers on {n}x8": (48, (n, 8), math.inf) for n in (1, 2, 4, 8, 16, 32, 64, 128)}
CASES = LAYERS | DEVICES
CASES["48 layers on 8x8 tight"] = (48, (8, 8), 5 * 2**28)
CASES["200 layers on 128x8"] = (200, (128, 8), math.inf)
SMALL = CASES["48 layers on 8x8"]
"""What stands for cases of 200 layers where nothing is measured."""


@pytest.fixture(scope="module")
def measured():
    """By case, seconds and MiB; a picture of a run that measures all."""
    results = {}
    yield results
    if results.keys() == CASES.keys():
        draw(results)


def draw(results):
    mpl.rcParams["svg.hashsalt"] = "slicing"  # for ids that do not change
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    FigureCanvasSVG(figure)
    left, right = figure.subplots(1, 2)
    by_layers = [(CASES[case][0], *results[case]) for case in LAYERS]
    by_devices = [(math.prod(CASES[case][1]), *results[case]) for case in DEVICES]
    for panel, rows, of in ((left, by_layers, "layers"), (right, by_devices, "devices")):
        sizes, seconds, mib = zip(*rows, strict=True)
        panel.loglog(sizes, seconds, "o-", label="seconds")
        panel.loglog(sizes, mib, "s--", label="peak MiB")
        panel.set(xlabel=of, xticks=sizes, xticklabels=sizes)
        panel.minorticks_off()
        panel.legend()
    left.set_title("64 devices")
    right.set_title("48 layers")
    figure.savefig(PICTURE, metadata={"Date": None})


@pytest.mark.parametrize("case", CASES)
def test_slice(benchmark, measured, case):
    is_small = benchmark.disabled and case.startswith("200")
    n_layers, cluster_shape, memory_bytes = SMALL if is_small else CASES[case]
    problem = Problem(n_layers, cluster_shape, N_MICROBATCHES, memory_bytes)

    found = benchmark.pedantic(problem.solve, **ROUNDS)

    candidates = problem.prices.candidates()
    stages = [int(candidates.stage[row]) for row in found.rows]
    times = candidates.time_s[list(found.rows)]
    assert found.time_s == pytest.approx(times.sum() + (N_MICROBATCHES - 1) * times.max())
    spans = [problem.prices.span(stage) for stage in stages]
    assert [last + 1 for _, last, _ in spans[:-1]] == [first for first, _, _ in spans[1:]]
    assert (spans[0][0], spans[-1][1]) == (0, n_layers - 1)
    assert problem.places.can_hold([submesh for _, _, submesh in spans])
    tracemalloc.start()
    problem.solve()
    peak_mib = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    benchmark.extra_info["peak MiB"] = round(peak_mib, 1)
    if not benchmark.disabled:
        measured[case] = (benchmark.stats.stats.median, peak_mib)
    benchmark.extra_info["stages"] = f"{len(spans)} of {candidates.stage.size}"


def alpa(n_layers, places, n_microbatches):
    """Algorithm 1 of the paper from line 25 on, without memory."""
    stages = {
        (first, last, h): cost(first, last, shape).time_s
        for first, last in itertools.combinations_with_replacement(range(n_layers), 2)
        for h, shape in enumerate(places.shapes)
    }
    best, n_devices = math.inf, places.n_devices
    for t_max in sorted(set(stages.values())):
        if n_microbatches * t_max >= best:
            break
        f = np.full((n_layers + 1, n_layers + 1, n_devices + 1), np.inf).tolist()
        f[0][n_layers][0] = 0.0
        for s in range(1, n_layers + 1):
            for k in range(n_layers - 1, -1, -1):
                for d in range(1, n_devices + 1):
                    for i in range(k, n_layers):
                        for h, size in enumerate(places.sizes):
                            if size <= d and stages[k, i, h] <= t_max:
                                total = stages[k, i, h] + f[s - 1][i + 1][d - size]
                                f[s][k][d] = min(f[s][k][d], total)
        total = min(f[s][0][n_devices] for s in range(1, n_layers + 1))
        best = min(best, total + (n_microbatches - 1) * t_max)
    return best


@pytest.mark.parametrize("program", ["alpa", "slice"])
def test_small_case(benchmark, program):
    problem = Problem(8, (1, 4), 16)
    if program == "alpa":
        arguments = 8, problem.places, 16
        time_s = benchmark.pedantic(alpa, arguments, rounds=1)
    else:
        time_s = benchmark.pedantic(problem.solve, **ROUNDS).time_s
        benchmark.extra_info["baseline"] = "test_small_case[alpa]"
    assert time_s == pytest.approx(alpa(8, problem.places, 16))
