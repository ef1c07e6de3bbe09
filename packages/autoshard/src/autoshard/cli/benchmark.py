"""Runs methods on a folder of IOPDDL files: cost, bound, first feasible, half time, memory.

Each solve is a separate process (`python -m autoshard solve`), so that its peak memory can be
measured and a crash does not end the other solves.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shardspec.amounts import bytes_text

from autoshard.errors import ProblemError
from autoshard.problem.solution import Incumbent, Solution, relative_gap
from autoshard.solvers.progress import number
from autoshard.solvers.solution_json import finite, solution_from_json

PATTERNS = ("*.json", "*.json.gz")
KNOWN = "known.json"
"""A file in the folder of the instances: for each instance `best` (the lowest cost known), and
optionally `bound` and `time_s`."""
TIME_S = 60.0
"""Seconds for an instance without a known `time_s`: the contest's shortest time."""
OVER = 2.0
"""A solve is killed after this many times its time, plus a minute."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A file, with the best results known for it."""

    path: Path
    """IOPDDL JSON, gzipped or not."""
    time_s: float
    """The time for each solve."""
    best: float | None = None
    """The lowest cost known."""
    bound: float | None = None
    """The highest lower bound known."""

    @property
    def name(self) -> str:
        """The part of the file name after the last dash: `B` of `asplos-2025-iopddl-B`."""
        return _stem(self.path).rpartition("-")[2]


@dataclass(frozen=True, slots=True)
class BenchmarkRow:
    """The result of one method on one instance."""

    instance: Instance
    method: str
    """A name of `METHODS`."""
    seed: int
    """The seed that was passed to the method."""
    solution: Solution | None = None
    """The solution; `None` if none was found."""
    peak_bytes: int | None = None
    """The peak memory of the process."""
    failure: str = ""
    """Why there is no solution, in one line."""

    @property
    def first_s(self) -> float:
        """Seconds until the first feasible choice."""
        trace = () if self.solution is None else self.solution.trace
        return min((at.seconds for at in trace if math.isfinite(at.objective)), default=math.inf)

    @property
    def at_half(self) -> float:
        """How much more the best choice at half the time costs than the last, relative to that."""
        if self.solution is None:
            return math.inf
        half = objective_at(self.solution.trace, self.instance.time_s / 2)
        return relative_gap(half, self.solution.objective)

    @property
    def above_best(self) -> float | None:
        """How much more the solution costs than the lowest cost known, relative to that."""
        if self.solution is None or not self.instance.best:
            return None
        return self.solution.objective / self.instance.best - 1.0


def objective_at(trace: Sequence[Incumbent], seconds: float) -> float:
    """The best objective of a trace at a time; infinite before the first."""
    return min((at.objective for at in trace if at.seconds <= seconds), default=math.inf)


def instances(
    folder: Path, *, time_s: float | None = None, known: Path | None = None
) -> list[Instance]:
    """The IOPDDL files of a folder, in order of their names.

    Args:
        folder: The folder; or a single file.
        time_s: The time for each solve, instead of that in `known`.
        known: JSON as described at `KNOWN`; by default the file of that name in the folder.

    Raises:
        ProblemError: there are no files, or `known` is not such JSON.
        OSError: a file cannot be read.
    """
    beside = folder / KNOWN if folder.is_dir() else folder.parent / KNOWN
    if known is None and beside.exists():
        known = beside
    facts = _facts(known)
    paths = [folder]
    if folder.is_dir():
        files = {path for pattern in PATTERNS for path in folder.glob(pattern)}
        paths = sorted(files - {beside})
    if not paths or not folder.exists():
        raise ProblemError(
            f"a folder to bench has files {' or '.join(PATTERNS)}; got {str(folder)!r} with none"
        )
    listed = []
    for path in paths:
        of = facts.get(_stem(path), facts.get(_stem(path).rpartition("-")[2], {}))
        listed.append(
            Instance(path, time_s or of.get("time_s", TIME_S), of.get("best"), of.get("bound"))
        )
    return listed


