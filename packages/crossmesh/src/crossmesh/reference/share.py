"""The compiled core's fractional load balance in plain Python; tests compare the two.

`cpp/include/crossmesh/share.hpp` says what the functions do and why the result is exact.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple


class Flow(NamedTuple):
    """Hosts that hold each term of a sum (a plain copy is one term), the host of each receiver."""

    n_bytes: int
    itemsize: int
    senders: Sequence[Sequence[int]]
    receivers: Sequence[int]
    chained: bool


class Demand(NamedTuple):
    """Bytes that `hosts` send together, each of them at most `most`."""

    n_bytes: int
    hosts: Sequence[int]
    most: int


def level(
    demands: Sequence[Demand], base: Sequence[int], rates: Sequence[float]
) -> tuple[float, list[list[int]]]:
    """The least time in which all demands can be sent, and what each host sends of each."""
    needed = sum(demand.n_bytes for demand in demands)
    everything = needed + sum(base)
    total_rate = 0.0
    time_s = 0.0
    for load, rate in zip(base, rates, strict=True):
        total_rate += rate
        time_s = max(time_s, load / rate)
    time_s = max(time_s, everything / total_rate)
    while True:
        room = []
        for load, rate in zip(base, rates, strict=True):
            sendable = math.ceil(min(time_s * rate, float(everything)))
            room.append(max(0, min(sendable, everything) - load))
        total, shares, short, busy = _max_flow(demands, room)
        if total == needed:
            return time_s, shares
        stuck = 0
        for i, demand in enumerate(demands):
            if short[i]:
                stuck += demand.n_bytes - demand.most * sum(not busy[h] for h in demand.hosts)
        busy_rate = 0.0
        for host, rate in enumerate(rates):
            if busy[host]:
                stuck += base[host]
                busy_rate += rate
        time_s = max(stuck / busy_rate, time_s * (1 + 2.0**-40))


def _max_flow(
    demands: Sequence[Demand], room: Sequence[int]
) -> tuple[int, list[list[int]], list[bool], list[bool]]:
    """Dinic's algorithm: the flow, its shares, the demands and hosts on the source's side."""
    n_demands = len(demands)
    source, sink = n_demands + len(room), n_demands + len(room) + 1
    to: list[int] = []
    left: list[int] = []
    arcs: list[list[int]] = [[] for _ in range(sink + 1)]

    def add(a: int, b: int, capacity: int) -> None:
        arcs[a].append(len(to))
        arcs[b].append(len(to) + 1)
        to.extend((b, a))
        left.extend((capacity, 0))

    for i, demand in enumerate(demands):
        for host in demand.hosts:
            add(i, n_demands + host, demand.most)
    for i, demand in enumerate(demands):
        add(source, i, demand.n_bytes)
    for host, capacity in enumerate(room):
        add(n_demands + host, sink, capacity)

    def push(node: int, limit: int) -> int:
        if node == sink:
            return limit
        sent = 0
        while tried[node] < len(arcs[node]):
            arc = arcs[node][tried[node]]
            if left[arc] > 0 and depth[to[arc]] == depth[node] + 1:
                passed = push(to[arc], min(limit - sent, left[arc]))
                left[arc] -= passed
                left[arc ^ 1] += passed
                sent += passed
                if sent == limit:
                    break
            tried[node] += 1
        return sent

    total = 0
    while True:
        depth = [-1] * (sink + 1)
        depth[source] = 0
        queue = [source]
        for node in queue:
            for arc in arcs[node]:
                if left[arc] > 0 and depth[to[arc]] < 0:
                    depth[to[arc]] = depth[node] + 1
                    queue.append(to[arc])
        if depth[sink] < 0:
            break
        tried = [0] * (sink + 1)
        total += push(source, sum(demand.n_bytes for demand in demands))

    shares = []
    arc = 1
    for demand in demands:
        shares.append([left[arc + 2 * k] for k in range(len(demand.hosts))])
        arc += 2 * len(demand.hosts)
    reached = [at >= 0 for at in depth]
    return total, shares, reached[:n_demands], reached[n_demands:source]


def lower_bound(flows: Sequence[Flow], rates: Sequence[float]) -> float:
    """Seconds that no choice of senders, forwarders, cuts and orders can beat."""
    received = [0] * len(rates)
    leaving: dict[tuple[int, ...], int] = {}
    arriving: dict[tuple[int, ...], int] = {}
    for flow in map(Flow._make, flows):
        terms = [sorted(set(term)) for term in flow.senders]
        complete = set(terms[0]).intersection(*terms[1:])
        lacking = sorted(set(flow.receivers) - complete)
        if not lacking:
            continue
        for host in lacking:
            received[host] += flow.n_bytes
        sending: set[int] = set()
        holding: set[int] = set()
        n_leaving = n_terms = 0
        for term in terms:
            if holding.isdisjoint(term):
                holding.update(term)
                n_terms += 1
            # Terms of disjoint hosts leave them apart, unless every receiver has its own.
            if sending.isdisjoint(term) and not set(lacking) <= set(term):
                sending.update(term)
                leaving[tuple(term)] = leaving.get(tuple(term), 0) + flow.n_bytes
                n_leaving += 1
        one_adds = not holding.isdisjoint(lacking)
        n_messages = n_terms - one_adds + len(lacking) - 1
        everyone = tuple(sorted({*lacking, *(host for term in terms for host in term)}))
        for known, least in ((leaving, n_leaving), (arriving, len(lacking))):
            if n_messages > least:
                known[everyone] = known.get(everyone, 0) + (n_messages - least) * flow.n_bytes
    bound_s = 0.0
    for n_bytes, rate in zip(received, rates, strict=True):
        bound_s = max(bound_s, n_bytes / rate)
    for known, base in ((leaving, [0] * len(rates)), (arriving, received)):
        demands = [Demand(n_bytes, hosts, n_bytes) for hosts, n_bytes in sorted(known.items())]
        bound_s = max(bound_s, level(demands, base, rates)[0] if demands else 0.0)
    return bound_s
