"""Makes records of suites from the raw output of pytest-benchmark, and a page from the records.

A record has all that is needed to judge or repeat its numbers: the question (the docstring of each
benchmark file), the commit, the machine, the versions, the command, and the raw numbers. These are
the seconds of each round, or every fifth percentile if there are more than a hundred rounds.
"""

from __future__ import annotations

import ast
import json
import os
import re
import statistics
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

Record = Mapping[str, Any]

BASELINE = "baseline"
"""Key in a benchmark's extra info: the name of the benchmark in the same file to compare with."""

_HEAD = """# Benchmarks

Written by `nox -s bench` from the records in `docs/results`; edit those, or the benchmarks, not
this page. Each row is one benchmark: the median of its rounds, the distance between their quartiles
(IQR), and how many rounds there were. "of baseline" is the median over that of the row it names,
from the same run: below 1 is faster. What is right of it is explained above the table.
Only the newest record of each suite and machine is shown.
"+changes" after a commit: files differed from it, if only the records that the same run had kept.

What is not shown: small differences. The machines here are a few cores shared with other work, as
the load average tells (processes that ran or waited to run, the benchmark's own included). Rows are
measured one after the other, so a baseline may have had a quieter minute than what is compared with
it: expect a repeated run to differ by more than the IQR.
"""


def make_record(suite: str, raw: Mapping[str, Any], root: Path) -> Record:
    """The record of one suite, from the file that `pytest --benchmark-json` wrote.

    Args:
        suite: The name of the package.
        raw: The content of the file.
        root: The folder that pytest ran in; the docstrings of the benchmark files are read from it.
    """
    machine, commit = raw["machine_info"], raw["commit_info"]
    cpu = machine.get("cpu", {})
    files = sorted({bench["fullname"].partition("::")[0] for bench in raw["benchmarks"]})
    return {
        "suite": suite,
        "date": raw["datetime"][:10],
        "commit": commit["id"] + ("+changes" if commit.get("dirty") else ""),
        "machine": f"{cpu.get('brand_raw') or machine['machine']}, {cpu.get('count', '?')} cores",
        "versions": {"python": machine["python_version"], **_versions()},
        "load_15_min": round(os.getloadavg()[2], 1),
        "command": f"nox -s bench  # pytest packages/{suite}/benchmarks",
        "about": {file: ast.get_docstring(ast.parse((root / file).read_text())) for file in files},
        "benchmarks": [
            {
                "file": bench["fullname"].partition("::")[0],
                "name": bench["name"],
                "extra_info": bench["extra_info"],
                "rounds": bench["stats"]["rounds"],
                "seconds": _condensed(bench["stats"]["data"]),
                "median_s": bench["stats"]["median"],
                "iqr_s": bench["stats"]["iqr"],
            }
            for bench in raw["benchmarks"]
        ],
    }


def record_name(record: Record) -> str:
    """The file name of a record: suite, machine, date."""
    machine = re.sub(r"[^a-z0-9]+", "-", record["machine"].lower()).strip("-")
    return f"{record['suite']}_{machine}_{record['date']}.json"


def render(records: Sequence[Record]) -> str:
    """The page, with the newest record of each suite and machine."""
    newest = {(r["suite"], r["machine"]): r for r in sorted(records, key=lambda r: r["date"])}
    return "\n".join([_HEAD, *(_section(newest[key]) for key in sorted(newest))])


def format_seconds(seconds: float) -> str:
    """Seconds as text with three digits and a suitable unit, such as "12.3 ms"."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:#.3g} {unit}".replace(". ", " ")
    return f"{seconds / 1e-9:#.3g} ns".replace(". ", " ")


def read_records(folder: Path) -> list[Record]:
    """The records in a folder, which are recognised by their file names."""
    files = sorted(folder.glob("*_*_????-??-??.json"))
    return [json.loads(file.read_text()) for file in files]


def _section(record: Record) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    commit, *changes = record["commit"].split("+")
    lines = [f"## {record['suite']}: {record['machine']}, {record['date']}", ""]
    lines += [f"Commit `{'+'.join([commit[:12], *changes])}`, {versions}."]
    lines += [f"Load average of the last 15 minutes: {record['load_15_min']}."]
    lines += [f"Command: `{record['command']}`.", ""]
    for file, about in record["about"].items():
        lines += [f"### `{file}`", "", about or "", ""]
        benches = [bench for bench in record["benchmarks"] if bench["file"] == file]
        keys = dict.fromkeys(key for bench in benches for key in bench["extra_info"])
        columns = [key for key in keys if key != BASELINE]
        heads = ["benchmark", "median", "IQR", "rounds", "of baseline", *columns]
        lines += [_row(heads), f"|---|--:|--:|--:|{'---|' * (1 + len(columns))}"]
        medians_s = {bench["name"]: bench["median_s"] for bench in benches}
        lines += [_row(_cells(bench, medians_s, columns)) for bench in benches]
        lines.append("")
    return "\n".join(lines)


def _cells(
    bench: Mapping[str, Any], medians_s: Mapping[str, float], columns: Sequence[str]
) -> list[str]:
    cells = [f"`{bench['name']}`", format_seconds(bench["median_s"])]
    cells += [format_seconds(bench["iqr_s"]), str(bench["rounds"])]
    extra = bench["extra_info"]
    baseline = extra.get(BASELINE)
    if baseline in medians_s:
        cells.append(f"{bench['median_s'] / medians_s[baseline]:.3g} × `{baseline}`")
    else:
        cells.append("" if baseline is None else f"`{baseline}` did not run")
    return cells + [str(extra.get(key, "")) for key in columns]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _condensed(seconds: Sequence[float]) -> list[float]:
    """All values if there are at most a hundred, else the extremes and every fifth percentile."""
    if len(seconds) <= 100:
        return list(seconds)
    inner = statistics.quantiles(seconds, n=20, method="inclusive")
    return [min(seconds), *inner, max(seconds)]


def _versions() -> dict[str, str]:
    installed = {dist.name: dist.version for dist in metadata.distributions()}
    named = ("numpy", "jax", "mip", "torch")
    return {name: installed[name] for name in named if name in installed}
