"""Who has started, of the processes of one host: known before they can talk to each other.

`MPI_Init` waits until all processes of a job call it, and cannot say for whom. So before that each
process binds a name in Linux's abstract namespace of sockets, where those of its host see it; the
kernel takes the name back when the process ends.
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
"""Variables of launchers that say who is on a host."""

_NAP_S = 0.02


@contextmanager
def roll_call(call: str, start_s: float) -> Iterator[None]:
    """Begin when all processes of this host are there, and be seen by them until the end.

    Where the launcher does not say how many are on a host, it begins at once.

    Args:
        call: What all of them call, by name, for who looks for those that are missing.
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
        # All at once: who gave up does not come back, and `MPI_Init` would wait for it without end.
        while len(there := {p for p in range(n_processes) if _is_bound(f"{name}{p}")}) < n_here:
            seen |= there
            if time.monotonic() > until_s:
                # Those that gave up by now are not what was missing, unless nothing else is.
                is_gone = len(seen) == n_here
                there = there if is_gone else seen
                so = "has left again" if is_gone else "has not"
                so += f", and process {process} has waited {start_s:g} s for it"
                raise DeviceError(_missing(call, n_processes, n_here, there, so))
            time.sleep(_NAP_S)
        yield


def _launcher(number: str) -> int:
    """What started the processes of this host, through whatever scripts: it has no number."""
    pid = os.getppid()
    try:
        while f"\0{number}=".encode() in b"\0" + Path(f"/proc/{pid}/environ").read_bytes():
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:  # it runs as another user
        pass
    return pid


def _is_bound(name: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        return probe.connect_ex(name) == 0


def _missing(call: str, n_processes: int, n_here: int, there: Set[int], so: str) -> str:
    names = ", ".join(map(str, sorted(there)))
    if n_here == n_processes:
        absent = ", ".join(str(p) for p in range(n_processes) if p not in there)
        who = f"process {absent} of {n_processes}"
    else:
        who = f"{n_here - len(there)} of the {n_here} on {socket.gethostname()}"
    return (
        f"all processes of a run call {call}; {who} {so} (there are {names}): see what it does "
        "before, or raise start_s"
    )
