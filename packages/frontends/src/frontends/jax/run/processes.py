"""Several processes as one run: found in the environment that a launcher left, joined by JAX."""

from __future__ import annotations

import itertools
import os

import jax

from frontends.base.startup import roll_call
from frontends.errors import DeviceError
from frontends.jax.base import _compat
from frontends.jax.run.watch import watch
from frontends.run.mpi import meet

_SIZES = {
    "PMI_SIZE": None,  # MPICH and what descends from it, or srun --mpi=pmi2
    "OMPI_COMM_WORLD_SIZE": "ompi",  # Open MPI
    "SLURM_STEP_NUM_TASKS": "slurm",  # srun; Open MPI uses it to reach other hosts, so it is last
}
"""Variables that hold the number of processes, and JAX's name for how it finds them."""

_OPEN_MPI_4 = "OMPI_MCA_orte_hnp_uri"
"""What JAX needs of Open MPI; version 5 does not set it."""

_numbers = itertools.count()
"""Of what processes wait for: equal in all, as all wait for the same in the same order."""


def join(n_devices: int, start_s: float) -> int:
    """Join the other processes, if there are some, before JAX starts.

    Args:
        n_devices: Of all processes together.
        start_s: How long to wait for processes that do not come.

    Returns:
        How many of them are this process's: as equal as can be, the first have more.

    Raises:
        DeviceError: A process does not come, or there are more processes than devices.
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
            f"each process has a device at least; got {n_devices} devices for {n_processes} "
            "processes: start fewer, or call frontends.jax.init with more"
        )
    return n_devices // n_processes + (process < n_devices % n_processes)


def _join_by_mpi(n_processes: int, start_s: float) -> None:
    """Meet at a free port of process 0, which it tells the others by MPI.

    JAX's own way by mpi4py takes a port by chance, which may be in use.
    """
    where, process, n_processes = meet(n_processes)
    jax.distributed.initialize(where, n_processes, process, initialization_timeout=round(start_s))


def gather(word: str, doing: str) -> list[str]:
    """A word of every process, in their order; waits until each has given its own.

    Args:
        word: Of this process.
        doing: What a process does before, for those who wait for it: "compile its programs".

    Raises:
        DeviceError: A process is alive, but does not come in an hour.
    """
    client = _compat.coordination_client()
    if client is None:
        return [word]
    me, n_processes = _compat.process_of_distributed()
    folder = f"meshwright/gathered/{next(_numbers)}/"
    client.key_value_set(f"{folder}{me}", word)
    return [watch().wait_for(p, f"{folder}{p}", doing) for p in range(n_processes)]


def process() -> int | None:
    """The number of this process; None if it is alone."""
    return None if jax.process_count() == 1 else jax.process_index()


def share_plan(text: str | None) -> str:
    """Process 0's text, which it gives and the others wait for."""
    key = f"meshwright/plan/{next(_numbers)}"
    if text is None:
        return watch().wait_for(0, key, "make the plan")
    _compat.coordination_client().key_value_set(key, text)
    return text
