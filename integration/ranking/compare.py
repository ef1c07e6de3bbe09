"""Calibrates a lab on some tasks, and predicts other tasks by the calibration.

Collectives are measured in groups of several sizes, with sizes in bytes that differ by a factor of
the square root of two. Every second size is used to calibrate, and the others are predicted. The
strategies are not used to calibrate at all.

There are four models, from the fewest parameters to the most:

- `nominal`: the rate of the lab and no latency, by `costmodel.fastest`; nothing is calibrated;
- `one link`: one alpha and beta for all collectives (AutoDDL, section 3.2);
- `per collective`: an alpha and beta for each collective, in groups of all sizes;
- `curves`: a separate line for each collective and size of group, or a few lines by bytes.

All models except `nominal` know from `EXECUTED` which collective a library executes instead of
another one; its algorithm follows from the fit. All four use the same times of matrix products: the
launch, peak and efficiency curve of the same profile.
"""

from __future__ import annotations

import datetime
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from itertools import combinations
from statistics import median
from typing import Any, TypeAlias

from costmodel import Cluster, Device, Link, fastest
from costmodel.measured.fits import LinkFit
from costmodel.measured.machine import Machine
from costmodel.measured.points import CollectivePoint, MatmulPoint, StreamPoint
from costmodel.operators import matmul, work_time
from costmodel.profile import Profile
from costmodel.time.algorithm_table import rounds
from netlab import Lab, parse_rate
from shardspec import Mesh

from ranking import strategies
from ranking.measure import Measured, measure
from ranking.program import KINDS, Collective, Copy, Kind, Matmul, Task
from ranking.strategies import Layer

Price: TypeAlias = Callable[[Task, Collective], float]
"""Returns the seconds of a collective of a task."""

MODELS = ("nominal", "one link", "per collective", "curves")

EXECUTED: Mapping[str, Mapping[Kind, Kind]] = {
    # [measured] by the bytes that hosts send, torch 2.13.0, 2026-11-20: for a reduce-scatter, gloo
    # executes an all-reduce and keeps a part of the result.
    "gloo": {"reduce_scatter": "all_reduce"},
    "mpi": {},
}
"""For each backend, the collectives for which it executes another one."""

CUBES = (8, 16, 32, 48, 64, 96, 128, 192, 256, 384)
# FLOP of one timed program: it takes some milliseconds, so the end of a barrier is a small part.
CUBE_FLOPS = 2e8
COPY_BYTES = 1 << 25
BATCH_BYTES = 1 << 17
"""Collectives of fewer bytes are timed several in a row, up to `MOST` of them."""
MOST = 8


@dataclass(frozen=True, slots=True)
class Experiment:
    """The tasks that are measured."""

    n_hosts: int
    rate: str
    meshes: tuple[tuple[int, ...], ...]
    """Collectives are measured in the groups along the first axis of each mesh."""
    sizes: tuple[int, ...]
    """Sizes in bytes; the first, third, ... are used to calibrate."""
    layer: Layer | None
    """The layer whose strategies are ordered; None for no strategies."""
    repeats: int


FULL = Experiment(
    n_hosts=4,
    rate="100mbit",
    meshes=((4,), (2, 2)),
    sizes=tuple(round(2 ** (half / 2) / 64) * 64 for half in range(24, 43)),
    layer=Layer(sequences=8, positions=64, d_model=256, heads=8),
    repeats=5,
)


def compare(lab: Lab, backend: str, experiment: Experiment) -> tuple[dict[str, Any], Profile]:
    """Measure, calibrate and predict; returns the results for JSON, and the calibration."""
    collectives = collective_tasks(experiment)
    cubes = [_cube_task(size, experiment.meshes[0]) for size in CUBES]
    copy = Task("copy", experiment.meshes[0], (Copy(COPY_BYTES),))
    steps = strategies.tasks(experiment.layer) if experiment.layer else []
    everything = [*collectives, *cubes, copy, *steps]
    seen = dict(zip(everything, measure(lab, backend, everything, experiment.repeats), strict=True))
    calibrated = set(experiment.sizes[::2])
    profile = Profile.fitted(
        backend="torch" if backend == "gloo" else backend,
        date=str(datetime.date.today()),
        machine=Machine.this(),
        versions=versions(),
        n_processes=experiment.n_hosts,
        collectives=[
            _point(task, seen[task], backend)
            for task in collectives
            if _only(task).n_bytes in calibrated
        ],
        matmuls=[
            MatmulPoint(size, size, size, "float32", _each(seen[task], len(task.program)))
            for size, task in zip(CUBES, cubes, strict=True)
        ],
        streams=[StreamPoint(COPY_BYTES, seen[copy].seconds)],
    )
    held_out = [task for task in collectives if _only(task).n_bytes not in calibrated]
    prices = models(profile, backend, experiment)

    def rows_of(tasks: Sequence[Task]) -> list[dict[str, Any]]:
        return [
            {
                "name": task.name,
                "mesh": task.mesh,
                "seconds": seen[task].seconds,
                "measured_s": seen[task].median_s,
                "predicted": {
                    model: predict(task, price, profile.device) for model, price in prices.items()
                },
                "sent_bytes": seen[task].sent_bytes,
                "predicted_bytes": sent_bytes(task, backend),
            }
            for task in tasks
        ]

    rows, ranked = rows_of(held_out), rows_of(steps)
    result = {
        "backend": backend,
        "experiment": asdict(experiment),
        "collectives": rows,
        "strategies": ranked,
        "summary": {model: _summary(model, rows, ranked) for model in MODELS},
    }
    return result, profile


