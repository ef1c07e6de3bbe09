"""Describes the machines of a launcher's processes as a cluster: `python -m costmodel probe`."""

from __future__ import annotations

import datetime
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from costmodel.base.json import decode, encode
from costmodel.calibrate import launch
from costmodel.calibrate.backend import Backend, Name, Repeat, join
from costmodel.calibrate.measure import MATMUL_SIZES, STREAM_BYTES, Progress
from costmodel.calibrate.run import in_ranks
from costmodel.calibrate.waiting import StepDeadline
from costmodel.measured.described import (
    DeviceFound,
    LinkFound,
    cluster_of,
    pairs_to_measure,
)
from costmodel.measured.machine import Machine
from costmodel.measured.points import MatmulPoint, StreamPoint

_SMALL_BYTES, _LARGE_BYTES = 256, 2**23
_LIMIT_S = 600.0
"""Seconds for all steps together; a guard for ranks that cannot watch their own deadline."""

_BATCHES = 5
_BATCH_S = 0.02
"""Long beside the times for which a busy machine, or a share of a core, stops a process
[chosen]."""


@dataclass(frozen=True, slots=True)
class ProbeJob:
    """Which processes to ask, and where to write the cluster."""

    backend: Name
    n_processes: int
    name: str
    """Name of the cluster."""

    deadline_s: float
    """Seconds that one step may wait for other ranks."""

    out: Path
    """The file for the cluster."""


def probe(job: ProbeJob, command: Sequence[str], report: Callable[[Progress], None]) -> None:
    """Measure in new processes, or as one of the ranks that a launcher started.

    Args:
        job: What to do.
        command: Arguments with which Python runs this job again, for the new processes.
        report: Called by the first rank.

    Raises:
        CalibrationError: A rank failed, hung or cannot start, or the folder of the file cannot be
            written to, or processes are not placed host by host.
        MissingExtraError: The framework or scipy is not installed.
        OSError: The cluster cannot be written.
    """
    in_ranks(job, command, _LIMIT_S + job.deadline_s, lambda: _be_a_rank(job, report))


def _be_a_rank(job: ProbeJob, report: Callable[[Progress], None]) -> None:
    watch = StepDeadline(launch.rank(job.backend), job.n_processes, job.deadline_s)
    backend = join(job.backend, job.deadline_s)
    watch.n_processes = backend.n_processes
    report = report if backend.rank == 0 else lambda progress: None
    machine = Machine.this()
    watch.begin("asking for hosts")
    hosts = backend.gather(machine.host)
    pairs = pairs_to_measure(hosts)
    total = len(backend.dtypes) * len(MATMUL_SIZES) + 1 + len(pairs)
    done = 0

    def next_step(doing: str) -> None:
        nonlocal done
        watch.begin(doing)
        report(Progress(done, total, doing))
        done += 1

    matmuls = []
    for dtype in backend.dtypes:
        for size in MATMUL_SIZES:
            next_step(f"matmul of {size} x {size}, {dtype}")
            seconds = _own_seconds(backend, backend.matmul(size, size, size, dtype))
            matmuls.append(MatmulPoint(size, size, size, dtype, seconds))
    next_step(f"stream of {STREAM_BYTES} bytes")
    stream = StreamPoint(STREAM_BYTES, _own_seconds(backend, backend.stream(STREAM_BYTES)))
    links = []
    for first, second in pairs:
        next_step(f"messages between ranks {first} and {second}")
        message = partial(backend.message, first, second)
        small_s, large_s = (_slowest_s(backend, message(n)) for n in (_SMALL_BYTES, _LARGE_BYTES))
        links.append(LinkFound(first, second, small_s, large_s, _LARGE_BYTES))
    watch.begin("gathering figures")
    mine = json.dumps(encode(DeviceFound, DeviceFound(machine, tuple(matmuls), stream)))
    found = backend.gather(mine)
    if backend.rank == 0:
        devices = [decode(DeviceFound, json.loads(text)) for text in found]
        source = (
            f"[measured] {datetime.date.today().isoformat()} by python -m costmodel probe with "
            f"{job.backend} in {backend.n_processes} processes"
        )
        cluster = cluster_of(job.name, source, devices, links)
        job.out.write_text(cluster.to_json() + "\n", encoding="utf-8")
    report(Progress(total, total, "done"))
    watch.finish()
    backend.close()


def _own_seconds(backend: Backend, repeat: Repeat) -> tuple[float, ...]:
    """Seconds of one operation in this process, for each batch, while all processes work.

    Each process repeats as often as it takes itself: the batch of a fast one, repeated as often as
    that of a slow one, would be short beside the clock, and over while the slow one works.
    """
    n = _in_batch(repeat, lambda seconds: seconds)
    seconds = []
    for _ in range(_BATCHES):
        backend.slowest([0.0])  # so that all begin together
        seconds.append(_seconds(repeat, n) / n)
    return tuple(seconds)


def _slowest_s(backend: Backend, repeat: Repeat) -> float:
    """The median over batches of the seconds of one operation, in the slowest process."""
    n = _in_batch(repeat, lambda seconds: backend.slowest([seconds])[0])
    batches = []
    for _ in range(_BATCHES):
        backend.slowest([0.0])
        batches += backend.slowest([_seconds(repeat, n)])
    return statistics.median(batches) / n


def _in_batch(repeat: Repeat, of_all: Callable[[float], float]) -> int:
    """How many operations take long beside the clock, by what `of_all` makes of seconds here.

    The least of some: a process that waits for its core once would be given a short batch.
    """
    n = 2
    repeat(n)
    while of_all(min(_seconds(repeat, n) for _ in range(3))) < _BATCH_S:
        n *= 2
    return n


def _seconds(repeat: Repeat, n: int) -> float:
    start = time.perf_counter()
    repeat(n)
    return time.perf_counter() - start
