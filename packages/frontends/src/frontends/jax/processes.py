"""Several processes as one run: found in the environment that a launcher left, joined by JAX."""

from __future__ import annotations

import os
import signal

import jax

from frontends.errors import DeviceError
from frontends.jax import _compat

_SIZES = {
    "PMI_SIZE": "mpi4py",  # MPICH and what descends from it
    "OMPI_COMM_WORLD_SIZE": None,  # Open MPI; JAX knows it
    "SLURM_STEP_NUM_TASKS": None,  # srun; JAX knows it
}
"""Variables that hold the number of processes, and JAX's name for how to find the others."""


def are_several() -> bool:
    """Whether a launcher started this process with others."""
    return any(int(os.environ.get(name, "1")) > 1 for name in _SIZES)


def join(n_devices: int) -> int:
    """Join the other processes, if there are some, before JAX starts.

    Args:
        n_devices: Of all processes together.

    Returns:
        How many of them are this process's: as equal as can be, the first have more.

    Raises:
        DeviceError: More processes than devices.
    """
    if _compat.coordination_client() is None:
        if not are_several():
            return n_devices
        method = next(how for name, how in _SIZES.items() if int(os.environ.get(name, "1")) > 1)
        jax.distributed.initialize(cluster_detection_method=method)
        if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
            # MPICH's mpiexec sends it when another process dies, which would end this one unheard.
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    process, n_processes = _compat.process_of_distributed()
    if n_devices < n_processes:
        raise DeviceError(
            f"each process has a device at least; got {n_devices} devices for {n_processes} "
            "processes: start fewer, or call frontends.jax.init with more"
        )
    return n_devices // n_processes + (process < n_devices % n_processes)