def collective_tasks(experiment: Experiment) -> list[Task]:
    """A task for every collective, mesh and size, in groups along the first axis of the mesh."""
    return [
        Task(
            f"{kind} of {mesh[0]}, {n_bytes} bytes",
            mesh,
            (Collective(kind, n_bytes, (0,)),) * max(1, min(MOST, BATCH_BYTES // n_bytes)),
        )
        for mesh in experiment.meshes
        for kind in KINDS
        for n_bytes in experiment.sizes
    ]


def sent_bytes(task: Task, backend: str) -> float:
    """The bytes of tensors that each process sends, by an algorithm that sends the fewest."""
    sent = 0.0
    for operation in task.program:
        if isinstance(operation, Collective):
            kind = executed(operation.kind, backend)
            fewest = rounds(kind, _FEWEST[kind], task.members(operation))
            sent += operation.n_bytes * fewest.exchanged
    return sent


_FEWEST = {
    "all_gather": "ring",
    "all_reduce": "ring",
    "all_to_all": "pairwise",
    "reduce_scatter": "ring",
}


def executed(kind: Kind, backend: str) -> Kind:
    """The collective that a backend executes for this one."""
    return EXECUTED[backend].get(kind, kind)


def models(profile: Profile, backend: str, experiment: Experiment) -> dict[str, Price]:
    """The price of a collective in each of `MODELS`, by name."""
    rate = Link(0.0, parse_rate(experiment.rate) / 8)
    cluster = Cluster.uniform("lab", experiment.n_hosts, 1, profile.device, rate, rate)

    def nominal(task: Task, operation: Collective) -> float:
        group = cluster.links(Mesh(task.mesh, tuple("xyz"[: len(task.mesh)]))).group(operation.axes)
        return fastest(operation.kind, operation.n_bytes, group).seconds

    def curves(task: Task, operation: Collective) -> float:
        kind = executed(operation.kind, backend)
        return float(profile.time(kind, task.members(operation), operation.n_bytes))

    def by(fits: Sequence[LinkFit]) -> Price:
        def price(task: Task, operation: Collective) -> float:
            kind = executed(operation.kind, backend)
            fit = next(fit for fit in fits if kind in fit.kinds)
            algorithm = fit.algorithms[fit.kinds.index(kind)]
            link = Link(fit.latency_s.value, 1 / fit.s_per_byte.value)
            return float(
                rounds(kind, algorithm, task.members(operation)).seconds(operation.n_bytes, link)
            )

        return price

    fits = profile.fits
    return dict(zip(MODELS, (nominal, by([fits.link]), by(fits.collectives), curves), strict=True))


def predict(task: Task, price: Price, device: Device) -> dict[str, float]:
    """The seconds of a task's collectives, and of its matrix products."""
    communication_s = compute_s = 0.0
    for operation in task.program:
        if isinstance(operation, Collective):
            communication_s += price(task, operation)
        elif isinstance(operation, Matmul):
            work = matmul(operation.m, operation.n, operation.k, "float32", operation.batch)
            compute_s += float(work_time(work, device))
    return {"communication_s": communication_s, "compute_s": compute_s}


def kendall_tau(first: Sequence[float], second: Sequence[float]) -> float:
    """Kendall's tau: pairs in the same order minus pairs in the opposite one, over all pairs.

    1 means the same order.

    Reference:
        Kendall, "A New Measure of Rank Correlation", Biometrika 30, 1938. Equal values count 0.
    """
    pairs = list(combinations(zip(first, second, strict=True), 2))
    signs = [(a - c) * (b - d) for (a, b), (c, d) in pairs]
    return (sum(s > 0 for s in signs) - sum(s < 0 for s in signs)) / len(pairs)


def versions() -> tuple[tuple[str, str], ...]:
    """The versions of Python and of the libraries that communicate or multiply."""
    installed = {dist.name: dist.version for dist in metadata.distributions()}
    names = [name for name in ("numpy", "torch", "mpich", "mpi4py") if name in installed]
    return (("python", platform.python_version()), *((name, installed[name]) for name in names))


def _cube_task(size: int, mesh: tuple[int, ...]) -> Task:
    times = max(1, min(1000, round(CUBE_FLOPS / (2 * size**3))))
    return Task(f"product of {size}", mesh, (Matmul(size, size, size),) * times)


def _only(task: Task) -> Collective:
    (operation,) = set(task.program)
    assert isinstance(operation, Collective)
    return operation


def _point(task: Task, seen: Measured, backend: str) -> CollectivePoint:
    operation = _only(task)
    kind = executed(operation.kind, backend)
    seconds = _each(seen, len(task.program))
    return CollectivePoint(kind, task.members(operation), operation.n_bytes, seconds)


def _each(seen: Measured, times: int) -> tuple[float, ...]:
    return tuple(seconds / times for seconds in seen.seconds)


def predicted_s(row: Mapping[str, Any], model: str) -> float:
    """The predicted seconds of a row: communication and compute."""
    return float(sum(row["predicted"][model].values()))


def _summary(
    model: str, collectives: Sequence[Mapping[str, Any]], ranked: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    def errors(rows: Sequence[Mapping[str, Any]]) -> list[float]:
        return [abs(predicted_s(row, model) / row["measured_s"] - 1) for row in rows]

    def of(kind: str) -> list[Mapping[str, Any]]:
        return [row for row in collectives if row["name"].startswith(f"{kind} of")]

    summary: dict[str, Any] = {
        "median_error": median(errors(collectives)),
        "median_error_by_kind": {kind: median(errors(of(kind))) for kind in KINDS},
    }
    if ranked:
        measured = [row["measured_s"] for row in ranked]
        summary["strategies_median_error"] = median(errors(ranked))
        summary["strategies_largest_error"] = max(errors(ranked))
        summary["tau"] = kendall_tau(measured, [predicted_s(row, model) for row in ranked])
    return summary
