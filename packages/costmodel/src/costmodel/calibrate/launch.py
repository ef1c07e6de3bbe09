"""Starts the processes of a calibration: the same command again, once for each rank.

A rank knows by the environment that it is one, as it would under a torchrun or mpiexec of the user:
there the command joins at once. Ranks leave errors in a folder, and the first is reported.
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
_GRACE_S = 2.0  # for the ranks that are left to say what they waited for

# Every library that has threads, told to use one: devices share the cores.
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
    """Whether this process is a rank already, of ours or of the user's launcher."""
    return FOLDER in os.environ or any(name in os.environ for name in _INSIDE[backend])


def rank(backend: Name) -> int:
    """Rank of this process, as its launcher tells; 0 if it does not."""
    return next((int(os.environ[name]) for name in _INSIDE[backend] if name in os.environ), 0)


def pin_threads(command: Sequence[str]) -> None:
    """Start this process again with one thread for each library, unless it was started so.

    Numpy reads these variables when it is imported, which has happened.
    """
    if not ONE_THREAD.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, *command], {**os.environ, **ONE_THREAD})


def run(backend: Name, n_processes: int, command: Sequence[str], limit_s: float) -> None:
    """Run `python command` in every rank and wait for all.

    Args:
        backend: Says how ranks find each other.
        n_processes: Ranks, or virtual devices of one process.
        command: Arguments of Python, such as `("-m", "costmodel", ...)`.
        limit_s: Seconds for all; a guard for ranks that cannot watch themselves.

    Raises:
        CalibrationError: A rank failed, hung or did not end in time, or mpiexec is not there.
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
    """A process with a session of its own, so that `_end` reaches its children, too."""
    with (folder / "output").open("ab") as output:  # errors come as notes, progress on stderr
        return subprocess.Popen(command, env=env, stdout=output, start_new_session=True)


def _wait(
    started: Sequence[subprocess.Popen[bytes]], folder: Path, until: float, limit_s: float
) -> None:
    """Until all have ended well.

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
    if notes and not killed:  # of a killed rank the others only say that it is gone
        raise CalibrationError(notes[0].read_text())
    if failed := [code for code in (*killed, *codes) if code]:
        which = codes.index(failed[0])
        how = f"signal {signal.Signals(-failed[0]).name}" if killed else f"exit code {failed[0]}"
        raise CalibrationError(f"process {which} of the ranks ended with {how}, without a word")
    if running := [str(which) for which, code in enumerate(codes) if code is None]:
        raise CalibrationError(
            f"process {', '.join(running)} of the ranks was not done after {limit_s:g} s; "
            "give it more time with --deadline-s, or less to do"
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that still runs, with its children, and reap it."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # whom the kernel holds, it lets go
            process.wait(_KILLED_S)


def _mpiexec() -> str:
    """That of this Python's environment, where the wheel of MPICH puts it, or the path's."""
    beside = Path(sys.executable).with_name("mpiexec")
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        raise CalibrationError(
            "backend mpi needs mpiexec beside this Python or on the PATH; found none; "
            "install it with: pip install 'meshwright-costmodel[mpi]'"
        )
    return found


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port
