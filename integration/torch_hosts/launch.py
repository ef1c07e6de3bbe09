"""Starts torchrun on every host of a lab, and gathers the output."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from netlab import Lab

N_HOSTS, PER_HOST = 2, 2
RATE = "1gbit"
PORT = 29500
TIMEOUT_S = 400
TORCHRUN = Path(sys.executable).with_name("torchrun")


@dataclass(frozen=True, slots=True)
class Ran:
    """The run of a program on all hosts."""

    command: str
    """The command on each host."""

    printed: str
    """The output of the first process of host 0."""

    crossed_bytes: int
    """The bytes between the hosts in both directions, including headers."""


def lab(name: str = "lab") -> Lab:
    """A lab of two hosts."""
    return Lab(hosts=N_HOSTS, rate=RATE, name=name)


def launch(hosts: Lab, program: Path) -> Ran:
    """Run a program in two processes on each host.

    Raises:
        RuntimeError: torchrun failed on a host; the output of all hosts is in the message.
        subprocess.TimeoutExpired: It did not end in time.
    """
    options = ["--nnodes", N_HOSTS, "--nproc-per-node", PER_HOST, "--rdzv-backend", "c10d"]
    options += ["--rdzv-endpoint", f"{hosts.hostname(0)}:{PORT}", "--local-ranks-filter", 0]
    before = _crossed(hosts)
    with ExitStack() as stack:
        started = [
            hosts.popen(
                host,
                [TORCHRUN, *options, program],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for host in range(N_HOSTS)
        ]
        for process in started:
            stack.enter_context(process)  # waits for it
            stack.callback(process.kill)
        said = [process.communicate(timeout=TIMEOUT_S) for process in started]
    if any(process.returncode for process in started):
        codes = [process.returncode for process in started]
        raise RuntimeError(f"torchrun ended with {codes} on the hosts: {said}"[:6000])
    command = shlex.join(map(str, ["torchrun", *options, program.name]))
    return Ran(command, said[0][0], _crossed(hosts) - before)


def _crossed(hosts: Lab) -> int:
    return sum(counted["tx"] for counted in hosts.stats().values())
