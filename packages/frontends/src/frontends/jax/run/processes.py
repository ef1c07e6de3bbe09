"""Several processes as one run: detected by the launcher's environment variables, joined by JAX."""

from __future__ import annotations

import itertools
import os
from typing import Any

import jax

from frontends.base.host_sizes import host_sizes
from frontends.base.startup import roll_call
from frontends.errors import DeviceError
from frontends.jax.base import _compat
from frontends.jax.run.watch import is_anothers, watch
from frontends.run.mpi import import_mpi, meet

_SIZES = {
    "PMI_SIZE": None,  # MPICH and its descendants, or srun --mpi=pmi2
    "OMPI_COMM_WORLD_SIZE": "ompi",  # Open MPI
    "SLURM_STEP_NUM_TASKS": "slurm",  # srun; Open MPI uses it to reach other hosts, so it is last
}
"""Environment variables that hold the number of processes, and JAX's name for the method by which
it detects them; None if it has no such method."""

_OPEN_MPI_4 = "OMPI_MCA_orte_hnp_uri"
"""The variable by which JAX detects Open MPI; version 5 does not set it."""

_LOCAL_SIZES = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE")
"""Variables for the number of processes on this host: of MPICH, Open MPI."""

_numbers = itertools.count()
"""Numbers of the things that processes wait for. They are equal in all processes, as all of them
wait for the same things in the same order."""


def n_started() -> int:
    """How many processes a launcher started; 1 without one."""
    return max(int(os.environ.get(name, "1")) for name in _SIZES)


def processes_of_hosts() -> tuple[int, ...]:
    """The number of processes of each host, in the order of their ranks; all have joined.

    One host has all if the launcher does not say how many are on each.
    """
    n = n_started()
    here = next((os.environ[name] for name in _LOCAL_SIZES if name in os.environ), str(n))
    return host_sizes([int(size) for size in gather(here, "say how many are on its host")])


def join(n_devices: int, start_s: float) -> int:
    """Join the other processes of the run, if there are any, before JAX starts.

    Args:
        n_devices: The number of devices of all processes together.
        start_s: How long to wait for processes that do not start.

    Returns:
        The number of devices of this process. All processes have equally many, or the first ones
        have one more.

    Raises:
        DeviceError: A process does not start, or there are more processes than devices.
    """
    if _compat.coordination_client() is None:
        launcher = next((name for name in _SIZES if int(os.environ.get(name, "1")) > 1), None)
        if launcher is None:
            return n_devices
        method = _SIZES[launcher]
        with roll_call("frontends.jax.init", start_s):
            if method is None or (method == "ompi" and _OPEN_MPI_4 not in os.environ):
                _join_by_mpi(int(os.environ[launcher]), start_s)
            else:
                jax.distributed.initialize(
                    cluster_detection_method=method, initialization_timeout=round(start_s)
                )
        watch()
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    process, n_processes = _compat.process_of_distributed()
    if n_devices < n_processes:
        raise DeviceError(
            f"each process needs at least one device; got {n_devices} devices for {n_processes} "
            "processes: start fewer, or call frontends.jax.init with more"
        )
    return n_devices // n_processes + (process < n_devices % n_processes)


def _join_by_mpi(n_processes: int, start_s: float) -> None:
    """Meet at a free port of process 0, which it sends to the others by MPI.

    JAX's own method with mpi4py picks a port at random, which may be in use.
    """
    address, process, n_processes = meet(n_processes)
    jax.distributed.initialize(address, n_processes, process, initialization_timeout=round(start_s))


def gather(word: str, doing: str) -> list[str]:
    """The words of all processes, in the order of processes; waits until each has given its own.

    Args:
        word: This process's word.
        doing: What a process does before it gives its word, for the message of those that wait:
            "compile its programs".

    Raises:
        DeviceError: A process is alive, but gives no word for an hour.
    """
    client = _compat.coordination_client()
    if client is None:
        return [word]
    me, n_processes = _compat.process_of_distributed()
    folder = f"meshwright/gathered/{next(_numbers)}/"
    client.key_value_set(f"{folder}{me}", word)
    return [watch().wait_for(p, f"{folder}{p}", doing) for p in range(n_processes)]


def exchange(what: Any, doing: str) -> list[Any]:
    """What all processes have, in the order of processes; waits until each has given it.

    A process that comes later than a step may ends all processes.

    Args:
        what: What this process has.
        doing: What a process does next, such as "call the step".

    Raises:
        DeviceError: Another process does something else.
    """
    with watch().begin(is_anothers):
        everything = import_mpi().COMM_WORLD.allgather((doing, what))
    for other, (said, _) in enumerate(everything):
        if said != doing:
            raise DeviceError(
                f"all processes do the same; process {jax.process_index()} is about to {doing}, "
                f"and process {other} to {said}: let all of them do it"
            )
    return [theirs for _, theirs in everything]


def process() -> int | None:
    """The number of this process; None if it is alone."""
    return None if jax.process_count() == 1 else jax.process_index()


def share_plan(text: str | None) -> str:
    """The text of process 0, which passes it; the others pass None and wait for it."""
    key = f"meshwright/plan/{next(_numbers)}"
    if text is None:
        return watch().wait_for(0, key, "make the plan")
    _compat.coordination_client().key_value_set(key, text)
    return text
