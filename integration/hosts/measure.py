"""Starts the processes of a job by MPI on a lab of two hosts, and gathers their measurements."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from netlab import Lab
from ranking.measure import ENVIRONMENT, RSH

from hosts.job import N_HOSTS, Job

RANK = Path(__file__).with_name("rank.py")
RATE = "300mbit"
TIMEOUT_S = 400


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of all processes of a lab."""

    hosts: tuple[str, ...]
    """The host of each process."""

    worst: float
    """The largest relative difference of parameters to a single device's, after two steps."""

    step_s: dict[str, tuple[float, ...]]
    """For each schedule, the time of each round, from the first process's start to the last end."""

    compute_s: dict[str, tuple[float, ...]]
    """The times of "forward", "backward" and "apply" for one microbatch, by stage."""

    transfers: tuple[tuple[str, int, int, int], ...]
    """(phase, source stage, destination stage, bytes of one microbatch)."""

    crossed_bytes: int
    """The bytes between the hosts in both directions, including headers."""


def lab(name: str = "hosts", rate: str = RATE) -> Lab:
    """Two hosts with a slow link."""
    return Lab(hosts=N_HOSTS, rate=rate, name=name)


def measure(hosts: Lab, job: Job) -> Measured:
    """Run a job on all hosts of a lab.

    Raises:
        RuntimeError: A process failed; its output is in the message.
    """
    names = ",".join(f"{hosts.hostname(h)}:{job.processes_per_host}" for h in range(N_HOSTS))
    before = _crossed(hosts)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "job.json").write_text(json.dumps(asdict(job)))
        mpiexec = Path(sys.executable).with_name("mpiexec")
        launch = [mpiexec, "-launcher", "ssh", "-launcher-exec", RSH, "-hosts", names]
        program = [sys.executable, RANK, folder]
        n_processes = N_HOSTS * job.processes_per_host
        started = hosts.popen(
            0,
            [*launch, "-n", n_processes, *program],
            env={**os.environ, **ENVIRONMENT},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        said = started.communicate(timeout=TIMEOUT_S)[0]
        if started.returncode:
            raise RuntimeError(f"processes ended with {started.returncode}: {said[:3000]}")
        seen = [json.loads(Path(folder, f"{p}.json").read_text()) for p in range(n_processes)]
    return _together(seen, _crossed(hosts) - before)


def _crossed(hosts: Lab) -> int:
    return sum(counted["tx"] for counted in hosts.stats().values())


def _together(seen: list[dict[str, Any]], crossed_bytes: int) -> Measured:
    step_s = {}
    for schedule in seen[0]["steps"]:
        rounds = zip(*(process["steps"][schedule] for process in seen), strict=True)
        step_s[schedule] = tuple(
            max(end for _, end in times) - min(begin for begin, _ in times) for times in rounds
        )
    times: dict[tuple[int, int], list[float]] = {}
    for process in seen:
        for stage, phase, seconds in process["chunks"]:
            times.setdefault((phase, stage), []).append(seconds)
    compute_s = {
        name: tuple(median(times.get((phase, stage), [0.0])) for stage in range(N_HOSTS))
        for phase, name in enumerate(("forward", "backward", "apply"))
    }
    return Measured(
        tuple(process["host"] for process in seen),
        max(process["worst"] for process in seen),
        step_s,
        compute_s,
        tuple(tuple(transfer) for transfer in seen[0]["transfers"]),
        crossed_bytes,
    )
