"""Starts the processes of a calibration: the same command again, once for each rank.

A process recognises by environment variables that it is a rank. Under a torchrun or mpiexec of the
user it is one from the start, and joins at once. Ranks write errors into a folder, and the first
error is reported.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from costmodel.calibrate.backend import Name
from costmodel.calibrate.waiting import FOLDER
from costmodel.errors import CalibrationError

_POLL_S = 0.05
_KILLED_S = 10.0
_GRACE_S = 2.0  # for the remaining ranks to report what they waited for

# Limits every library with threads to one, because devices share the cores.
ONE_THREAD: Mapping[str, str] = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
_INSIDE: Mapping[Name, tuple[str, ...]] = {
    "torch": ("RANK",),
    "mpi": ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"),
    "jax": (),
}


def is_inside(backend: Name) -> bool:
    """Whether this process is already a rank, started by us or by the user's launcher."""
    return is_started_by_us() or any(name in os.environ for name in _INSIDE[backend])


def is_started_by_us() -> bool:
    """Whether this process is a rank that `run` started, and not a launcher of the user."""
    return FOLDER in os.environ


def check_launcher(backend: Name) -> None:
    """Refuse to start processes inside those that another backend's launcher started.

    Raises:
        CalibrationError: The launcher of another backend started this process. If it started
            several, each would start processes of its own.
    """
    for other in _INSIDE:
        if other != backend and any(name in os.environ for name in _INSIDE[other]):
            raise CalibrationError(
                f"backend {backend} cannot join processes that the launcher of backend {other} "
                f"started: take --backend {other}, or another launcher"
            )


def rank(backend: Name) -> int:
    """Rank of this process according to its launcher; 0 if the launcher does not say."""
    return next((int(os.environ[name]) for name in _INSIDE[backend] if name in os.environ), 0)


def pin_threads(command: Sequence[str]) -> None:
    """Restarts this process with one thread per library, unless it was started that way.

    A restart is needed because numpy reads these variables when it is imported.
    """
    if not ONE_THREAD.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, *command], {**os.environ, **ONE_THREAD})


def run(backend: Name, n_processes: int, command: Sequence[str], limit_s: float) -> None:
    """Runs `python command` in every rank and waits for all ranks.

    Args:
        backend: Decides how ranks are started and find each other.
        n_processes: Number of ranks, or of virtual devices of one process.
        command: Arguments of Python, such as `("-m", "costmodel", ...)`.
        limit_s: Seconds for everything; a guard for ranks that cannot watch their own deadline.

    Raises:
        CalibrationError: A rank failed, hung or did not end in time, or mpiexec was not found.
    """
    python = [sys.executable, *command]
    with tempfile.TemporaryDirectory(prefix="costmodel-") as folder:
        environment = {**os.environ, **ONE_THREAD, FOLDER: folder}
        ranks: list[dict[str, str]] = [{}]
        match backend:
            case "mpi":
                python = [_mpiexec(), "-n", str(n_processes), *python]
            case "jax":
                flags = (
                    f"--xla_force_host_platform_device_count={n_processes} "
                    "--xla_cpu_multi_thread_eigen=false"
                )
                ranks = [{"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1"}]
            case "torch":
                everywhere = {
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(_free_port()),
                    "WORLD_SIZE": str(n_processes),
                }
                ranks = [{**everywhere, "RANK": str(rank)} for rank in range(n_processes)]
        started = [_start(python, environment | of, Path(folder)) for of in ranks]
        try:
            _wait(started, Path(folder), time.monotonic() + limit_s, limit_s)
        finally:
            for process in started:
                _end(process)


def _start(command: Sequence[str], env: Mapping[str, str], folder: Path) -> subprocess.Popen[bytes]:
    """Starts a process in a new session, so that `_end` reaches its children, too."""
    with (folder / "output").open("ab") as output:  # errors go to files, progress to stderr
        return subprocess.Popen(command, env=env, stdout=output, start_new_session=True)


def _wait(
    started: Sequence[subprocess.Popen[bytes]], folder: Path, until: float, limit_s: float
) -> None:
    """Waits until all processes have ended successfully.

    Raises:
        CalibrationError: As `run`.
    """
    while None in (codes := [process.poll() for process in started]):
        if any(codes) or list(folder.glob("error-*")):
            until = min(until, time.monotonic() + _GRACE_S)
        if time.monotonic() > until:
            break
        time.sleep(_POLL_S)
    killed = [code for code in codes if code is not None and code < 0]
    notes = sorted(folder.glob("error-*"))
    if notes and not killed:  # if a rank was killed, the others only report that it is gone
        raise CalibrationError(notes[0].read_text())
    if failed := [code for code in (*killed, *codes) if code]:
        which = codes.index(failed[0])
        how = f"signal {signal.Signals(-failed[0]).name}" if killed else f"exit code {failed[0]}"
        raise CalibrationError(f"process {which} of the ranks ended with {how}, without a message")
    if running := [str(which) for which, code in enumerate(codes) if code is None]:
        raise CalibrationError(
            f"process {', '.join(running)} of the ranks was not done after {limit_s:g} s; "
            "give it more time with --deadline-s, or measure less"
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills a process that still runs, with its children, and reaps it."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        # A process that is stuck in the kernel ends only when the kernel lets it go.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_KILLED_S)


def _mpiexec() -> str:
    """The mpiexec beside this Python (from the wheel of MPICH), or else the one on the PATH."""
    beside = Path(sys.executable).with_name("mpiexec")
    mpiexec = str(beside) if beside.exists() else shutil.which("mpiexec")
    if mpiexec is None:
        raise CalibrationError(
            "backend mpi needs mpiexec beside this Python or on the PATH; found none; "
            "install it with: pip install 'meshwright-costmodel[mpi]'"
        )
    return mpiexec


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port