def run_one(instance: Instance, method: str, *, seed: int = 0) -> BenchmarkRow:
    """Solve an instance in a separate process; errors are reported in `BenchmarkRow.failure`."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "solution.json")
        command = [sys.executable, "-m", "autoshard", "solve", str(instance.path)]
        command += ["--method", method, "--time", str(instance.time_s), "--seed", str(seed)]
        command += ["--out", str(out), "--no-progress"]
        limit_s = OVER * instance.time_s + 60.0
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=limit_s, check=False
            )
        except subprocess.TimeoutExpired:
            return BenchmarkRow(
                instance, method, seed, failure=f"killed, still running after {limit_s:.0f} s"
            )
        if done.returncode != 0 or not out.exists():
            lines = done.stderr.strip().splitlines() or [f"ended with code {done.returncode}"]
            return BenchmarkRow(instance, method, seed, failure=lines[-1].removeprefix("error: "))
        text = out.read_text()
        peak = json.loads(text).get("peak_bytes")
        return BenchmarkRow(instance, method, seed, solution_from_json(text), peak)


def bench(
    listed: Sequence[Instance],
    methods: Sequence[str],
    *,
    seed: int = 0,
    progress: Callable[[BenchmarkRow], None] | None = None,
) -> list[BenchmarkRow]:
    """Run every method on every instance, one after the other.

    Args:
        listed: The instances; see `instances`.
        methods: Names of `METHODS`.
        seed: The seed of each solve.
        progress: Called with each result.
    """
    results = []
    for instance in listed:
        for method in methods:
            results.append(run_one(instance, method, seed=seed))
            if progress is not None:
                progress(results[-1])
    return results


HEAD = (
    "file",
    "method",
    "time",
    "cost",
    "to best known",
    "bound",
    "gap",
    "first feasible",
    "at half time",
    "ended",
    "memory",
)


def row(result: BenchmarkRow) -> tuple[str, ...]:
    """The cells of a result, in the order of `HEAD`."""
    solution, instance = result.solution, result.instance
    begin = (instance.name, result.method, f"{instance.time_s:g} s")
    if solution is None:
        return (*begin, "none", *[""] * (len(HEAD) - len(begin) - 1))
    above, bounded = result.above_best, math.isfinite(solution.lower_bound)
    return (
        *begin,
        number(solution.objective),
        "" if above is None else f"{100 * above:+.3f} %",
        number(solution.lower_bound) if bounded else "",
        f"{100 * solution.gap:.3f} %" if bounded else "",
        f"{result.first_s:.1f} s",
        f"+{100 * result.at_half:.2f} %" if math.isfinite(result.at_half) else "nothing",
        f"{solution.seconds:.1f} s",
        "" if result.peak_bytes is None else bytes_text(result.peak_bytes),
    )


def failures(results: Sequence[BenchmarkRow]) -> list[str]:
    """A line for each solve without a solution."""
    return [
        f"{result.instance.name}, {result.method}: {result.failure}"
        for result in results
        if result.solution is None
    ]


def markdown(results: Sequence[BenchmarkRow]) -> str:
    """All results as a table, followed by the failures."""
    lines = [HEAD, ("---", "---", *["--:"] * (len(HEAD) - 2)), *map(row, results)]
    table = "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
    return table + "".join(f"\n{line}\n" for line in failures(results))


def to_json(results: Sequence[BenchmarkRow]) -> str:
    """All results with their traces, as JSON."""
    return json.dumps([_record(result) for result in results], indent=1)


def _record(result: BenchmarkRow) -> dict[str, Any]:
    solution = result.solution
    record: dict[str, Any] = {
        "file": result.instance.path.name,
        "best_known": result.instance.best,
        "bound_known": result.instance.bound,
        "time_s": result.instance.time_s,
        "method": result.method,
        "seed": result.seed,
        "failure": result.failure,
        "peak_bytes": result.peak_bytes,
    }
    if solution is None:
        return record
    numbers = {
        "objective": solution.objective,
        "lower_bound": solution.lower_bound,
        "gap": solution.gap,
        "first_feasible_s": result.first_s,
        "above_half": result.at_half,
    }
    record |= finite(numbers)
    record["seconds"] = solution.seconds
    record["found_by"] = solution.method
    record["trace"] = [finite(asdict(at)) for at in solution.trace]
    return record


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".json")


def _facts(known: Path | None) -> Mapping[str, Mapping[str, float]]:
    if known is None:
        return {}
    try:
        facts = json.loads(known.read_text())
        return {name: {k: float(v) for k, v in of.items()} for name, of in facts.items()}
    except (AttributeError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise ProblemError(
            f"{known} has an object of best, bound and time_s for each instance; got "
            f"{type(error).__name__}: {error}"
        ) from error
