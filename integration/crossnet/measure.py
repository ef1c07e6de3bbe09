"""Runs plans on a lab of emulated hosts, one process for each device, through gloo or MPI."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from netlab import Lab
from ranking.measure import ENVIRONMENT, PORT, RSH

from crossnet.runs import RATE, Run

BACKENDS = ("gloo", "mpi")
RANK = Path(__file__).with_name("rank.py")
WINDOW = 2
"""Tasks that a device has open: while the last bytes of one are on their way, the next begins."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What the processes of a lab saw of one run."""

    seconds: tuple[float, ...]
    """Of each round, from the common start until the last process was done."""
    n_bytes: Mapping[int, int]
    """That each host sent and received, together, headers included: of the median round."""
    n_packets: Mapping[int, int]
    """In how many packets, as the kernel counts them."""


def lab(n_hosts: int, name: str = "crossnet") -> Lab:
    """A lab of hosts with the links of the figures."""
    return Lab(hosts=n_hosts, rate=RATE, name=name)


def measure(hosts: Lab, backend: str, runs: Sequence[Run]) -> dict[str, Measured]:
    """Execute the plans, each device in a process of its own, and verify what arrives.

    Returns:
        What was seen of each plan, by its digest: runs with equal plans are one.

    Raises:
        RuntimeError: A process failed, or got other bytes than were sent; its output is in the
            message.
    """
    often_last = sorted(runs, key=lambda run: run.rounds)
    runs = list({run.plan.digest: run for run in often_last}.values())
    counts = [_devices_on(run, hosts.hosts) for run in runs]
    slots = [max(column) for column in zip(*counts, strict=True)]
    first = [sum(slots[:host]) for host in range(hosts.hosts)]
    jobs = [_job(run, first) for run in runs]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "job.json").write_text(json.dumps(jobs))
        _start(hosts, slots, backend, folder)
        seen = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(sum(slots))]
    rank_of_host = {host: rank for host, rank in enumerate(first) if slots[host]}
    return {
        run.plan.digest: _together([rows[i] for rows in seen], rank_of_host)
        for i, run in enumerate(runs)
    }


def _devices_on(run: Run, n_hosts: int) -> list[int]:
    on_hosts = list(run.plan.host_of.values())
    return [on_hosts.count(host) for host in range(n_hosts)]


def _job(run: Run, first: Sequence[int]) -> dict[str, Any]:
    """What the processes need to know: devices of a host are its ranks, in their order."""
    rank_of: dict[int, int] = {}
    next_of = list(first)
    for device, host in run.plan.hosts:
        rank_of[device] = next_of[host]
        next_of[host] += 1
    return {
        "plan": run.plan.to_json(),
        "rank_of": rank_of,
        "rounds": run.rounds,
        "window": WINDOW,
        "deadline_s": 60 + 10 * run.predicted_s,
    }


def _together(
    rows: Sequence[Mapping[str, Sequence[float]] | None], rank_of_host: Mapping[int, int]
) -> Measured:
    there = [row for row in rows if row]
    starts = zip(*(row["start"] for row in there), strict=True)
    ends = zip(*(row["end"] for row in there), strict=True)
    seconds = tuple(max(e) - max(s) for s, e in zip(starts, ends, strict=True))
    n_bytes, n_packets = (
        {
            host: round(median(row[what]))
            for host, rank in rank_of_host.items()
            if (row := rows[rank])
        }
        for what in ("bytes", "packets")
    )
    return Measured(seconds, n_bytes, n_packets)


def _start(hosts: Lab, slots: Sequence[int], backend: str, folder: str) -> None:
    """Start all processes, and wait for them."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    environment = {**os.environ, **ENVIRONMENT}
    program = [RANK, backend, folder]
    if backend == "mpi":
        names = ",".join(f"{hosts.hostname(h)}:{n}" for h, n in enumerate(slots) if n)
        mpiexec = Path(sys.executable).with_name("mpiexec")
        launch = [mpiexec, "-launcher", "ssh", "-launcher-exec", RSH, "-hosts", names]
        # mpi4py ends the job where a process fails; else all would wait for it when they end.
        launch += ["-n", sum(slots), sys.executable, "-m", "mpi4py"]
        processes = [hosts.popen(0, [*launch, *program], env=environment, **options)]
    else:
        where = [host for host, n in enumerate(slots) for _ in range(n)]
        meet = f"{hosts.ip(0)}:{PORT}"
        processes = [
            hosts.popen(
                host,
                [sys.executable, *program, rank, len(where), meet],
                env=environment,
                **options,
            )
            for rank, host in enumerate(where)
        ]
    said = [process.communicate(timeout=600)[0] for process in processes]
    if any(process.returncode for process in processes):
        codes = [process.returncode for process in processes]
        raise RuntimeError(f"processes of {backend} ended with {codes}: {''.join(said)[-3000:]}")
