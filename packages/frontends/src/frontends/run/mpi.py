"""MPI, for processes that an MPI launcher started."""

from __future__ import annotations

import signal
import socket
from collections.abc import Mapping
from typing import Any

import crossmesh

from frontends.errors import DeviceError
from frontends.run.lanes import Lane


def import_mpi() -> Any:
    """The module `mpi4py.MPI`; `DeviceError` if it or its library is missing."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise DeviceError(
            "processes exchange values by MPI; mpi4py or its library is missing: "
            "pip install mpi4py mpich, and start the processes with mpiexec"
        ) from error
    return MPI


def meet(n_processes: int) -> tuple[str, int, int]:
    """Agree on a free port of process 0 at which processes can connect without MPI.

    Args:
        n_processes: The number of processes that the launcher started.

    Returns:
        Host and port as `host:port`, the number of this process, and the number of processes.

    Raises:
        DeviceError: mpi4py uses another MPI library than the launcher.
    """
    world = import_mpi().COMM_WORLD
    if world.size != n_processes:
        raise DeviceError(
            f"a launcher starts processes of its own MPI; it started {n_processes}, and mpi4py's "
            f"library finds {world.size}: take that library's mpiexec, or install mpi4py against "
            "the launcher's with pip install --no-binary mpi4py mpi4py"
        )
    if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
        # MPICH's mpiexec sends it when another process dies; it would end this one silently.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    with socket.socket() as free:
        free.bind(("", 0))
        address = f"{socket.gethostname()}:{free.getsockname()[1]}"
    return world.bcast(address), world.rank, world.size


def connect(number: int, lane: Lane, process_of: Mapping[int, int]) -> crossmesh.Transport:
    """Connect the processes of a lane; all of them have to call this.

    Args:
        number: The number of the lane.
        lane: A lane of this process.
        process_of: By device, its process.
    """
    import crossmesh.mpi  # the extra `mpi`

    world = import_mpi().COMM_WORLD
    comm = world.Create_group(world.group.Incl(lane.processes), number)
    rank = {process: i for i, process in enumerate(lane.processes)}
    rank_of = {device: rank[p] for device, p in process_of.items() if p in rank}
    return crossmesh.mpi.MpiTransport(comm, rank_of)
