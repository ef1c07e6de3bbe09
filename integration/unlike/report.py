"""The record of all runs, and the tables of the page."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shardspec.amounts import seconds_text

BEGIN = "<!-- From here on written by `python integration/unlike`. -->"
END = "<!-- Up to here. -->"


def as_json(kept: Mapping[str, Any]) -> str:
    """A record as the JSON text of its file."""
    return json.dumps(kept, indent=1) + "\n"


def rewrite(page: Path, kept: Mapping[str, Any]) -> None:
    """Write the tables of a record to the page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    text = "\n".join(_lines(kept))
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


def _lines(kept: Mapping[str, Any]) -> Iterator[str]:
    yield "| emulated hosts | layers on devices | predicted speedup | measured speedup | step |"
    yield "|---|---|--:|--:|--:|"
    for each in kept["timed"]:
        predicted = each["alone_predicted_s"] / each["predicted_s"]
        measured = each["alone_measured_s"] / each["measured_s"]
        stages = ", ".join(f"{n} on {len(devices)}" for n, devices in each["stages"])
        yield (
            f"| {each['name']} | {stages} | {predicted:.2f} | **{measured:.2f}** | "
            f"{seconds_text(each['measured_s'])} |"
        )
    worst = max(each["worst"] for each in kept["timed"])
    yield ""
    yield (f"Losses differ from those of one device by {worst:.1e} at most. {kept['measured']}.")
    yield ""
    rows = kept["rows"]
    both = [row for row in rows if row["step_s"] is not None and row["alone_s"] is not None]
    ratios = [row["alone_s"] / row["step_s"] for row in both]
    only = sum(row["step_s"] is not None and row["alone_s"] is None for row in rows)
    n_good = sum(ratio >= 1 - 1e-9 for ratio in ratios)
    alone = f" On {only} more, no equal part has the memory." if only else ""
    yield (
        f"On {n_good} of {len(ratios)} random clusters the plan is as fast as that of the best "
        f"equal part, or faster: {statistics.median(ratios):.2f} times (median), "
        f"{min(ratios):.2f} to {max(ratios):.2f}.{alone}"
    )
    yield ""
    yield "| hosts | plan: layers on devices | step | over the bound | best equal part | speedup |"
    yield "|---|---|--:|--:|---|--:|"
    for row in rows:
        yield _row(row)


def _row(row: Mapping[str, Any]) -> str:
    row = {k: v.replace("NVIDIA ", "") if isinstance(v, str) else v for k, v in row.items()}
    if row["step_s"] is None:
        return f"| {row['hosts']} | nothing fits | | | | |"
    over = f"{row['step_s'] / row['bound_s']:.2f}" if row["bound_s"] else ""
    alone, speedup = "none fits", ""
    if row["alone_s"] is not None:
        alone = f"{row['alone_on']}, {seconds_text(row['alone_s'])}"
        speedup = f"{row['alone_s'] / row['step_s']:.2f}"
    step = seconds_text(row["step_s"])
    return f"| {row['hosts']} | {row['stages']} | {step} | {over} | {alone} | {speedup} |"
