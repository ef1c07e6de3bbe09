"""MPI, where a launcher of it started the processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import crossmesh

from frontends.courier import Lane
from frontends.errors import DeviceError


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
