"""Runs a calibration: starts the ranks, or acts as one of them, which measures, fits and writes."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from costmodel.calibrate import launch
from costmodel.calibrate.backend import Name, join, require
from costmodel.calibrate.measure import Progress, measure
from costmodel.calibrate.waiting import StepDeadline
from costmodel.errors import CalibrationError
from costmodel.measured.machine import Machine
from costmodel.profile import Profile

_START_S = 120.0  # to import a framework and to fit, on a busy machine


@dataclass(frozen=True, slots=True)
class CalibrationJob:
    """What to measure, for how long, and where to write the profile."""

    backend: Name
    n_processes: int
    sizes: tuple[int, ...]
    """Bytes of collectives."""
    time_s: float
    """Seconds for all measurements."""
    deadline_s: float
    """Seconds that one step may wait for other ranks."""
    out: Path
    """The file for the profile."""


def calibrate(
    job: CalibrationJob, command: Sequence[str], report: Callable[[Progress], None]
) -> None:
    """Measures in new processes, or as one of the ranks that a launcher started.

    Args:
        job: What to do.
        command: Arguments with which Python runs this job again, for the new processes.
        report: Called by the first rank.

    Raises:
        CalibrationError: A rank failed, hung or cannot start, or the folder of the file cannot be
            written to.
        MissingExtraError: The framework or scipy is not installed.
        OSError: The profile cannot be written.
    """
    limit_s = 3 * job.time_s + job.deadline_s
    in_ranks(job, command, limit_s, lambda: _be_a_rank(job, report))


class RankJob(Protocol):
    """A job that ranks do together, one of which writes a file."""

    @property
    def backend(self) -> Name:
        """The library by which they communicate."""

    @property
    def n_processes(self) -> int:
        """The number of ranks, where no launcher has started some."""

    @property
    def out(self) -> Path:
        """The file."""


def in_ranks(
    job: RankJob, command: Sequence[str], limit_s: float, be_a_rank: Callable[[], None]
) -> None:
    """Do a job as one of the ranks that a launcher started, or in new ones.

    Args:
        job: The job.
        command: Arguments with which Python runs this job again, for the new processes.
        limit_s: Seconds for all that new ranks do, once they have started.
        be_a_rank: Does a rank's part.

    Raises:
        CalibrationError: As `calibrate`.
        MissingExtraError: The framework or scipy is not installed.
    """
    require(job.backend)
    if launch.is_inside(job.backend):
        launch.pin_threads(command)
        if launch.rank(job.backend) == 0:
            _check_folder(job.out)
        be_a_rank()
        return
    launch.check_launcher(job.backend)
    _check_folder(job.out)
    launch.run(job.backend, job.n_processes, command, limit_s + _START_S)


def _check_folder(out: Path) -> None:
    """Raise `CalibrationError` unless a file can be written, before anything is measured."""
    if out.is_dir() or not os.access(out.absolute().parent, os.W_OK):
        raise CalibrationError(
            f"a result needs a folder that can be written to; got {out}: name another file by --out"
        )


def _be_a_rank(job: CalibrationJob, report: Callable[[Progress], None]) -> None:
    watch = StepDeadline(launch.rank(job.backend), job.n_processes, job.deadline_s)
    backend = join(job.backend, job.deadline_s)
    watch.n_processes = 1 if job.backend == "jax" else backend.n_processes
    is_first = backend.rank == 0
    points = measure(
        backend, watch, job.sizes, job.time_s, report if is_first else lambda progress: None
    )
    watch.finish()
    backend.close()
    if is_first:
        profile = Profile.fitted(
            backend=job.backend,
            date=datetime.date.today().isoformat(),
            machine=Machine.this(),
            versions=(("python", platform.python_version()), *backend.versions),
            n_processes=backend.n_processes,
            collectives=points.collectives,
            matmuls=points.matmuls,
            streams=points.streams,
        )
        job.out.write_text(profile.to_json(), encoding="utf-8")
