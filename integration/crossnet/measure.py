"""Runs plans on a lab of emulated hosts, with one process for each device, over gloo or MPI."""

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
"""The tasks that a device has open: the next one begins while the last bytes of one are sent."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of one run on a lab."""

    seconds: tuple[float, ...]
    """The time of each round, from the common start until the last process was done."""
    n_bytes: Mapping[int, int]
    """The bytes that each host sent and received together, including headers: the median round."""
    n_packets: Mapping[int, int]
    """The number of packets of these bytes, as the kernel counts them."""


def lab(n_hosts: int, name: str = "crossnet") -> Lab:
    """A lab with hosts whose links have the rate of the figures."""
    return Lab(hosts=n_hosts, rate=RATE, name=name)


def measure(hosts: Lab, backend: str, runs: Sequence[Run]) -> dict[str, Measured]:
    """Execute the plans, with a separate process for each device, and verify what arrives.

    Returns:
        The measurements of each plan, by its digest: runs with equal plans are measured once.

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
    """The job of the processes; the devices of a host are its ranks, in the same order."""
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
    present = [row for row in rows if row]
    starts = zip(*(row["start"] for row in present), strict=True)
    ends = zip(*(row["end"] for row in present), strict=True)
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
    """Start all processes and wait for them."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    environment = {**os.environ, **ENVIRONMENT}
    program = [RANK, backend, folder]
    if backend == "mpi":
        names = ",".join(f"{hosts.hostname(h)}:{n}" for h, n in enumerate(slots) if n)
        mpiexec = Path(sys.executable).with_name("mpiexec")
        launch = [mpiexec, "-launcher", "ssh", "-launcher-exec", RSH, "-hosts", names]
        # With -m mpi4py, a process that fails ends the job; otherwise all others would wait for it
        # when they end.
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
