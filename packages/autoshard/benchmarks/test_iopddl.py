"""How near to the best known does each method get on the contest's instances, and how soon?

The problem is the ASPLOS 2025 contest's on intra-operator parallelism (github.com/google/iopddl):
a strategy for each of hundreds to ten thousands of nodes, costs of nodes and pairs, a limit on
memory at every time. Each solve has the contest's time (1 to 4 minutes, there on 8 cores) and a
process of its own. "To best known" is the cost against the lowest in any published result; "at half
time" is how much more the best choice at half the time cost. The method `ilp` is the whole problem
as one integer program, by HiGHS through python-mip.

The files are the two smallest instances, in the tests; AUTOSHARD_IOPDDL names a folder of others,
and AUTOSHARD_METHODS the methods. `python -m autoshard bench FOLDER` makes the same table.

![Quality against time: what the best choice costs above the lowest cost known, and how far the
bound (dashed) is below it, in per cent](pictures/iopddl.png)

Not shown: that the same seed may give another answer on a slower machine, as time ends the solve.
"""

import os
from pathlib import Path

import pytest
from autoshard.cli.benchmark import HEAD, instances, row, run_one
from autoshard.cli.benchmark_picture import draw

HERE = Path(__file__).parent
FOLDER = Path(os.environ.get("AUTOSHARD_IOPDDL", HERE.parent / "tests" / "instances"))
PICTURE = HERE.parents[2] / "docs" / "pictures" / "iopddl.png"
METHODS = os.environ.get("AUTOSHARD_METHODS", "auto ilp").split()
INSTANCES = {instance.name: instance for instance in instances(FOLDER, known=HERE / "iopddl.json")}


@pytest.fixture(scope="module")
def measured():
    """Results that are worth a picture: those of a run that measures."""
    results = []
    yield results
    if results:
        draw(results, PICTURE)


@pytest.mark.parametrize("name", INSTANCES)
@pytest.mark.parametrize("method", METHODS)
def test_iopddl(benchmark, measured, method, name):
    result = benchmark.pedantic(run_one, (INSTANCES[name], method), rounds=1)

    if not benchmark.disabled:
        measured.append(result)
    cells = dict(zip(HEAD, row(result), strict=True))
    for shown in HEAD[3:]:
        benchmark.extra_info[shown] = cells[shown]
    if method == "auto":
        assert result.solution is not None, result.failure
        assert result.solution.lower_bound <= result.solution.objective
