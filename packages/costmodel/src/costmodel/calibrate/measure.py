"""What is measured, for how long, and the loop that does it.

An operation is repeated without a pause in batches of at least a few milliseconds, so that neither
the clock nor the barrier before the batch counts. The time of a batch is that of its slowest
process. Everything is measured in turn, several times over: what disturbs the machine for a while
is in some batches of many operations then, which medians leave out, and not in all of a few.
Before its batches each operation is done for warm-up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from costmodel.calibrate.backend import Backend, Repeat
from costmodel.calibrate.waiting import StepDeadline
from costmodel.measured.points import CollectivePoint, MatmulPoint, StreamPoint

SIZES = tuple(2**power for power in range(8, 25))
"""Bytes of collectives if not set: 256 B to 16 MiB."""
MATMUL_SIZES = (4, 32, 64, 96, 128, 192, 256, 384, 512, 768)
"""Rows and columns of square products: from one that costs its launch to some 0.9 GFLOP."""
STREAM_BYTES = 2**27
"""More than the last cache of the machines that we know: 128 MiB."""
_BATCH_S = 0.004  # a thousand times what a clock and a barrier in a process may cost
_PASSES = 5  # of all: a disturbance during two of them leaves the median alone
_MOST = 5  # batches of an operation in a pass; more tell nothing new


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a calibration is."""

    done: int
    total: int
    doing: str


@dataclass(frozen=True, slots=True)
class Points:
    """All that was measured."""

    collectives: tuple[CollectivePoint, ...]
    matmuls: tuple[MatmulPoint, ...]
    streams: tuple[StreamPoint, ...]


def group_sizes(n_processes: int) -> tuple[int, ...]:
    """Powers of two, and all; none for a single process.

    Examples:
        >>> group_sizes(6)
        (2, 4, 6)
    """
    powers = (2**power for power in range(1, n_processes.bit_length()))
    return tuple(sorted({n for n in (*powers, n_processes) if 2 <= n <= n_processes}))


def measure(
    backend: Backend,
    watch: StepDeadline,
    sizes: Sequence[int],
    time_s: float,
    report: Callable[[Progress], None],
) -> Points:
    """Measure everything that a backend can.

    Args:
        backend: A member of the group; all of them call this.
        watch: Told of every step.
        sizes: Bytes of collectives; rounded up so that each member has an equal, whole part.
        time_s: Seconds for all, in equal parts; at least five batches of each are measured.
        report: Called before each step, and at the end.
    """
    collectives = [
        (kind, n, _whole(n_bytes, n))
        for kind in backend.kinds
        for n in group_sizes(backend.n_processes)
        if kind != "point_to_point" or n == 2
        for n_bytes in sorted(set(sizes))
    ]
    products = [(size, dtype) for dtype in backend.dtypes for size in MATMUL_SIZES]
    tasks = [
        *(
            _Task(
                f"{kind} of {n_bytes} bytes in a group of {n}",
                partial(backend.collective, kind, n, n_bytes),
            )
            for kind, n, n_bytes in collectives
        ),
        *(
            _Task(
                f"matmul of {size} x {size}, {dtype}",
                partial(backend.matmul, size, size, size, dtype),
            )
            for size, dtype in products
        ),
        _Task(f"stream of {STREAM_BYTES} bytes", partial(backend.stream, STREAM_BYTES)),
    ]
    total = len(tasks) * _PASSES
    for done in range(total):
        task = tasks[done % len(tasks)]
        report(Progress(done, total, task.doing))
        watch.begin(task.doing)
        task.measure(backend, time_s / total)
    report(Progress(total, total, "done"))

    times = iter(tuple(task.seconds) for task in tasks)
    return Points(
        tuple(CollectivePoint(*of, next(times)) for of in collectives),
        tuple(MatmulPoint(size, size, size, dtype, next(times)) for size, dtype in products),
        (StreamPoint(STREAM_BYTES, next(times)),),
    )


@dataclass(slots=True)
class _Task:
    doing: str
    prepare: Callable[[], Repeat]
    seconds: list[float] = field(default_factory=list)
    """Of one operation, of each batch so far; the same in all processes."""
    in_batch: int = 2
    """Operations in a batch, there and back at least. It only grows: a disturbed pass finds few."""

    def measure(self, backend: Backend, share_s: float) -> None:
        """One pass, of about `share_s` seconds."""
        repeat = self.prepare()
        backend.slowest([0.0])
        repeat(self.in_batch)
        while True:
            batch_s = backend.slowest([_seconds(repeat, self.in_batch)])[0]
            if batch_s >= _BATCH_S:
                break
            self.in_batch *= 2
        n_batches = min(max(int(share_s / batch_s), 1), _MOST)
        slowest = backend.slowest([_seconds(repeat, self.in_batch) for _ in range(n_batches)])
        self.seconds += [float(f"{seconds / self.in_batch:.4g}") for seconds in slowest]


def _seconds(repeat: Repeat, n: int) -> float:
    start = time.perf_counter()
    repeat(n)
    return time.perf_counter() - start


def _whole(n_bytes: int, n: int) -> int:
    """The next number of bytes that cuts into n parts of whole float32."""
    part = 4 * n
    return -(-n_bytes // part) * part
