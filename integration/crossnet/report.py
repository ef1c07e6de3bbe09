"""The tables of docs/crossmesh_figures.md, between two marks on the page, and the pictures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from crossnet.measure import Measured
from crossnet.runs import RATE, Run

Record = Mapping[str, Any]
"""The record of one figure with one backend, as `record` returns it."""

BEGIN = "<!-- From here on written by `python integration/crossnet`. -->"
END = "<!-- Up to here. -->"
TITLES = {
    "figure5": "Figure 5: from one device to several",
    "figure6": "Figure 6: the nine cases of Table 2",
    "figure8": "Figure 8: how senders and the order are found",
}
HEADER_BYTES = 66
"""Bytes of a packet's headers: 14 of Ethernet, 20 of IP, and 32 of TCP with time stamps, which
Linux uses."""

OURS = {"figure5": "broadcast", "figure6": "broadcast", "figure8": "ensemble"}


def record(
    backend: str, about: Mapping[str, str], runs: Iterable[Run], seen: Mapping[str, Measured]
) -> Record:
    """The record of a figure; times are in units of `t`."""
    rows = []
    for run in runs:
        one = seen[run.plan.digest]
        rows.append(
            {
                "case": run.case,
                "method": run.method,
                "tensor_bytes": run.t_bytes,
                "bound": round(run.bound_s / run.t_s, 4),
                "predicted": round(run.predicted_s / run.t_s, 4),
                "measured": [round(seconds / run.t_s, 4) for seconds in one.seconds],
                "planned_bytes": list(run.planned_bytes.values()),
                "counted_bytes": [one.n_bytes[host] for host in run.planned_bytes],
                "counted_packets": [one.n_packets[host] for host in run.planned_bytes],
            }
        )
    return {"backend": backend, **about, "rows": rows}


def as_json(record: Record) -> str:
    """The record as JSON with one line for each row."""
    fields = {key: json.dumps(value) for key, value in record.items()}
    fields["rows"] = "[\n  " + ",\n  ".join(map(json.dumps, record["rows"])) + "\n ]"
    return "{\n " + ",\n ".join(f'"{key}": {text}' for key, text in fields.items()) + "\n}\n"


def rewrite(page: Path, figures: Mapping[str, Sequence[Record]]) -> None:
    """Write the tables between the marks of the page."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    tables = "\n".join(_section(name, records) for name, records in figures.items())
    page.write_text(f"{before}{BEGIN}\n\n{tables}\n{END}{after}")


def _section(name: str, records: Sequence[Record]) -> str:
    rows = records[0]["rows"]
    methods = list(dict.fromkeys(row["method"] for row in rows))
    cells = {(row["case"], row["method"]): [f"{row['predicted']:.2f}"] for row in rows}
    for record in records:
        for row in record["rows"]:
            cells[row["case"], row["method"]].append(f"{median(row['measured']):.2f}")
    bounds = {row["case"]: row["bound"] for row in rows if row["method"] == OURS[name]}
    head = ["", "bound", *methods]
    table = [
        [case, f"{bound:.2f}", *(" · ".join(cells[case, method]) for method in methods)]
        for case, bound in bounds.items()
    ]
    lines = [f"## {TITLES[name]}", ""]
    lines += [f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *table)]
    backends = " · ".join(record["backend"] for record in records)
    lines += [
        "",
        f"Times in `t`: predicted · {backends}. {' '.join(_reach(name, r) for r in records)}",
        "",
        f"![Times in units of t](pictures/crossmesh_{name}.svg)",
        "",
    ]
    return "\n".join(lines)


def _reach(name: str, record: Record) -> str:
    """A sentence on how close one backend comes to the bound and to the planned bytes."""
    ours = [row for row in record["rows"] if row["method"] == OURS[name]]
    worst = max(ours, key=_over_bound)
    off = max(ours, key=_bytes_off)
    return (
        f"With {record['backend']} ({record['versions']}; {record['date']}) `{OURS[name]}` takes "
        f"up to {_over_bound(worst):.2f} of the bound ({worst['case']}), and bytes of hosts differ "
        f"from the plan's by up to {_bytes_off(off):.1%} of the busiest host's ({off['case']}), "
        f"of which {_headers(off):.1%} are headers of packets."
    )


def _over_bound(row: Mapping[str, Any]) -> float:
    return float(median(row["measured"]) / row["bound"])


def _bytes_off(row: Mapping[str, Any]) -> float:
    planned, counted = row["planned_bytes"], row["counted_bytes"]
    return float(max(abs(c - p) for c, p in zip(counted, planned, strict=True)) / max(planned))


def _headers(row: Mapping[str, Any]) -> float:
    """The share of headers for the host whose bytes differ the most, relative as in
    `_bytes_off`."""
    planned = row["planned_bytes"]
    of_hosts = zip(row["counted_bytes"], planned, row["counted_packets"], strict=True)
    _, n_packets = max((abs(c - p), n) for c, p, n in of_hosts)
    return float(HEADER_BYTES * n_packets / max(planned))


def draw(name: str, records: Sequence[Record], path: Path) -> None:
    """Draw a figure: a panel for each backend, and a line at the predicted time of each bar."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3 * len(records)), layout="constrained")
    panels = figure.subplots(len(records), 1, squeeze=False)[:, 0]
    for axes, record in zip(panels, records, strict=True):
        rows = record["rows"]
        cases = list(dict.fromkeys(row["case"] for row in rows))
        methods = list(dict.fromkeys(row["method"] for row in rows))
        width = 0.8 / len(methods)
        for i, method in enumerate(methods):
            of_method = [row for row in rows if row["method"] == method]
            places = [
                cases.index(row["case"]) + (i - (len(methods) - 1) / 2) * width for row in of_method
            ]
            times = [median(row["measured"]) for row in of_method]
            axes.bar(places, times, width, label=method)
            predicted = [row["predicted"] for row in of_method]
            left, right = ([place + d * width / 2 for place in places] for d in (-1, 1))
            axes.hlines(predicted, left, right, color="black", linewidth=1)
        axes.set_xticks(range(len(cases)), cases, fontsize=8)
        axes.set_ylabel("time / t")
        axes.set_title(f"{record['backend']} at {RATE}; black: predicted", fontsize=9)
        axes.legend(fontsize=8)
    with rc_context({"svg.hashsalt": path.name}):  # equal pictures are equal files
        figure.savefig(path, metadata={"Date": None})
