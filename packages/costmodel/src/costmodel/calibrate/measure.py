"""Decides what is measured and for how long, and runs the measurement.

An operation is repeated without a pause in batches of at least a few milliseconds, so that the
clock and the barrier before the batch do not matter. The time of a batch is that of its slowest
process. All operations are measured in turn, several times over. So a temporary disturbance of the
machine affects some batches of many operations, which medians leave out, and not all batches of a
few operations. Before its batches, each operation is run for warm-up.
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
"""Default bytes of collectives: 256 B to 16 MiB."""
MATMUL_SIZES = (4, 32, 64, 96, 128, 192, 256, 384, 512, 768)
"""Rows and columns of square products: from one that takes only its launch to some 0.9 GFLOP."""
STREAM_BYTES = 2**27
"""128 MiB: more than the last-level cache of the machines that we know."""
_BATCH_S = 0.004  # a thousand times the cost of a clock and a barrier in a process
_PASSES = 5  # over everything: a disturbance during two of them does not change the median
_MOST = 5  # batches of an operation in a pass; more would add nothing


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a calibration."""

    done: int
    """Number of steps that are done."""
    total: int
    """Number of all steps."""
    doing: str
    """The current step."""


@dataclass(frozen=True, slots=True)
class Points:
    """All measured points."""

    collectives: tuple[CollectivePoint, ...]
    matmuls: tuple[MatmulPoint, ...]
    streams: tuple[StreamPoint, ...]


def group_sizes(n_processes: int) -> tuple[int, ...]:
    """Sizes of the measured groups: powers of two, and all processes; none for a single process.

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
    """Measures everything that a backend can do.

    Args:
        backend: A member of the group; all members call this function.
        watch: Is notified of every step.
        sizes: Bytes of collectives; rounded up so that each member has an equal, whole part.
        time_s: Seconds for everything, in equal shares; at least five batches of each operation are
            measured.
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
    """Seconds of one operation, for each batch so far; the same in all processes."""
    in_batch: int = 2
    """Operations in a batch; at least 2, for a message there and back. It never shrinks, because a
    disturbed pass would find too few."""

    def measure(self, backend: Backend, share_s: float) -> None:
        """Measures one pass, of about `share_s` seconds."""
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
    """`n_bytes` rounded up to a multiple of `n` float32 numbers."""
    part = 4 * n
    return -(-n_bytes // part) * part
