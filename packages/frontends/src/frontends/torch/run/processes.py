"""Joins the processes of a run by gloo; the launcher's environment variables tell their number."""

from __future__ import annotations

import os

import torch.distributed as dist

from frontends.base.host_sizes import host_sizes
from frontends.base.startup import roll_call
from frontends.run.mpi import meet
from frontends.torch.run.meeting import is_agents_store, store_of_this_start
from frontends.torch.run.watch import GROUP_TIMEOUT, exchanging, watch

_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
"""Variables in which MPI launchers set the number of processes."""

_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE")
"""Variables for the number of processes on this host: of torchrun, MPICH, Open MPI."""


def by_mpi() -> bool:
    """Return whether an MPI launcher, and not torchrun, started several processes."""
    is_torchrun = "WORLD_SIZE" in os.environ
    return not is_torchrun and any(int(os.environ.get(name, "1")) > 1 for name in _SIZES)


def n_processes() -> int:
    """Return how many processes the launcher started; 1 without a launcher."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    if by_mpi():
        return max(int(os.environ.get(name, "1")) for name in _SIZES)
    return int(os.environ.get("WORLD_SIZE", "1"))


def processes_of_hosts() -> tuple[int, ...]:
    """Return the number of processes of each host, in the order of their ranks.

    One host has all if it is not known where they are, or if a host's ranks do not follow each
    other.
    """
    n = n_processes()
    here = next((int(os.environ[name]) for name in _LOCAL_SIZES if name in os.environ), n)
    sizes = [here] * n
    if n > 1 and dist.is_initialized():  # all processes need the same answer
        sizes = [int(size) for size in gather(str(here))]
    return host_sizes(sizes)


def join(start_s: float = 300.0) -> int | None:
    """Join the other processes, if there are any, and begin to watch them.

    Args:
        start_s: How long to wait for processes of this host that have not started.

    Returns:
        This process's rank; None if it is alone.

    Raises:
        DeviceError: A process has not started, or mpi4py uses another MPI than the launcher.
    """
    if n_processes() == 1:
        return None
    if not dist.is_initialized():
        if by_mpi():
            with roll_call("a step of frontends.torch", start_s):
                where, rank, size = meet(n_processes())
                dist.init_process_group(
                    "gloo",
                    init_method=f"tcp://{where}",
                    rank=rank,
                    world_size=size,
                    timeout=GROUP_TIMEOUT,
                )
        elif is_agents_store():
            store, rank, size = store_of_this_start(GROUP_TIMEOUT, start_s)
            dist.init_process_group(
                "gloo", store=store, rank=rank, world_size=size, timeout=GROUP_TIMEOUT
            )
        else:
            dist.init_process_group("gloo", timeout=GROUP_TIMEOUT)
    watch()
    return dist.get_rank()


def share_plan(text: str | None) -> str:
    """Return the text of process 0 in all processes; all of them have to call it."""
    texts = [text]
    dist.broadcast_object_list(texts, 0)
    return str(texts[0])


def gather(word: str) -> list[str]:
    """Return the texts of all processes by rank; all of them have to call it."""
    words = [""] * dist.get_world_size()
    with exchanging():
        dist.all_gather_object(words, word)
    return words
