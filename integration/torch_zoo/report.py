"""The tables of the PyTorch zoo, from kept results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

from torch_zoo.check import WAYS, Found, as_found
from torch_zoo.launch import LAUNCHED, LAUNCHED_WAYS, LAUNCHERS
from torch_zoo.models import MODELS

MARKER = "<!-- From here on written by `python integration/torch_zoo`. -->"

Results = Mapping[str, Mapping[str, Found]]
"""By model and way; a way in several processes has the name that `launched` gives it."""


def launched(way: str, launcher: str) -> str:
    """The name of a way in the processes of a launcher."""
    return f"{way}, {launcher}"


def keep(name: str, way: str, found: Found, path: Path) -> None:
    """Add a result to those that a file has, or replace it."""
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    known.setdefault(name, {})[way] = asdict(found)
    path.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


def read(path: Path) -> dict[str, dict[str, Found]]:
    """The results that a file has, in the order of the zoo."""
    known = json.loads(path.read_text(encoding="utf-8"))
    return {
        name: {way: as_found(fields) for way, fields in known[name].items()}
        for name in MODELS
        if name in known
    }


def write(page: Path, results: Results) -> None:
    """Rewrite the part of the page that follows the marker."""
    before, _, _ = page.read_text(encoding="utf-8").partition(MARKER)
    text = (
        f"## In one process\n\n{table(results)}\n\n## In four processes\n\n{of_processes(results)}"
    )
    page.write_text(f"{before}{MARKER}\n\n{text}\n", encoding="utf-8")


def table(results: Results) -> str:
    """A line for each model: size, searched plan, and for each way the differences from eager."""
    heads = ["model", "parameters", "searched plan", "collectives a step"]
    heads += [f"loss, {way}" for way in WAYS] + [f"parameters, {way}" for way in WAYS]
    lines = [_line(heads), f"|---|{'--:|' * (len(heads) - 1)}"]
    for name, by_way in results.items():
        searched = by_way.get("searched")
        cells = [name, f"{next(iter(by_way.values())).n_parameters:,}"]
        cells += ["", ""] if searched is None else [_plan(searched), str(searched.n_collectives)]
        for field in ("loss", "parameters"):
            cells += [f"{getattr(by_way[w], field):.0e}" if w in by_way else "" for w in WAYS]
        lines.append(_line(cells))
    return "\n".join(lines)


def of_processes(results: Results) -> str:
    """A line for each model and way in several processes: the plan, and differences from eager."""
    heads = ["model", "way", "plan", "calls of process groups a step, by all four"]
    heads += [f"{field}, {launcher}" for field in ("loss", "parameters") for launcher in LAUNCHERS]
    lines = [_line(heads), f"|---|---|{'--:|' * (len(heads) - 2)}"]
    for name in LAUNCHED:
        for way in LAUNCHED_WAYS:
            kept = results.get(name, {})
            by = {n: kept[launched(way, n)] for n in LAUNCHERS if launched(way, n) in kept}
            if not by:
                continue
            result = next(iter(by.values()))
            cells = [name, way, _plan(result), str(result.n_collectives)]
            for field in ("loss", "parameters"):
                cells += [f"{getattr(by[n], field):.0e}" if n in by else "" for n in LAUNCHERS]
            lines.append(_line(cells))
    return "\n".join(lines)


def _plan(result: Found) -> str:
    meshes = " + ".join("x".join(map(str, shape)) for shape in result.stages)
    return f"{meshes}, {result.schedule}" if len(result.stages) > 1 else meshes


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
