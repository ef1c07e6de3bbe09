"""How long a plan takes, by the model of Zhuang et al., MLSys 2023, sections 3.1 and 3.2.

Hosts talk through one network interface each, which sends and receives at the same time, and any
two hosts are connected equally well. A slice of which `t` seconds pass through an interface reaches
`A` hosts, passed on in `K` chunks from each to the next, after

    T = (K + A - 1) / K · t

The paper writes `(K + A) / K · t`, which counts the first chunk of the first host twice; ours gives
`t` for one host, as sending without chunks does. Tasks start in the order of the plan, each as soon
as its ports are free.
"""

from collections.abc import Mapping

from crossmesh._native import core
from crossmesh.errors import PlanError
from crossmesh.plan import TransferPlan
from crossmesh.route import Port, Route, checked_rates
from crossmesh.task import UnitTask


def estimate_time_s(
    plan: TransferPlan,
    rates: Mapping[int, float],
    *,
    intra_host_bytes_per_s: float,
    latency_s: float,
    n_chunks: int = 100,
) -> float:
    """Time until the last slice has arrived.

    Args:
        plan: What is sent.
        rates: Bytes per second of each host's network interface, each way.
        intra_host_bytes_per_s: Of each device inside its host, each way; `math.inf` leaves it out,
            as the paper does. Copies that a device keeps are free.
        latency_s: Of each passage from one host to another.
        n_chunks: `K` above; about 100 in section 3.1.

    Returns:
        Seconds; 0.0 if nothing moves.

    Raises:
        PlanError: a host has no finite positive rate, `intra_host_bytes_per_s` is not positive,
            `latency_s` is negative or not finite, or `n_chunks` is below 1.
    """
    rate_of = checked_rates({host for _, host in plan.hosts}, rates)
    if not intra_host_bytes_per_s > 0:
        raise PlanError(
            f"a rate is a positive number of bytes per second; got {intra_host_bytes_per_s=}"
        )
    if not 0 <= latency_s < float("inf"):
        raise PlanError(f"a latency is finite and not negative; got {latency_s=}")
    if n_chunks < 1:
        raise PlanError(f"a slice has at least one chunk; got {n_chunks=}")

    host_of = plan.host_of
    durations_s = []
    ports: list[tuple[Port, ...]] = []
    for task in plan.tasks:
        route = Route.from_path(task.path, host_of)
        if route.hosts[1:]:
            n_hosts = len(route.hosts) - 1
            passing_s = route.duration_s(task.n_bytes, rate_of)
            durations_s.append(
                (n_chunks + n_hosts - 1) / n_chunks * passing_s + n_hosts * latency_s
            )
            ports.append(route.ports)
        else:
            durations_s.append(task.n_bytes / intra_host_bytes_per_s)
            ports.append(_device_ports(task))
    number: dict[Port, int] = {}
    numbered = [[number.setdefault(port, len(number)) for port in group] for group in ports]
    return core.finish_s(durations_s, numbered, range(len(plan.tasks)))


def lower_bound_s(plan: TransferPlan, rates: Mapping[int, float]) -> float:
    """Time that no choice of senders and no order of this plan's slices can beat.

    Each host must receive every slice that it needs and no device of it holds, and every slice that
    crosses the network must leave some host that holds it.

    Args:
        plan: What is sent.
        rates: Bytes per second of each host's network interface, each way.

    Raises:
        PlanError: a host has no finite positive rate.
    """
    host_of = plan.host_of
    rate_of = checked_rates(set(host_of.values()), rates)
    needed: dict[int, dict[object, int]] = {host: {} for host in rate_of}
    leaving: dict[object, int] = {}
    holders: set[int] = set()
    for task in plan.tasks:
        if len({host_of[device] for device in task.path}) > 1:
            slice_ = task.pieces, task.part
            leaving[slice_] = task.n_bytes
            holders.update(host_of[device] for term in task.terms for device in term)
            for host in {host_of[device] for device in task.receivers}:
                needed[host][slice_] = task.n_bytes
    if not leaving:
        return 0.0
    arriving_s = [sum(slices.values()) / rate_of[host] for host, slices in needed.items()]
    leaving_s = sum(leaving.values()) / sum(rate_of[host] for host in sorted(holders))
    return max(*arriving_s, leaving_s)


def _device_ports(task: UnitTask) -> tuple[Port, ...]:
    """Of a slice that stays on its host: those of its devices."""
    return ((task.sender, "device out"), *((device, "device in") for device in task.receivers))
