"""The simulator of the compiled core in plain Python, to compare with in tests.

The functions have the same names as those of the core and, for valid arguments, the same results to
the last bit. `cpp/include/crossmesh/network.hpp` and `simulate.hpp` explain what they do and why.
Hosts are numbered 0, 1, ...
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

ROUNDING = 1e-12  # as in ports.cpp


class Network(NamedTuple):
    """The rates of the hosts, and the latency between them."""

    rates: Sequence[float]
    latency_s: float


class SimulatedSend(NamedTuple):
    """A send as the simulator sees it."""

    n_bytes: int
    path: Sequence[int]
    n_adders: int
    chained: bool
    strategy: str
    n_chunks: int
    tree: Sequence[int] = ()


HostHop = tuple[int, int, float, float, float]
"""(sending host, receiving host, start in seconds, duration in seconds, bytes)."""


class Passage(NamedTuple):
    """The hops of a job and the ports that it uses, timed from its own start, and its end."""

    hops: list[HostHop]
    uses: list[tuple[int, float, float]]
    """(port, start, stop) of each use of a port. Host h sends through port 2h and receives through
    port 2h + 1."""
    total_s: float
    relayed: bool = False


def _passage(hops: list[HostHop], total_s: float, network: Network) -> Passage:
    spans: dict[int, tuple[float, float, float]] = {}
    for here, there, at_s, _, n_bytes in hops:
        for host, port in ((here, 2 * here), (there, 2 * there + 1)):
            takes_s = n_bytes / network.rates[host]
            first_s, last_s, own_s = spans.get(port, (at_s, 0.0, 0.0))
            spans[port] = min(first_s, at_s), max(last_s, at_s + takes_s), own_s + takes_s
    uses = [
        (port, first_s, max(last_s, first_s + own_s))
        for port, (first_s, last_s, own_s) in sorted(spans.items())
    ]
    return Passage(hops, uses, total_s)


def passage(job: SimulatedSend, network: Network) -> Passage:
    """The passage of a job along the hosts of its path, by its strategy (section 3.1)."""
    if job.strategy == "broadcast" and job.n_chunks == 1:
        return _relayed(job, network)
    if job.strategy in ("broadcast", "signal"):
        return _pipelined(job, network)
    return _one_after_the_other(job, network)


def _next_adder(job: SimulatedSend, i: int) -> int:
    return job.path[i + 1 if job.chained else job.n_adders - 1]


def _pipelined(job: SimulatedSend, network: Network) -> Passage:
    n_bytes = float(min(job.n_bytes, 1) if job.strategy == "signal" else job.n_bytes)
    times: defaultdict[int, int] = defaultdict(int)
    duration_s = 0.0
    depth = 0
    passed: list[tuple[int, int, int]] = []
    for i, (here, after) in enumerate(pairwise(job.path)):
        adds = i + 1 < job.n_adders
        there = _next_adder(job, i) if adds else after
        if here == there:
            continue
        for host, port in ((here, 2 * here), (there, 2 * there + 1)):
            times[port] += 1
            duration_s = max(duration_s, times[port] * n_bytes / network.rates[host])
        together = adds and not job.chained
        passed.append((here, there, 0 if together else depth))
        depth = 1 if together else depth + 1
    step_s = duration_s / job.n_chunks + network.latency_s
    hops = [(here, there, before * step_s, duration_s, n_bytes) for here, there, before in passed]
    total_s = hops[-1][2] + duration_s + network.latency_s if hops else 0.0
    return _passage(hops, total_s, network)


def _legs(job: SimulatedSend) -> list[tuple[int, int]]:
    root = job.n_adders - 1
    after = job.tree or (
        *((i + 1 if job.chained else root) for i in range(root)),
        *range(root, len(job.path) - 1),
    )
    adding = [(i, after[i]) for i in range(root)]
    return adding + [(after[i - 1], i) for i in range(root + 1, len(job.path))]


def _relayed(job: SimulatedSend, network: Network) -> Passage:
    n_bytes = float(job.n_bytes)
    ready_s = [0.0] * len(job.path)
    free_s: defaultdict[int, float] = defaultdict(float)
    hops: list[HostHop] = []
    uses: list[tuple[int, float, float]] = []
    total_s = 0.0
    for a, b in _legs(job):
        here, there = job.path[a], job.path[b]
        arrival_s = ready_s[a]
        if here != there:
            at_s = max(ready_s[a], free_s[2 * here], free_s[2 * there + 1])
            for host, port in ((here, 2 * here), (there, 2 * there + 1)):
                free_s[port] = at_s + n_bytes / network.rates[host]
                uses.append((port, at_s, free_s[port]))
            duration_s = n_bytes / min(network.rates[here], network.rates[there])
            hops.append((here, there, at_s, duration_s, n_bytes))
            arrival_s = at_s + duration_s + network.latency_s
            total_s = max(total_s, arrival_s)
        ready_s[b] = max(ready_s[b], arrival_s)
    uses.sort(key=lambda use: use[:2])
    return Passage(hops, uses, total_s, len(hops) > 1)


def binomial_tree(n_adders: int, n_followers: int) -> list[int]:
    """Two binomial trees with a common root, in the form of `SimulatedSend.tree`."""

    def parent(place: int) -> int:
        return place - (1 << (place.bit_length() - 1))

    root = n_adders - 1
    adding = [root - parent(root - i) for i in range(root)]
    return adding + [root + parent(i) for i in range(1, n_followers + 1)]


def _one_after_the_other(job: SimulatedSend, network: Network) -> Passage:
    hops: list[HostHop] = []
    now_s = 0.0

    def passed_s(here: int, there: int, n_bytes: float) -> float:
        duration_s = n_bytes / min(network.rates[here], network.rates[there])
        hops.append((here, there, now_s, duration_s, n_bytes))
        return duration_s

    whole = float(job.n_bytes)
    for i in range(job.n_adders - 1):
        if job.path[i] != _next_adder(job, i):
            now_s += passed_s(job.path[i], _next_adder(job, i), whole) + network.latency_s
    root, followers = job.path[job.n_adders - 1], job.path[job.n_adders :]
    scatters = job.strategy == "global_allgather"
    crosses = False
    for i, host in enumerate(followers):
        gathers_locally = job.strategy == "local_allgather" and i > 0 and host == followers[i - 1]
        if host != root and not gathers_locally:
            now_s += passed_s(root, host, whole / len(followers) if scatters else whole)
            crosses = True
    if crosses:
        now_s += network.latency_s
    last_s = 0.0
    for i, host in enumerate(followers if scatters else []):
        neighbour = followers[(i + 1) % len(followers)]
        if host != neighbour:
            passed_on = whole * ((len(followers) - 1) / len(followers))
            last_s = max(last_s, passed_s(host, neighbour, passed_on) + network.latency_s)
    return _passage(hops, now_s + last_s, network)


def start_s(passed: Passage, free_s: Sequence[float]) -> float:
    """The earliest start at which every port is free when the passage reaches it."""
    return max([0.0, *(free_s[port] - first_s for port, first_s, _ in passed.uses)])


def occupy(passed: Passage, at_s: float, free_s: list[float]) -> None:
    """Record when a passage that starts at `at_s` frees its ports again."""
    for port, _, last_s in passed.uses:
        free_s[port] = max(free_s[port], at_s + last_s)


def _touches(a: tuple[float, float], b: tuple[float, float]) -> bool:
    """Whether two spans overlap by no more than rounding."""
    overlap = min(a[1], b[1]) - max(a[0], b[0])
    shorter = min(a[1] - a[0], b[1] - b[0])
    return overlap <= 0 or (overlap <= max(a[1], b[1]) * ROUNDING and 2 * overlap < shorter)


class Ports:
    """When each port is free, while sends are scheduled one after the other."""

    def __init__(self, n_ports: int) -> None:
        self._free_s = [0.0] * n_ports
        self._taken: list[list[tuple[float, float]]] = [[] for _ in range(n_ports)]

    def start_s(self, passed: Passage) -> float:
        """The earliest start at which every port is free when the passage reaches it."""
        at_s = start_s(passed, self._free_s)
        moved = True
        while moved:
            moved = False
            for port, first_s, last_s in passed.uses:
                for taken in self._taken[port]:
                    own = (at_s + first_s, at_s + last_s)
                    later_s = taken[1] - first_s
                    if not _touches(own, taken) and later_s > at_s:
                        at_s = later_s
                        moved = True
        return at_s

    def occupy(self, passed: Passage, at_s: float) -> None:
        """Record that a passage starts at `at_s`."""
        if passed.relayed:
            for port, first_s, last_s in passed.uses:
                if at_s + first_s < at_s + last_s:
                    self._taken[port].append((at_s + first_s, at_s + last_s))
            for taken in self._taken:
                taken.sort()
        else:
            occupy(passed, at_s, self._free_s)


def simulate(
    jobs: Sequence[SimulatedSend], rates: Sequence[float], latency_s: float, together: bool
) -> list[tuple[float, list[HostHop]]]:
    """The end of each job, and its hops, timed from the start of the transfer."""
    network = Network(rates, latency_s)
    passages = [passage(SimulatedSend(*job), network) for job in jobs]
    return _together(passages, network) if together else in_order(passages, network)


def in_order(passages: Sequence[Passage], network: Network) -> list[tuple[float, list[HostHop]]]:
    """Start each passage in turn as soon as its ports are free."""
    ports = Ports(2 * len(network.rates))
    result = []
    for passed in passages:
        at_s = ports.start_s(passed)
        ports.occupy(passed, at_s)
        hops = [(a, b, at_s + start, long, n) for a, b, start, long, n in passed.hops]
        result.append((at_s + passed.total_s, hops))
    return result


def _together(passages: Sequence[Passage], network: Network) -> list[tuple[float, list[HostHop]]]:
    whole = [max((hop[4] for hop in passed.hops), default=0.0) for passed in passages]
    left = list(whole)
    end_s = [0.0] * len(passages)
    active = [i for i in range(len(passages)) if left[i] > 0]
    now_s = 0.0
    while active:
        speeds = _fair_speeds(active, passages, whole, network)
        step_s = min(left[i] / speed for i, speed in zip(active, speeds, strict=True))
        now_s += step_s
        for i, speed in zip(active, speeds, strict=True):
            done = left[i] / speed <= step_s * (1 + 1e-12)
            left[i] = 0.0 if done else left[i] - speed * step_s
            end_s[i] = now_s
        active = [i for i in active if left[i] > 0]
    return [
        (
            end + len(passed.hops) * network.latency_s,
            [(a, b, 0.0, end, n) for a, b, _, _, n in passed.hops],
        )
        for end, passed in zip(end_s, passages, strict=True)
    ]


def _fair_speeds(
    active: Sequence[int], passages: Sequence[Passage], whole: Sequence[float], network: Network
) -> list[float]:
    """The max-min fair speeds: all grow together, each one until a port of its job is full."""
    room = [rate for rate in network.rates for _ in range(2)]
    speed = dict.fromkeys(active, 0.0)
    growing = list(active)
    level = 0.0
    while growing:
        weight = [0.0] * len(room)
        for i in growing:
            for here, there, _, _, n_bytes in passages[i].hops:
                weight[2 * here] += n_bytes / whole[i]
                weight[2 * there + 1] += n_bytes / whole[i]
        used = [port for port in range(len(room)) if weight[port] > 0]
        step = min(room[port] / weight[port] for port in used)
        level += step
        full = set()
        for port in used:
            if room[port] / weight[port] <= step * (1 + 1e-12):
                full.add(port)
            room[port] = max(0.0, room[port] - step * weight[port])
        still = []
        for i in growing:
            if any(2 * hop[0] in full or 2 * hop[1] + 1 in full for hop in passages[i].hops):
                speed[i] = level
            else:
                still.append(i)
        growing = still
    return [speed[i] for i in active]
