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
"""`RATE` as links of the model, in which traffic inside a host takes no time (section 3)."""

SHAPE: Shape = (512, 256, 64)
"""Shape of the tensor, 32 MiB: the paper's (1024, 1024, 512) with its dims divided by 2, 4 and
8."""

DTYPE = "float32"


@dataclass(frozen=True, slots=True)
class Method:
    """How a transfer is planned."""

    strategy: TaskStrategy
    order: Order
    split: bool
    rounds: int = 1
    """How often it is measured. Baselines once: they differ from the bound by more than their
    rounds differ from each other."""


SEND_RECV = Method("send_recv", "load_balance", split=False)
ALPA = Method("global_allgather", "load_balance", split=False)
"""The baseline of section 5.1.1, with an all-gather over all receivers, and of section 5.1.2, with
greedily balanced senders."""

OURS = Method("broadcast", "ensemble", split=True, rounds=3)
SIGNAL = Method("signal", "ensemble", split=True, rounds=3)
"""Sends one byte for each task: the cost of a transfer in addition to its bytes."""

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
    """The transfer: the position on the x axis of the figure."""
    method: str
    """The method: the colour of the bar."""
    rounds: int
    plan: TransferPlan

    @property
    def t_bytes(self) -> int:
        """The bytes of the tensor, which a host sends in `t`."""
        (tensor,) = self.plan.tensors
        return math.prod(tensor.shape) * tensor.item_bytes

    @property
    def t_s(self) -> float:
        """The time `t`, in which a host sends the whole tensor."""
        return self.t_bytes / LINKS.rates([0])[0]

    @property
    def predicted_s(self) -> float:
        """The time by the model of section 3."""
        return simulate(self.plan).time_s

    @property
    def bound_s(self) -> float:
        """The lower bound, which no plan can beat."""
        return lower_bound_s(self.plan)

    @property
    def planned_bytes(self) -> dict[int, int]:
        """The bytes that each host sends and receives, together."""
        received = dict(self.plan.received_bytes)
        return {host: sent + received[host] for host, sent in self.plan.sent_bytes}


def figure5(shape: Shape = SHAPE) -> Iterator[Run]:
    """One device sends to 1-4 devices of one host, and to two devices on each of 1-4 hosts."""
    receivers = [*((1, n) for n in (1, 2, 3, 4)), *((n, 2) for n in (2, 3, 4))]  # 1 x 2 only once
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
    """The nine cases of Table 2, with different choices of senders and order."""
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
