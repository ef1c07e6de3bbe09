"""Several processes as one run: found in the environment that a launcher left, joined by gloo."""

from __future__ import annotations

import os

import torch.distributed as dist

from frontends.base.startup import roll_call
from frontends.run.mpi import meet
from frontends.torch.run.watch import GROUP_TIMEOUT, watch

_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
"""Variables in which launchers of MPI leave the number of processes."""

_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE")
"""And how many of them are on this host: torchrun, MPICH, Open MPI."""


def by_mpi() -> bool:
    """Whether a launcher of MPI started several processes; torchrun leaves another variable."""
    is_torchrun = "WORLD_SIZE" in os.environ
    return not is_torchrun and any(int(os.environ.get(name, "1")) > 1 for name in _SIZES)


def n_processes() -> int:
    """How many processes the launcher started; 1 where there is none."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    if by_mpi():
        return max(int(os.environ.get(name, "1")) for name in _SIZES)
    return int(os.environ.get("WORLD_SIZE", "1"))


def n_hosts() -> int:
    """On how many hosts they are; 1 if that is not known, or some have more of them than others."""
    n = n_processes()
    here = next((int(os.environ[name]) for name in _LOCAL_SIZES if name in os.environ), n)
    sizes = {str(here)}
    if n > 1 and dist.is_initialized():  # they have to agree, also where hosts differ
        sizes.update(gather(str(here)))
    return n // here if len(sizes) == 1 and n % here == 0 else 1


def join(start_s: float = 300.0) -> int | None:
    """Join the other processes, if there are some, and begin to watch them.

    Args:
        start_s: How long to wait for processes of this host that do not come.

    Returns:
        This process's rank; None if it is alone.

    Raises:
        DeviceError: A process does not come, or mpi4py's library is not that of the launcher.
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
        else:
            dist.init_process_group("gloo", timeout=GROUP_TIMEOUT)
    watch()
    return dist.get_rank()


def share_plan(text: str | None) -> str:
    """Process 0's text, which it gives and the others wait for."""
    found = [text]
    dist.broadcast_object_list(found, 0)
    return str(found[0])


def gather(word: str) -> list[str]:
    """A word of every process, in their order; all of them call it."""
    found = [""] * dist.get_world_size()
    dist.all_gather_object(found, word)
    return found
