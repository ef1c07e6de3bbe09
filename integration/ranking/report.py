"""The tables of docs/costs.md, between two marks on the page, and the picture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from costmodel.profile import Profile

from ranking.compare import MODELS, predicted_s
from ranking.program import KINDS

Result = tuple[Mapping[str, Any], Profile]
"""The result of `compare`."""

BEGIN = "<!-- From here on written by `python integration/ranking`. -->"
END = "<!-- Up to here. -->"


def rewrite(page: Path, results: Sequence[Result], picture: str) -> None:
    """Write the tables between the marks of the page."""
    text = page.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{tables(results, picture)}\n{END}{after}")


def tables(results: Sequence[Result], picture: str) -> str:
    """All tables, in Markdown."""
    lines = [_conditions(results), "", "### Collectives", ""]
    lines += _table(
        ["backend", "model", "all", *(kind.replace("_", "-") for kind in KINDS)],
        [
            [
                result["backend"],
                model,
                _percent(result["summary"][model]["median_error"]),
                *(_percent(result["summary"][model]["median_error_by_kind"][k]) for k in KINDS),
            ]
            for result, _ in results
            for model in MODELS
        ],
    )
    lines += ["", _links(results), "", "### Strategies", ""]
    lines += _table(
        ["backend", "model", "tau", "median error", "largest error"],
        [
            [
                result["backend"],
                model,
                f"{result['summary'][model]['tau']:.3f}",
                _percent(result["summary"][model]["strategies_median_error"]),
                _percent(result["summary"][model]["strategies_largest_error"]),
            ]
            for result, _ in results
            for model in MODELS
        ],
    )
    lines += ["", f"![Predicted over measured time of each strategy]({picture})", ""]
    for result, _ in results:
        lines += [f"Milliseconds a step, {result['backend']}, fastest first:", ""]
        lines += _strategies(result)
        lines.append("")
    return "\n".join(lines)


def draw(results: Sequence[Result], path: Path) -> None:
    """Draw the predicted and measured time of every strategy, in the order of measured time."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    places_for = figure.subplots(1, len(results), squeeze=False)[0]
    for axes, (result, _) in zip(places_for, results, strict=True):
        rows = by_time(result)
        places = range(len(rows))
        low, high = zip(*((min(row["seconds"]), max(row["seconds"])) for row in rows), strict=True)
        middle = [row["measured_s"] for row in rows]
        below = [m - a for m, a in zip(middle, low, strict=True)]
        above = [b - m for m, b in zip(middle, high, strict=True)]
        axes.errorbar(
            places, middle, (below, above), fmt="o", color="black", capsize=3, label="measured"
        )
        for model, style in (("one link", "--"), ("curves", "-")):
            seconds = [predicted_s(row, model) for row in rows]
            axes.plot(places, seconds, style, label=f"predicted, {model}")
        axes.set_xticks(places, [row["name"] for row in rows], rotation=60, ha="right", fontsize=8)
        axes.set_ylim(bottom=0)
        axes.set_ylabel("seconds a step")
        axes.set_title(f"{result['backend']}, tau {result['summary']['curves']['tau']:.3f}")
        axes.legend(fontsize=8)
    with rc_context({"svg.hashsalt": path.name}):  # equal pictures are equal files
        figure.savefig(path, metadata={"Date": None})


def as_json(value: Any, indent: str = "") -> str:
    """A value as JSON with one line for each row."""
    if isinstance(value, dict) and not indent:
        rows = (f"{json.dumps(key)}: {as_json(part, ' ')}" for key, part in value.items())
        return "{\n " + ",\n ".join(rows) + "\n}"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]"
    return json.dumps(value)


def by_time(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The strategies, fastest first."""
    return sorted(result["strategies"], key=lambda row: row["measured_s"])


def _conditions(results: Sequence[Result]) -> str:
    result, profile = results[0]
    experiment, machine = result["experiment"], profile.machine
    layer = experiment["layer"]
    versions = ", ".join(f"{name} {version}" for name, version in profile.versions)
    return (
        f"Measured on {profile.date} on {machine.n_cores} cores of {machine.cpu}, "
        f"{versions}: {experiment['n_hosts']} hosts of one process at {experiment['rate']}, "
        f"{experiment['repeats']} rounds, of which the median counts. The layer has d_model "
        f"{layer['d_model']}, {layer['heads']} heads, {layer['sequences']} sequences of "
        f"{layer['positions']} positions, float32."
    )


def _links(results: Sequence[Result]) -> str:
    """The calibrated alpha and beta, with their intervals."""
    said = []
    for result, profile in results:
        alpha, beta = profile.fits.link.latency_s, profile.fits.link.s_per_byte
        said.append(
            f"{result['backend']}: alpha = {alpha.value * 1e6:.0f} µs ({alpha.low * 1e6:.0f} to "
            f"{alpha.high * 1e6:.0f}), 1/beta = {1e-6 / beta.value:.2f} MB/s "
            f"({1e-6 / beta.high:.2f} to {1e-6 / beta.low:.2f}), "
            f"R² {profile.fits.link.r_squared:.4f}."
        )
    return "One link, with intervals of 95 %. " + " ".join(said)


def _strategies(result: Mapping[str, Any]) -> list[str]:
    rows = [
        [
            row["name"],
            "x".join(map(str, row["mesh"])),
            f"{row['predicted_bytes'] / 1e6:.2f}",
            f"{row['sent_bytes'] / row['predicted_bytes'] - 1:+.1%}",
            f"{row['measured_s'] * 1e3:.0f}",
            f"{row['predicted']['curves']['compute_s'] * 1e3:.0f}",
            *(
                f"{predicted_s(row, model) * 1e3:.0f} "
                f"({predicted_s(row, model) / row['measured_s'] - 1:+.0%})"
                for model in MODELS
            ),
        ]
        for row in by_time(result)
    ]
    heads = ["strategy", "mesh", "MB a process", "sent", "measured", "compute"]
    return _table([*heads, *MODELS], rows)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    ruler = ["---" if i == 0 else "--:" for i, _ in enumerate(heads)]
    return [f"| {' | '.join(cells)} |" for cells in (heads, ruler, *rows)]


def _percent(part: float) -> str:
    return f"{part:.1%}"
