"""Several processes as one run: found in the environment that a launcher left, joined by gloo."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch.distributed as dist

from frontends.answer.plan import Plan
from frontends.base.startup import roll_call
from frontends.errors import PlanError
from frontends.run.mpi import meet
from frontends.search.plan_options import PlanOptions
from frontends.search.plan_step import Planned, TracedT
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
    sizes = [here]
    if n > 1 and dist.is_initialized():  # they have to agree, also where hosts differ
        sizes = [0] * n
        dist.all_gather_object(sizes, here)
    return n // here if set(sizes) == {here} and n % here == 0 else 1


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


def plan_together(
    plan_for: Callable[[PlanOptions], Planned[TracedT]],
    options: PlanOptions,
) -> Planned[TracedT]:
    """Let process 0 search a plan for all: searches that are stopped by time differ.

    Args:
        plan_for: Plans with some options; with the option `plan`, takes that plan.
        options: Of the user.

    Raises:
        PlanError: Process 0 found none.
        FrontendsError: Of another kind, as `plan_for` raises them.
    """
    if n_processes() == 1 or options.plan is not None:
        return plan_for(options)
    found: list[str] = [""]
    if dist.get_rank() > 0:
        dist.broadcast_object_list(found, 0)
        if not found[0].startswith("{"):
            raise PlanError(f"process 0 makes the plan of all processes, and failed: {found[0]}")
        return plan_for(options.with_plan(Plan.from_json(found[0])))
    try:
        planned = plan_for(options)
    except BaseException as error:  # the others wait for what became of it
        dist.broadcast_object_list([f"{type(error).__name__}: {error}"], 0)
        raise
    dist.broadcast_object_list([planned.plan.to_json()], 0)
    return planned
