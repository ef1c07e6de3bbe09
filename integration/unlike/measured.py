"""Times a step on emulated hosts of unlike devices, and on the fast devices alone."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from costmodel import Cluster, Device, Host, Level, Link

from unlike.job import batches, loss_of, model_of

TORCHRUN = Path(sys.executable).with_name("torchrun")
TIMEOUT_S = 900
STEPS = 4


@dataclass(frozen=True, slots=True)
class Case:
    """Emulated hosts: by host the number of its devices, and their share of a core each."""

    name: str
    hosts: tuple[tuple[int, float], ...]
    alone: int
    """The number of the first hosts that run alone, as the equal part."""

    examples: int


CASES = (
    Case("4 devices beside 2", ((4, 0.2), (2, 0.2)), 1, 4800),
    Case("4 devices beside 2 of half the speed", ((4, 0.2), (2, 0.1)), 1, 4800),
)


@dataclass(frozen=True, slots=True)
class Timed:
    """What was seen of a case."""

    name: str
    predicted_s: float
    measured_s: float
    alone_predicted_s: float
    alone_measured_s: float
    worst: float
    """The largest relative difference of a loss from that of one device."""

    stages: list[Any]
    """By stage, its layers and its devices."""


def cluster_of(hosts: tuple[tuple[int, float], ...], core: Device, link: Link) -> Cluster:
    """The emulated hosts, from what a whole core does."""
    made = []
    for n, share in hosts:
        rates = tuple((dtype, rate * share) for dtype, rate in core.flops_per_s)
        device = Device(
            f"{share:g} of a core",
            rates,
            core.memory_bytes,
            core.memory_bandwidth_bytes_per_s * share,
            core.launch_s / share,
        )
        made.append(Host(device, n, link))
    levels = (Level("network", len(made), link),) if len(made) > 1 else ()
    return Cluster("emulated", tuple(made), levels)


def core() -> Device:
    """What one core of this machine does, by the time of a product of the step's sizes."""
    torch.set_num_threads(1)
    a, b = torch.randn(120, 384), torch.randn(384, 1536)
    seconds = []
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(20):
            torch.mm(a, b)
        seconds.append((time.perf_counter() - start) / 20)
    rate = 2 * 120 * 384 * 1536 / statistics.median(seconds)
    return Device("core", (("float32", rate), ("float64", rate / 2)), 2**32, 1e10, 2e-5)


def measure(case: Case) -> Timed:
    """Run a case.

    Raises:
        RuntimeError: A process failed; the message has the output.
        subprocess.TimeoutExpired: It did not end in time.
    """
    shares = [share for n, share in case.hosts for _ in range(n)]
    link = Link(5e-3, 3e8)  # a process waits for its next share of the core to answer
    device = core()
    data = batches(STEPS, case.examples)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        asked = {
            "shares": shares,
            "steps": STEPS,
            "examples": case.examples,
            "all": cluster_of(case.hosts, device, link).to_json(),
            "alone": cluster_of(case.hosts[: case.alone], device, link).to_json(),
        }
        (folder / "job.json").write_text(json.dumps(asked))
        command = [TORCHRUN, "--nproc-per-node", len(shares), Path(__file__).with_name("job.py")]
        ended = subprocess.run(
            [*map(str, command), str(folder)], capture_output=True, text=True, timeout=TIMEOUT_S
        )
        if ended.returncode:
            raise RuntimeError(f"{case.name}: {ended.stderr[-4000:]}")
        found = json.loads((folder / "found.json").read_text())
    expected = _losses(data)
    pairs = [
        (x, y) for plan in found.values() for x, y in zip(plan["losses"], expected, strict=True)
    ]
    return Timed(
        case.name,
        found["all"]["predicted_s"],
        statistics.median(found["all"]["seconds"]),
        found["alone"]["predicted_s"],
        statistics.median(found["alone"]["seconds"]),
        max(abs(x - y) / abs(y) for x, y in pairs),
        found["all"]["stages"],
    )


def _losses(data: list[list[torch.Tensor]]) -> list[float]:
    """The losses of one device."""
    model, optimizer = model_of()
    losses = []
    for batch in data:
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses
