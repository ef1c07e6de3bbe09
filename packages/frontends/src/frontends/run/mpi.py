"""MPI, where a launcher of it started the processes."""

from __future__ import annotations

import signal
import socket
from collections.abc import Mapping
from typing import Any

import crossmesh

from frontends.errors import DeviceError
from frontends.run.lanes import Lane


def import_mpi() -> Any:
    """The module `mpi4py.MPI`; `DeviceError` where it or its library is not there."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise DeviceError(
            "processes exchange values by MPI; mpi4py or its library is not there: "
            "pip install mpi4py mpich, and start the processes with mpiexec"
        ) from error
    return MPI


def meet(n_processes: int) -> tuple[str, int, int]:
    """Agree on a port where processes can meet otherwise: a free one of process 0.

    Args:
        n_processes: How many the launcher has started.

    Returns:
        Host and port as `host:port`, this process's number, and how many there are.

    Raises:
        DeviceError: mpi4py's library is not that of the launcher.
    """
    world = import_mpi().COMM_WORLD
    if world.size != n_processes:
        raise DeviceError(
            f"a launcher starts processes of its own MPI; it started {n_processes}, and mpi4py's "
            f"library finds {world.size}: take that library's mpiexec, or install mpi4py against "
            "the launcher's with pip install --no-binary mpi4py mpi4py"
        )
    if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
        # MPICH's mpiexec sends it when another process dies, which would end this one unheard.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    with socket.socket() as found:
        found.bind(("", 0))
        here = f"{socket.gethostname()}:{found.getsockname()[1]}"
    return world.bcast(here), world.rank, world.size


def connect(number: int, lane: Lane, process_of: Mapping[int, int]) -> crossmesh.Transport:
    """Connect the processes of a lane, all of which call it.

    Args:
        number: Of the lane.
        lane: One of this process.
        process_of: The process of each device.
    """
    import crossmesh.mpi  # the extra `mpi`

    world = import_mpi().COMM_WORLD
    comm = world.Create_group(world.group.Incl(lane.processes), number)
    rank = {process: i for i, process in enumerate(lane.processes)}
    rank_of = {device: rank[p] for device, p in process_of.items() if p in rank}
    return crossmesh.mpi.MpiTransport(comm, rank_of)
