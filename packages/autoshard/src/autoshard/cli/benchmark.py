"""Methods on a folder of IOPDDL files: cost, bound, first feasible, half time, memory.

Each solve is a process of its own (`python -m autoshard solve`), so that its peak memory is its own
and nothing that it does can end the others.
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
from autoshard.solvers.solution_json import solution_from_json

PATTERNS = ("*.json", "*.json.gz")
KNOWN = "known.json"
"""Beside the instances: per instance `best` (the lowest cost known), and `bound` and `time_s` if
there are such."""
TIME_S = 60.0
"""Of an instance that nothing is known about: the contest's shortest."""
OVER = 2.0
"""A solve that goes on for so many times its time, and a minute, is ended by force."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A file, and what is known about it."""

    path: Path
    """IOPDDL JSON, gzipped or not."""
    time_s: float
    """For each solve."""
    best: float | None = None
    """The lowest cost known."""
    bound: float | None = None
    """The highest lower bound known."""

    @property
    def name(self) -> str:
        """The part of the file name behind the last dash: `B` of `asplos-2025-iopddl-B`."""
        return _stem(self.path).rpartition("-")[2]


@dataclass(frozen=True, slots=True)
class BenchmarkRow:
    """One method on one instance."""

    instance: Instance
    """What was solved."""
    method: str
    """A name of `METHODS`."""
    seed: int
    """Of the method."""
    solution: Solution | None = None
    """What was found."""
    peak_bytes: int | None = None
    """Of the process."""
    failure: str = ""
    """One line, if nothing was found."""

    @property
    def first_s(self) -> float:
        """Seconds until the first feasible choice."""
        trace = () if self.solution is None else self.solution.trace
        return min((at.seconds for at in trace if math.isfinite(at.objective)), default=math.inf)

    @property
    def at_half(self) -> float:
        """How much more the best choice at half the time costs than the last one, as a part."""
        if self.solution is None:
            return math.inf
        half = objective_at(self.solution.trace, self.instance.time_s / 2)
        return relative_gap(half, self.solution.objective)

    @property
    def above_best(self) -> float | None:
        """How much more it costs than the lowest cost known, relative to that."""
        if self.solution is None or not self.instance.best:
            return None
        return self.solution.objective / self.instance.best - 1.0


def objective_at(trace: Sequence[Incumbent], seconds: float) -> float:
    """The best objective of a trace at a time; infinite before the first."""
    return min((at.objective for at in trace if at.seconds <= seconds), default=math.inf)


def instances(
    folder: Path, *, time_s: float | None = None, known: Path | None = None
) -> list[Instance]:
    """The IOPDDL files of a folder in order of their names.

    Args:
        folder: Where they are; a single file is taken, too.
        time_s: For each solve, instead of what `known` says.
        known: JSON as at `KNOWN`; the file of that name in the folder if left out.

    Raises:
        ProblemError: there are none, or `known` is not as expected.
        OSError: a file cannot be read.
    """
    beside = folder / KNOWN if folder.is_dir() else folder.parent / KNOWN
    if known is None and beside.exists():
        known = beside
    facts = _facts(known)
    paths = [folder]
    if folder.is_dir():
        found = {path for pattern in PATTERNS for path in folder.glob(pattern)}
        paths = sorted(found - {beside})
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
    """Solve an instance in a process of its own; what goes wrong is in `BenchmarkRow.failure`."""
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
                instance, method, seed, failure=f"had not ended after {limit_s:.0f} s, ended"
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
    """Every method on every instance, one after the other.

    Args:
        listed: See `instances`.
        methods: Names of `METHODS`.
        seed: Of each.
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
    found, instance = result.solution, result.instance
    begin = (instance.name, result.method, f"{instance.time_s:g} s")
    if found is None:
        return (*begin, "none", *[""] * (len(HEAD) - len(begin) - 1))
    above, bounded = result.above_best, math.isfinite(found.lower_bound)
    return (
        *begin,
        number(found.objective),
        "" if above is None else f"{100 * above:+.3f} %",
        number(found.lower_bound) if bounded else "",
        f"{100 * found.gap:.3f} %" if bounded else "",
        f"{result.first_s:.1f} s",
        f"+{100 * result.at_half:.2f} %" if math.isfinite(result.at_half) else "nothing",
        f"{found.seconds:.1f} s",
        "" if result.peak_bytes is None else bytes_text(result.peak_bytes),
    )


def failures(results: Sequence[BenchmarkRow]) -> list[str]:
    """A line for each solve that found nothing."""
    return [
        f"{result.instance.name}, {result.method}: {result.failure}"
        for result in results
        if result.solution is None
    ]


def markdown(results: Sequence[BenchmarkRow]) -> str:
    """The table of all results, and why some have none."""
    lines = [HEAD, ("---", "---", *["--:"] * (len(HEAD) - 2)), *map(row, results)]
    table = "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
    return table + "".join(f"\n{line}\n" for line in failures(results))


def to_json(results: Sequence[BenchmarkRow]) -> str:
    """All results with their traces."""
    return json.dumps([_record(result) for result in results], indent=1)


def _record(result: BenchmarkRow) -> dict[str, Any]:
    found = result.solution
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
    if found is None:
        return record
    finite = {
        "objective": found.objective,
        "lower_bound": found.lower_bound,
        "gap": found.gap,
        "first_feasible_s": result.first_s,
        "above_half": result.at_half,
    }
    record |= {name: value if math.isfinite(value) else None for name, value in finite.items()}
    record["seconds"] = found.seconds
    record["found_by"] = found.method
    record["trace"] = [
        {key: None if math.isinf(value) else value for key, value in asdict(at).items()}
        for at in found.trace
    ]
    return record


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".json")


def _facts(known: Path | None) -> Mapping[str, Mapping[str, float]]:
    if known is None:
        return {}
    try:
        facts = json.loads(known.read_text())
        return {name: {k: float(v) for k, v in of.items()} for name, of in facts.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise ProblemError(
            f"{known} has an object with best, bound and time_s for each instance; got "
            f"{type(error).__name__}: {error}"
        ) from error
