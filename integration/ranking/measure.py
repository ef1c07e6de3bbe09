"""Runs tasks on a lab of emulated hosts, with one process each, over gloo or MPI."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from netlab import Lab

from ranking.program import Task, dump

BACKENDS = ("gloo", "mpi")
RANK = Path(__file__).with_name("rank.py")
RSH = RANK.parent.parent / "netlab" / "netlab-rsh"
PORT = 29500

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # because there are more processes than cores
    "OPENBLAS_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "eth0",
    "UCX_NET_DEVICES": "eth0",
    "UCX_TLS": "tcp,self",
}


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of one task on a lab."""

    name: str
    seconds: tuple[float, ...]
    """The time of each round, from the common start until the last process was done."""
    sent_bytes: float
    """The bytes that a host sent, including headers: the mean over hosts of the median round."""

    @property
    def median_s(self) -> float:
        """The seconds of the median round."""
        return median(self.seconds)


def lab(n_hosts: int, rate: str, name: str = "ranking") -> Lab:
    """A lab whose shapers let messages of any size pass at their rate.

    By default a shaper passes 96 KiB at once. This saves the machine work, but makes smaller
    messages free. Here it passes a little more than one frame at once, which is the least it needs.
    """
    return Lab(hosts=n_hosts, rate=rate, name=name, mtu=3000, burst=3100)


def measure(hosts: Lab, backend: str, tasks: Sequence[Task], repeats: int) -> list[Measured]:
    """Run the tasks with one process on each host, and measure their times.

    Raises:
        RuntimeError: A process failed; its output is in the message.
    """
    with tempfile.TemporaryDirectory() as folder:
        job = {"tasks": dump(tasks), "repeats": repeats}
        Path(folder, "job.json").write_text(json.dumps(job))
        _run(hosts, backend, folder)
        seen = [json.loads(Path(folder, f"{h}.json").read_text()) for h in range(hosts.hosts)]
    return [_together(task.name, [rows[i] for rows in seen]) for i, task in enumerate(tasks)]


def _together(name: str, rows: list[dict[str, Any]]) -> Measured:
    # A collective begins when the last process begins: some may leave the barrier a tick earlier.
    starts = [max(times) for times in zip(*(row["start"] for row in rows), strict=True)]
    ends = [max(times) for times in zip(*(row["end"] for row in rows), strict=True)]
    seconds = tuple(end - start for start, end in zip(starts, ends, strict=True))
    sent = [median(row["sent_bytes"]) for row in rows]
    return Measured(name, seconds, sum(sent) / len(sent))


def _run(hosts: Lab, backend: str, folder: str) -> None:
    n, options = hosts.hosts, {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    environment = {**os.environ, **ENVIRONMENT}
    program = [sys.executable, RANK, backend, folder]
    if backend == "mpi":
        names = ",".join(f"{hosts.hostname(h)}:1" for h in range(n))
        mpiexec = Path(sys.executable).with_name("mpiexec")
        launch = [mpiexec, "-launcher", "ssh", "-launcher-exec", RSH, "-hosts", names, "-n", n]
        processes = [hosts.popen(0, [*launch, *program], env=environment, **options)]
    else:
        meet = f"{hosts.ip(0)}:{PORT}"
        processes = [
            hosts.popen(h, [*program, h, n, meet], env=environment, **options) for h in range(n)
        ]
    said = [process.communicate(timeout=600)[0] for process in processes]
    if any(process.returncode for process in processes):
        codes = [process.returncode for process in processes]
        raise RuntimeError(f"processes of {backend} ended with {codes}: {''.join(said)[-3000:]}")
