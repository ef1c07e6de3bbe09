"""Find out which processes of this host have started, before they can communicate.

`MPI_Init` waits until all processes of a job call it, and cannot say which one is missing. So each
process first binds a name in Linux's abstract socket namespace, which the processes of its host can
see; the kernel releases the name when the process ends.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path

from frontends.errors import DeviceError

_LOCAL = {  # this process's number; how many there are, and how many on its host
    "PMI_RANK": ("PMI_SIZE", "MPI_LOCALNRANKS"),  # MPICH
    "OMPI_COMM_WORLD_RANK": ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
}
"""Environment variables by which launchers say which processes are on a host."""

_NAP_S = 0.02


@contextmanager
def roll_call(call: str, start_s: float) -> Iterator[None]:
    """A context that begins when all processes of this host have entered it.

    Each process stays visible to the others until its context ends. If the launcher does not say
    how many processes are on a host, the context begins at once.

    Args:
        call: Name of the function that all of them call, for the message.
        start_s: How long to wait.

    Raises:
        DeviceError: Some are missing; it names them if all processes of the job are on this host.
    """
    number = next((name for name in _LOCAL if name in os.environ), None)
    if number is None or sys.platform != "linux":
        yield
        return
    names = (number, *_LOCAL[number])
    process, n_processes, n_here = (int(os.environ.get(name, "1")) for name in names)
    name = f"\0meshwright-{_launcher(number)}-"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(f"{name}{process}")
        until_s = time.monotonic() + start_s
        seen: set[int] = set()
        # All have to be there at the same time: a process that gave up does not come back, and
        # `MPI_Init` would wait for it without end.
        while len(present := {p for p in range(n_processes) if _is_bound(f"{name}{p}")}) < n_here:
            seen |= present
            if time.monotonic() > until_s:
                # Those that have given up by now count as present, unless no other is missing.
                is_gone = len(seen) == n_here
                present = present if is_gone else seen
                reason = "has left again" if is_gone else "has not"
                reason += f", and process {process} has waited {start_s:g} s for it"
                raise DeviceError(_missing(call, n_processes, n_here, present, reason))
            time.sleep(_NAP_S)
        yield


def _launcher(number: str) -> int:
    """The process that started those of this host, directly or through scripts.

    It is the nearest ancestor without the variable `number` in its environment.
    """
    pid = os.getppid()
    try:
        while f"\0{number}=".encode() in b"\0" + Path(f"/proc/{pid}/environ").read_bytes():
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:  # the process belongs to another user
        pass
    return pid


def _is_bound(name: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        return probe.connect_ex(name) == 0


def _missing(call: str, n_processes: int, n_here: int, present: Set[int], reason: str) -> str:
    names = ", ".join(map(str, sorted(present)))
    if n_here == n_processes:
        absent = ", ".join(str(p) for p in range(n_processes) if p not in present)
        who = f"process {absent} of {n_processes}"
    else:
        who = f"{n_here - len(present)} of the {n_here} on {socket.gethostname()}"
    return (
        f"all processes of a run call {call}; {who} {reason} (there are {names}): see what it does "
        "before, or raise start_s"
    )
