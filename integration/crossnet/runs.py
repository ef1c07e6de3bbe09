"""The transfers of each figure, as plans."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from crossmesh import Links, Order, TaskStrategy, TransferPlan, lower_bound_s, plan, simulate
from crossmesh.report.cases import cases, rows_as_hosts
from shardspec import Layout, Mesh, Spec

Shape = tuple[int, int, int]

RATE = "200mbit"
LINKS = Links(200e6 / 8, device_bytes_per_s=math.inf, latency_s=0.0)
"""`RATE` as the model has it; what stays inside a host costs it nothing (section 3)."""

SHAPE: Shape = (512, 256, 64)
"""Of the tensor, 32 MiB: the paper's (1024, 1024, 512), its dims over 2, 4 and 8."""

DTYPE = "float32"


@dataclass(frozen=True, slots=True)
class Method:
    """How a transfer is planned."""

    strategy: TaskStrategy
    order: Order
    split: bool
    rounds: int = 1
    """How often it is measured. Baselines miss their mark by more than rounds differ."""


SEND_RECV = Method("send_recv", "load_balance", split=False)
ALPA = Method("global_allgather", "load_balance", split=False)
"""What section 5.1.1 gathers over all receivers, and 5.1.2 balances greedily."""

OURS = Method("broadcast", "ensemble", split=True, rounds=3)
SIGNAL = Method("signal", "ensemble", split=True, rounds=3)
"""One byte for each task: what a transfer costs beside its bytes."""

STRATEGIES = {
    "send/recv": SEND_RECV,
    "local all-gather": Method("local_allgather", "load_balance", split=False),
    "Alpa": ALPA,
    "broadcast": OURS,
    "signal": SIGNAL,
}
BASELINES = {"send/recv": SEND_RECV, "Alpa": ALPA, "broadcast": OURS, "signal": SIGNAL}
ORDERS = {
    "naive": Method("broadcast", "naive", split=False),
    "load balance only": Method("broadcast", "load_balance", split=False),
    "all at once": Method("broadcast", "all_at_once", split=True),
    "ensemble": OURS,
}


@dataclass(frozen=True, slots=True)
class Run:
    """One bar of a figure."""

    case: str
    """What moves: the place along the figure's x axis."""
    method: str
    """How: the bar's color."""
    rounds: int
    plan: TransferPlan

    @property
    def t_bytes(self) -> int:
        """Of the tensor."""
        (tensor,) = self.plan.tensors
        return math.prod(tensor.shape) * tensor.item_bytes

    @property
    def t_s(self) -> float:
        """In which a host sends the whole tensor."""
        return self.t_bytes / LINKS.rates([0])[0]

    @property
    def predicted_s(self) -> float:
        """Time by the model of section 3."""
        return simulate(self.plan).time_s

    @property
    def bound_s(self) -> float:
        """What no plan can beat."""
        return lower_bound_s(self.plan)

    @property
    def planned_bytes(self) -> dict[int, int]:
        """That each host sends and receives, together."""
        received = dict(self.plan.received_bytes)
        return {host: sent + received[host] for host, sent in self.plan.sent_bytes}


def figure5(shape: Shape = SHAPE) -> Iterator[Run]:
    """One device sends to 1-4 devices of one host, and to two devices of 1-4 hosts each."""
    receivers = [*((1, n) for n in (1, 2, 3, 4)), *((n, 2) for n in (2, 3, 4))]  # 1 x 2 is in both
    src = Layout(shape, Mesh((1, 1), ("x", "y"), (0,)), Spec.parse("RRR"))
    for n_hosts, n_devices in receivers:
        devices = tuple(range(1, 1 + n_hosts * n_devices))
        dst = Layout(shape, Mesh((n_hosts, n_devices), ("x", "y"), devices), Spec.parse("RRR"))
        name = f"{n_hosts} host{'s' * (n_hosts > 1)} x {n_devices}"
        yield from _runs(name, src, dst, rows_as_hosts(src.mesh, dst.mesh), STRATEGIES)


def figure6(shape: Shape = SHAPE) -> Iterator[Run]:
    """The nine cases of Table 2."""
    return _nine_cases(shape, BASELINES)


def figure8(shape: Shape = SHAPE) -> Iterator[Run]:
    """The nine cases, by how senders and the order are found."""
    return _nine_cases(shape, ORDERS)


FIGURES: Mapping[str, Callable[[Shape], Iterable[Run]]] = {
    "figure5": figure5,
    "figure6": figure6,
    "figure8": figure8,
}


def _nine_cases(shape: Shape, methods: Mapping[str, Method]) -> Iterator[Run]:
    for case in cases(shape):
        yield from _runs(f"case {case.number}", case.src, case.dst, case.hosts, methods)


def _runs(
    case: str,
    src: Layout,
    dst: Layout,
    hosts: Mapping[int, int],
    methods: Mapping[str, Method],
) -> Iterator[Run]:
    for name, method in methods.items():
        how = plan(
            src,
            dst,
            DTYPE,
            hosts,
            LINKS,
            strategy=method.strategy,
            order=method.order,
            split=method.split,
        )
        yield Run(case, name, method.rounds, how)
