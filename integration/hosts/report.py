"""The measured and the simulated times, as a record and as a table of the docs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import pipesched
from netlab import parse_rate
from pipesched import Costs, Edge, Kind

from hosts.job import N_HOSTS, Job
from hosts.measure import Measured

Record = Mapping[str, Any]

BEGIN = "<!-- From here on written by `python integration/hosts`. -->"
END = "<!-- Up to here. -->"


def record(about: Mapping[str, str], job: Job, rate: str, seen: Measured) -> Record:
    """The record of a measurement.

    The simulator gets the median time of each stage's programs, each run alone, and the bytes of
    each transfer at the rate of the link. It gets nothing of the measured steps.
    """
    costs = costs_of(seen, parse_rate(rate) / 8)
    return {
        **about,
        "rate": rate,
        "microbatches": job.microbatches,
        "message_bytes": seen.transfers[0][3],
        "worst_difference": seen.worst,
        "forward_s": [round(seconds, 4) for seconds in seen.compute_s["forward"]],
        "backward_s": [round(seconds, 4) for seconds in seen.compute_s["backward"]],
        "schedules": {
            name: {
                "measured_s": [round(seconds, 4) for seconds in seen.step_s[name]],
                "simulated_s": round(simulated_s(name, job.microbatches, costs), 4),
            }
            for name in job.schedules
        },
    }


def costs_of(seen: Measured, bytes_per_s: float) -> Costs:
    """The costs of a step, for the simulator."""
    kinds = {"forward": Kind.FORWARD, "backward": Kind.BACKWARD}
    message_bytes = {
        Edge((kinds[phase], source), (kinds[phase], destination)): n_bytes
        for phase, source, destination, n_bytes in seen.transfers
        if phase in kinds
    }
    return Costs(
        seen.compute_s["forward"],
        seen.compute_s["backward"],
        message_bytes=message_bytes,
        bytes_per_s=bytes_per_s,
    )


def simulated_s(schedule: str, microbatches: int, costs: Costs) -> float:
    """The simulated time of one step without apply."""
    pipeline = pipesched.make(schedule, N_HOSTS, microbatches)
    return float(pipesched.simulate(pipeline, costs).makespan_s)


def as_json(record: Record) -> str:
    """A record as JSON with one line for each field."""
    fields = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in record.items())
    return "{\n " + ",\n ".join(fields) + "\n}\n"


def rewrite(page: Path, record: Record) -> None:
    """Write the table between the marks of the page."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{_table(record)}\n\n{END}{after}")


def _table(record: Record) -> str:
    lines = ["| schedule | measured step, median (quartiles) | simulated |", "|---|---|---|"]
    medians = {}
    for name, row in record["schedules"].items():
        low, medians[name], high = quantiles(row["measured_s"], n=4)
        lines.append(
            f"| {name} | {medians[name]:.2f} s ({low:.2f} to {high:.2f}) | "
            f"{row['simulated_s']:.2f} s |"
        )
    slow, quick = (record["schedules"][name]["simulated_s"] for name in ("1f1b", "eager-1f1b"))
    compute_ms = [
        1e3 * median(record[f"{phase}_s"][stage] for stage in range(N_HOSTS))
        for phase in ("forward", "backward")
    ]
    lines += [
        f"| 1f1b / eager-1f1b | **{medians['1f1b'] / medians['eager-1f1b']:.2f}** | "
        f"**{slow / quick:.2f}** |",
        "",
        f"{record['date']}, {record['versions']}; {len(row['measured_s'])} steps by each schedule, "
        f"in turns. Two hosts of one process each, {record['rate']}; {record['microbatches']} "
        f"microbatches, each sends {record['message_bytes'] / 2**20:.3g} MiB to and fro. A forward "
        f"takes {compute_ms[0]:.0f} ms, a backward {compute_ms[1]:.0f} ms (medians of the "
        "programs, each run by itself), which with the link's rate is all that the simulator "
        "knows. "
        f"Parameters differ from a single device's by {record['worst_difference']:.0e} at most.",
    ]
    return "\n".join(lines)
