"""The compiled core's choice of senders in plain Python; tests compare the two.

`cpp/include/crossmesh/senders.hpp` says what the functions do and why.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from crossmesh.reference.share import Demand, Flow, level
from crossmesh.reference.simulate import Network, Passage, SimulatedSend, binomial_tree, passage

WORTH = 0.99  # as in senders.hpp


class HostSend(NamedTuple):
    """Bytes start:stop of a flow along `path`; `senders` are the hosts that add each term."""

    flow: int
    start: int
    stop: int
    senders: list[int]
    path: list[int]
    route: str = "pipelined"


class SendProblem(NamedTuple):
    """What is to be sent, over what, how."""

    flows: Sequence[Flow]
    network: Network
    strategy: str
    n_chunks: int
    chunk_bytes: int = 0

    def passage(self, send: HostSend) -> Passage:
        """What a send occupies."""
        flow = self.flows[send.flow]
        n_adders = len(set(send.senders))
        n_bytes = send.stop - send.start
        if send.route == "tree":
            tree = binomial_tree(n_adders, len(send.path) - n_adders)
            job = SimulatedSend(n_bytes, send.path, n_adders, flow.chained, self.strategy, 1, tree)
            return passage(job, self.network)
        path = []
        for host in send.path[:n_adders]:
            path += [host] * list(send.senders).count(host)
        for host in send.path[n_adders:]:
            by_device = self.strategy in ("send_recv", "global_allgather")
            path += [host] * (list(flow.receivers).count(host) if by_device else 1)
        n_chunks = self.n_chunks
        if send.route == "relayed":
            n_chunks = 1
        elif self.chunk_bytes:
            n_chunks = max(1, min(n_chunks, n_bytes // self.chunk_bytes))
        job = SimulatedSend(n_bytes, path, len(send.senders), flow.chained, self.strategy, n_chunks)
        return passage(job, self.network)


def remote(flow: Flow) -> list[int]:
    """Hosts to be reached: of a plain copy, those of receivers that hold no replica."""
    hosts = sorted(set(flow.receivers))
    return hosts if len(flow.senders) > 1 else [h for h in hosts if h not in flow.senders[0]]


def _circle(hosts: Sequence[int], start: int) -> list[int]:
    return sorted(hosts, key=lambda host: (host <= start, host))


def _path(sender: int, reached: Sequence[int]) -> list[int]:
    return [sender, *_circle([host for host in reached if host != sender], sender)]


def _sum_path(
    adders: Sequence[int],
    reached: Sequence[int],
    sent_s: Sequence[float],
    received_s: Sequence[float],
) -> list[int]:
    both = [host for host in adders if host in reached]
    if not both:
        first = max(adders, key=received_s.__getitem__)
        path = [first, *_circle([host for host in adders if host != first], first)]
    else:
        root = max(both, key=sent_s.__getitem__)
        path = _circle([host for host in adders if host != root], root)
        if len(both) < 3 and path:
            (first,) = (
                [host for host in both if host != root]
                if len(both) == 2
                else [max(path, key=received_s.__getitem__)]
            )
            path = path[path.index(first) :] + path[: path.index(first)]
        path.append(root)
    followers = _circle([host for host in reached if host != path[-1]], path[-1])
    if len(both) == 2:
        followers.remove(path[0])
        followers.append(path[0])
    return path + sorted(followers, key=lambda host: host in adders)


def _put_last(path: list[int], tail: int) -> None:
    if tail in path[1:]:
        path.remove(tail)
        path.append(tail)


def served_at_home(flow: Flow) -> Flow:
    """A copy of which every receiver has a replica on its host is sent where one of them is."""
    if len(flow.senders) > 1 or remote(flow) or not flow.receivers:
        return flow
    return flow._replace(senders=[sorted(set(flow.receivers))])


class Loads(NamedTuple):
    """How long hosts send and receive what was given to them so far."""

    sent_s: list[float]
    received_s: list[float]


def naive(problem: SendProblem) -> list[HostSend]:
    """Each flow from the lowest hosts that hold it, in the order given."""
    idle = [0.0] * len(problem.network.rates)
    sends = []
    for index, flow in enumerate(problem.flows):
        senders = [min(term) for term in flow.senders]
        reached = remote(flow)
        if len(senders) > 1:
            path = _sum_path(sorted(set(senders)), reached, idle, idle)
        else:
            path = _path(senders[0], reached)
        sends.append(HostSend(index, 0, flow.n_bytes, senders, path))
    return sends


def balanced(problem: SendProblem) -> list[HostSend]:
    """Eq. 4, greedily: the largest first, each from the host that is done with it first."""
    contested = _contested(problem)
    loads = Loads(*([0.0] * len(problem.network.rates) for _ in range(2)))
    largest_first = sorted(
        range(len(problem.flows)), key=lambda index: -problem.flows[index].n_bytes
    )
    return [_whole(problem, index, contested, loads) for index in largest_first]


def _contested(problem: SendProblem) -> list[bool]:
    contested = [False] * len(problem.network.rates)
    for flow in problem.flows:
        if remote(flow):
            for term in flow.senders:
                for host in term:
                    contested[host] = True
    return contested


def _whole(problem: SendProblem, index: int, contested: Sequence[bool], loads: Loads) -> HostSend:
    flow = problem.flows[index]
    rates = problem.network.rates
    reached = remote(flow)
    slowest = min((rates[host] for host in reached), default=math.inf)

    def done(host: int) -> tuple[float, int]:
        return loads.sent_s[host] + flow.n_bytes / min(rates[host], slowest), host

    senders: list[int] = []
    for term in flow.senders:
        taken = [host for host in term if host in senders]
        wanting = [host for host in term if host in reached]
        senders.append(min(taken or wanting or term, key=done))
    if len(senders) > 1:
        path = _sum_path(sorted(set(senders)), reached, *loads)
    else:
        path = _path(senders[0], reached)
        tail = None
        for host in path[1:]:
            if contested[host] and (tail is None or loads.sent_s[host] >= loads.sent_s[tail]):
                tail = host
        if tail is not None:
            _put_last(path, tail)
    send = HostSend(index, 0, flow.n_bytes, senders, path)
    for here, there, _, duration_s, _ in problem.passage(send).hops:
        loads.sent_s[here] += duration_s
        loads.received_s[there] += duration_s
    return send


def along_trees(problem: SendProblem, sends: Sequence[HostSend]) -> list[HostSend]:
    """The same, each along a binomial tree if by itself it ends earlier so."""
    found = []
    for send in sends:
        flow = problem.flows[send.flow]
        other = send._replace(route="tree")
        if len(send.path) > 3 and (flow.chained or len(flow.senders) == 1):
            way_s, tree_s = (problem.passage(way).total_s for way in (send, other))
            send = other if tree_s < way_s * WORTH else send
        found.append(send)
    return found


def shared(problem: SendProblem) -> list[HostSend]:
    """Flows cut among the hosts that hold them, so that the busiest interface is least busy."""
    contested = _contested(problem)
    loads = Loads(*([0.0] * len(problem.network.rates) for _ in range(2)))
    base = [0] * len(problem.network.rates)
    sends = []
    sources: dict[tuple[int, ...], list[tuple[list[int], int]]] = {}
    relays: dict[tuple[int, ...], list[int]] = {}
    for index, flow in enumerate(problem.flows):
        reached = remote(flow)
        if len(flow.senders) > 1 or not reached or not flow.n_bytes:
            send = _whole(problem, index, contested, loads)
            for here, _, _, _, moved in problem.passage(send).hops:
                base[here] += int(moved)
            sends.append(send)
            continue
        sources.setdefault(tuple(sorted(set(flow.senders[0]))), []).append((reached, index))
        if (
            problem.strategy == "broadcast"
            and len(reached) > 1
            and any(contested[host] for host in reached)
        ):
            relays.setdefault(tuple(reached), []).append(index)

    groups = [(hosts, sorted(group)) for hosts, group in sorted(sources.items())]
    weighted = [[(index, _weight(problem, index)) for _, index in group] for _, group in groups]
    demands = []
    for (hosts, _), group in zip(groups, weighted, strict=True):
        n_bytes = sum(problem.flows[index].n_bytes * weight for index, weight in group)
        demands.append(Demand(n_bytes, hosts, n_bytes))
    for hosts, indices in sorted(relays.items()):
        n_bytes = sum(problem.flows[index].n_bytes for index in indices)
        demands.append(Demand((len(hosts) - 1) * n_bytes, hosts, n_bytes))
    shares = level(demands, base, problem.network.rates)[1] if demands else []

    cuts: dict[int, list[tuple[int, int]]] = {}
    tails: dict[int, list[tuple[int, int]]] = {}
    for demand, share, group in zip(demands, shares, weighted, strict=False):
        _deal(problem, group, demand.hosts, share, cuts)
    n_groups = len(groups)
    for demand, share, (_, indices) in zip(
        demands[n_groups:], shares[n_groups:], sorted(relays.items()), strict=True
    ):
        kept = [demand.most - forwarded for forwarded in share]
        _deal(problem, [(index, 1) for index in indices], demand.hosts, kept, tails)
    for index in sorted(cuts):
        sends += _pieces(problem, index, cuts[index], tails.get(index, []))
    return sends


def _weight(problem: SendProblem, index: int) -> int:
    flow = problem.flows[index]
    reached = remote(flow)
    if problem.strategy == "send_recv":
        return sum(host in reached for host in flow.receivers)
    return len(reached) if problem.strategy == "local_allgather" else 1


def _deal(
    problem: SendProblem,
    weighted: Iterable[tuple[int, int]],
    hosts: Sequence[int],
    share: Sequence[int],
    cuts: dict[int, list[tuple[int, int]]],
) -> None:
    """Lay flows on a line and cut it by the shares: of each flow, where hosts' parts stop."""
    ends: list[int] = []
    for part in share:
        ends.append(part + (ends[-1] if ends else 0))
    k = 0
    start = 0
    for index, weight in weighted:
        flow = problem.flows[index]
        cuts[index] = []
        done = 0
        while done < flow.n_bytes:
            while k + 1 < len(ends) and ends[k] <= start + done * weight:
                k += 1
            stop = flow.n_bytes
            if k + 1 < len(ends):
                items = max((ends[k] - start) // weight, done + 1) + flow.itemsize - 1
                stop = min(stop, items // flow.itemsize * flow.itemsize)
            cuts[index].append((stop, hosts[k]))
            done = stop
        start += flow.n_bytes * weight


def _pieces(
    problem: SendProblem,
    index: int,
    cuts: Sequence[tuple[int, int]],
    tails: Sequence[tuple[int, int]],
) -> list[HostSend]:
    flow = problem.flows[index]
    reached = remote(flow)
    sends = []
    start = i = j = 0
    while start < flow.n_bytes:
        stop, sender = cuts[i]
        path = _path(sender, reached)
        if tails:
            stop = min(stop, tails[j][0])
            _put_last(path, tails[j][1])
            j += stop == tails[j][0]
        i += stop == cuts[i][0]
        sends.append(HostSend(index, start, stop, [sender], path))
        start = stop
    return sends
