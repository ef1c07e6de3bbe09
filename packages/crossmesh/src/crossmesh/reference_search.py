"""The compiled search in plain Python; tests compare the two.

Functions have the core's names and, for valid arguments, its results to the last bit. What they do
and why is said in `cpp/include/crossmesh/senders.hpp`, `greedy.hpp`, `depth_first.hpp` and
`search.hpp`. Where the core is clever (a tournament of lanes), this is plain (the least key).
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from crossmesh.reference_share import Demand, Flow, level, lower_bound
from crossmesh.reference_simulate import Job, Network, Passage, in_order, occupy, passage, start_s

# As in the headers.
BELOW = 1 - 1e-12
WORTH = 0.99
LUCK = 0.5
DEEPEST = 256


class Send(NamedTuple):
    """Bytes start:stop of a flow along `path`; `senders` are the hosts that add each term."""

    flow: int
    start: int
    stop: int
    senders: list[int]
    path: list[int]
    n_chunks: int


class Problem(NamedTuple):
    """What is to be sent, over what, how."""

    flows: Sequence[Flow]
    network: Network
    strategy: str
    n_chunks: int

    def passage(self, send: Send) -> Passage:
        """What a send occupies."""
        flow = self.flows[send.flow]
        n_adders = len(set(send.senders))
        path = []
        for host in send.path[:n_adders]:
            path += [host] * list(send.senders).count(host)
        for host in send.path[n_adders:]:
            by_device = self.strategy in ("send_recv", "global_allgather")
            path += [host] * (list(flow.receivers).count(host) if by_device else 1)
        n_bytes, n_terms = send.stop - send.start, len(send.senders)
        job = Job(n_bytes, path, n_terms, flow.chained, self.strategy, send.n_chunks)
        return passage(job, self.network)


# Who sends: senders.hpp ---------------------------------------------------------------------------


def remote(flow: Flow) -> list[int]:
    """Hosts to be reached: of a plain copy, those of receivers that hold no replica."""
    hosts = sorted(set(flow.receivers))
    return hosts if len(flow.senders) > 1 else [h for h in hosts if h not in flow.senders[0]]


def _path(senders: Sequence[int], reached: Sequence[int]) -> list[int]:
    adders = list(dict.fromkeys(senders))
    # Who adds and receives adds last, so that the sum is already there.
    adders.sort(key=lambda host: host in reached)
    receivers = [host for host in reached if host != adders[-1]]
    return adders + sorted(receivers, key=lambda host: host < adders[-1])


def _put_last(path: list[int], n_adders: int, tail: int) -> None:
    if tail in path[n_adders:]:
        del path[path.index(tail, n_adders)]
        path.append(tail)


def _served_at_home(flow: Flow) -> Flow:
    """A copy of which every receiver has a replica on its host is sent where one of them is."""
    if len(flow.senders) > 1 or remote(flow) or not flow.receivers:
        return flow
    return flow._replace(senders=[sorted(set(flow.receivers))])


def naive(problem: Problem) -> list[Send]:
    """Each flow from the lowest hosts that hold it, in the order given."""
    sends = []
    for index, flow in enumerate(problem.flows):
        senders = [min(term) for term in flow.senders]
        path = _path(senders, remote(flow))
        sends.append(Send(index, 0, flow.n_bytes, senders, path, problem.n_chunks))
    return sends


def balanced(problem: Problem) -> list[Send]:
    """Eq. 4, greedily: the largest first, each from the host that is done with it first."""
    contested = _contested(problem)
    load_s = [0.0] * len(problem.network.rates)
    largest_first = sorted(
        range(len(problem.flows)), key=lambda index: -problem.flows[index].n_bytes
    )
    return [_whole(problem, index, contested, load_s) for index in largest_first]


def _contested(problem: Problem) -> list[bool]:
    contested = [False] * len(problem.network.rates)
    for flow in problem.flows:
        if remote(flow):
            for term in flow.senders:
                for host in term:
                    contested[host] = True
    return contested


def _whole(problem: Problem, index: int, contested: Sequence[bool], load_s: list[float]) -> Send:
    flow = problem.flows[index]
    rates = problem.network.rates
    reached = remote(flow)
    slowest = min((rates[host] for host in reached), default=math.inf)

    def done(host: int) -> tuple[float, int]:
        return load_s[host] + flow.n_bytes / min(rates[host], slowest), host

    senders: list[int] = []
    for term in flow.senders:
        taken = [host for host in term if host in senders]
        wanting = [host for host in term if host in reached]
        senders.append(min(taken or wanting or term, key=done))
    path = _path(senders, reached)
    n_adders = len(set(senders))
    tail = None
    for host in path[n_adders:]:
        if contested[host] and (tail is None or load_s[host] >= load_s[tail]):
            tail = host
    if tail is not None:
        _put_last(path, n_adders, tail)
    send = Send(index, 0, flow.n_bytes, senders, path, problem.n_chunks)
    for here, _, _, duration_s, _ in problem.passage(send).hops:
        load_s[here] += duration_s
    return send


def shared(problem: Problem) -> list[Send]:
    """Flows cut among the hosts that hold them, so that the busiest interface is least busy."""
    contested = _contested(problem)
    load_s = [0.0] * len(problem.network.rates)
    base = [0] * len(problem.network.rates)
    sends = []
    sources: dict[tuple[int, ...], list[tuple[list[int], int]]] = {}
    relays: dict[tuple[int, ...], list[int]] = {}
    for index, flow in enumerate(problem.flows):
        reached = remote(flow)
        if len(flow.senders) > 1 or not reached or not flow.n_bytes:
            send = _whole(problem, index, contested, load_s)
            for here, _, _, _, n_bytes in problem.passage(send).hops:
                base[here] += int(n_bytes)
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


def _weight(problem: Problem, index: int) -> int:
    flow = problem.flows[index]
    reached = remote(flow)
    if problem.strategy == "send_recv":
        return sum(host in reached for host in flow.receivers)
    return len(reached) if problem.strategy == "local_allgather" else 1


def _deal(
    problem: Problem,
    weighted: Iterable[tuple[int, int]],
    hosts: Sequence[int],
    share: Sequence[int],
    cuts: dict[int, list[tuple[int, int]]],
) -> None:
    """Lay flows on a line and cut it by the shares: of each flow, where hosts' parts stop."""
    ends = []
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
    problem: Problem,
    index: int,
    cuts: Sequence[tuple[int, int]],
    tails: Sequence[tuple[int, int]],
) -> list[Send]:
    flow = problem.flows[index]
    reached = remote(flow)
    sends = []
    start = i = j = 0
    while start < flow.n_bytes:
        stop, sender = cuts[i]
        path = _path([sender], reached)
        if tails:
            stop = min(stop, tails[j][0])
            _put_last(path, 1, tails[j][1])
            j += stop == tails[j][0]
        i += stop == cuts[i][0]
        sends.append(Send(index, start, stop, [sender], path, problem.n_chunks))
        start = stop
    return sends


# In which order: greedy.hpp -----------------------------------------------------------------------


def _loads(passages: Iterable[Passage], n_ports: int) -> list[float]:
    load_s = [0.0] * n_ports
    for passed in passages:
        for port, first_s, last_s in passed.uses:
            load_s[port] += last_s - first_s
    return load_s


def floor_s(passages: Sequence[Passage], n_ports: int) -> float:
    """No order of the sends ends before: the busiest port, what precedes and what follows it."""
    load_s = _loads(passages, n_ports)
    head_s = [math.inf] * n_ports
    tail_s = [math.inf] * n_ports
    bound_s = 0.0
    for passed in passages:
        bound_s = max(bound_s, passed.total_s)
        for port, first_s, last_s in passed.uses:
            head_s[port] = min(head_s[port], first_s)
            tail_s[port] = min(tail_s[port], passed.total_s - last_s)
    for load, head, tail in zip(load_s, head_s, tail_s, strict=True):
        if load > 0:
            bound_s = max(bound_s, head + load + tail)
    return bound_s


class Lane(NamedTuple):
    """Sends along one path, the next one last, and the ports that they use."""

    sends: list[int]
    ports: list[int]


def greedy(
    passages: Sequence[Passage],
    paths: Sequence[Sequence[int]],
    n_ports: int,
    seed: int,
    steps: int,
) -> tuple[float, list[int]]:
    """Always the send that can start first, of these the one whose ports have most to do."""
    members: dict[tuple[int, ...], list[int]] = {}
    for index, path in enumerate(paths):
        members.setdefault(tuple(path), []).append(index)
    lanes = []
    for sends in members.values():
        ports = [port for port, _, _ in passages[sends[0]].uses]
        sends.sort(key=lambda index: (-passages[index].total_s, index))
        lanes.append(Lane(sends[::-1], ports))
    cost = len(passages) * sum(1 + len(lane.ports) for lane in lanes)

    goal_s = floor_s(passages, n_ports) / BELOW
    random = _SplitMix64(seed)
    rank, luck = list(range(len(lanes))), [1.0] * len(lanes)
    best = _dispatch(passages, lanes, n_ports, cost > steps, rank, luck)
    for _ in range(1, steps // max(cost, 1)):
        if best[0] <= goal_s:
            break
        rank = random.shuffled(range(len(lanes)))
        luck = [1.0 - LUCK * ((random.next() >> 11) * 2.0**-53) for _ in lanes]
        found = _dispatch(passages, lanes, n_ports, False, rank, luck)
        if found[0] < best[0] * BELOW:
            best = found
    return best


def _dispatch(
    passages: Sequence[Passage],
    lanes: Sequence[Lane],
    n_ports: int,
    whole_lanes: bool,
    rank: Sequence[int],
    luck: Sequence[float],
) -> tuple[float, list[int]]:
    waiting = [list(lane.sends) for lane in lanes]
    left_s = _loads(passages, n_ports)
    free_s = [0.0] * n_ports
    order: list[int] = []
    end_s = 0.0

    def key(lane: int) -> tuple[float, float, int]:
        busiest_s = max([0.0, *(left_s[port] for port in lanes[lane].ports)])
        return start_s(passages[waiting[lane][-1]], free_s), -busiest_s * luck[lane], rank[lane]

    while len(order) < len(passages):
        lane = min((lane for lane in range(len(lanes)) if waiting[lane]), key=key)
        for _ in range(len(waiting[lane]) if whole_lanes else 1):
            send = waiting[lane].pop()
            passed = passages[send]
            at_s = start_s(passed, free_s)
            occupy(passed, at_s, free_s)
            for port, first_s, last_s in passed.uses:
                left_s[port] -= last_s - first_s
            order.append(send)
            end_s = max(end_s, at_s + passed.total_s)
    return end_s, order


class _SplitMix64:
    """Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014."""

    def __init__(self, seed: int) -> None:
        self._state = seed

    def next(self) -> int:
        mask = (1 << 64) - 1
        self._state = (self._state + 0x9E3779B97F4A7C15) & mask
        z = self._state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
        return z ^ (z >> 31)

    def shuffled(self, order: Sequence[int]) -> list[int]:
        result = list(order)
        for i in range(len(result), 1, -1):
            j = self.next() % i
            result[i - 1], result[j] = result[j], result[i - 1]
        return result


# The best order, and sender: depth_first.hpp ------------------------------------------------------


class Class(NamedTuple):
    """Interchangeable sends, and the ways in which one of them can go."""

    sends: list[int]
    ways: list[Passage]


class _Tree:
    """What all nodes of the search tree share."""

    def __init__(self, classes: Sequence[Class], n_ports: int, best_s: float, steps: int) -> None:
        self.classes = classes
        self.best_s = best_s
        self.best: list[tuple[int, int]] | None = None
        self.steps = steps
        self.needs_s: list[list[float]] = []
        self.tail_s = [math.inf] * n_ports
        self.total_s = [0.0] * n_ports
        for group in classes:
            needs_s = [math.inf] * n_ports
            for passed in group.ways:
                mine_s = [0.0] * n_ports
                for port, first_s, last_s in passed.uses:
                    mine_s[port] = last_s - first_s
                    self.tail_s[port] = min(self.tail_s[port], passed.total_s - last_s)
                needs_s = [min(pair) for pair in zip(needs_s, mine_s, strict=True)]
            self.needs_s.append(needs_s)
            for port in range(n_ports):
                self.total_s[port] += len(group.sends) * needs_s[port]


def depth_first(
    classes: Sequence[Class], n_ports: int, best_s: float, steps: int
) -> tuple[float, list[tuple[int, int]] | None]:
    """The earliest end below `best_s` and its sequence of (send, way), None if none was found."""
    if sum(len(group.sends) for group in classes) > DEEPEST:
        return best_s, None
    tree = _Tree(classes, n_ports, best_s, steps)
    _descend(tree, [0.0] * n_ports, tree.total_s, [0] * len(classes), 0.0, 0.0, [])
    return tree.best_s, tree.best


def _descend(
    tree: _Tree,
    free_s: Sequence[float],
    left_s: Sequence[float],
    done: Sequence[int],
    now_s: float,
    end_s: float,
    taken: list[tuple[int, int]],
) -> None:
    tree.steps -= len(free_s)
    bound_s = end_s
    for free, left, tail in zip(free_s, left_s, tree.tail_s, strict=True):
        if left > 0:
            bound_s = max(bound_s, free + left + tail)
    if bound_s >= tree.best_s * BELOW:
        return
    if len(taken) == sum(len(group.sends) for group in tree.classes):
        tree.best_s, tree.best = end_s, list(taken)
        return
    children: list[tuple[float, float, int, int]] = []
    first_start_s = first_end_s = math.inf
    for i, group in enumerate(tree.classes):
        for k, passed in enumerate(group.ways if done[i] < len(group.sends) else []):
            tree.steps -= 1 + len(passed.uses)
            at_s = start_s(passed, free_s)
            busiest_s = max([0.0, *(left_s[port] for port, _, _ in passed.uses)])
            children.append((at_s, -busiest_s, i, k))
            first_start_s = min(first_start_s, at_s)
            first_end_s = min(first_end_s, at_s + passed.total_s)
    for at_s, _, i, k in sorted(children):
        if tree.steps <= 0:
            return
        if at_s < now_s or (at_s > first_start_s and at_s >= first_end_s):
            continue
        passed = tree.classes[i].ways[k]
        free = list(free_s)
        occupy(passed, at_s, free)
        left = [a - b for a, b in zip(left_s, tree.needs_s[i], strict=True)]
        counts = list(done)
        counts[i] += 1
        taken.append((tree.classes[i].sends[done[i]], k))
        _descend(tree, free, left, counts, at_s, max(end_s, at_s + passed.total_s), taken)
        taken.pop()


# All of it: search.hpp ----------------------------------------------------------------------------


def search(
    flows: Sequence[Flow],
    rates: Sequence[float],
    latency_s: float,
    strategy: str,
    n_chunks: int,
    order: str,
    split: bool,
    seed: int,
    steps: int,
) -> list[Send]:
    """Who sends which bytes to whom, in which order."""
    flows = [_served_at_home(Flow(*flow)) for flow in flows]
    problem = Problem(flows, Network(rates, latency_s), strategy, n_chunks)
    cut = split and strategy != "signal"
    if order == "naive":
        return naive(problem)
    if order in ("load_balance", "all_at_once"):
        return shared(problem) if cut else balanced(problem)
    bound_s = lower_bound(flows, rates)
    best: tuple[float, list[Send]] = (math.inf, [])
    for whole in (True, False):
        if best[0] <= bound_s / BELOW or (not whole and not cut):
            break
        sends = balanced(problem) if whole else shared(problem)
        for chunks in dict.fromkeys((n_chunks, 1 if strategy == "broadcast" else n_chunks)):
            sends = [send._replace(n_chunks=chunks) for send in sends]
            passages = [problem.passage(send) for send in sends]
            earliest_s = bound_s if whole else floor_s(passages, 2 * len(rates))
            if earliest_s < best[0] * WORTH:
                found = _ordered(problem, sends, order, earliest_s / BELOW, whole, seed, steps)
                if found[0] < best[0] * WORTH or not best[1]:
                    best = found
    return best[1]


def _ordered(
    problem: Problem,
    sends: list[Send],
    order: str,
    goal_s: float,
    any_sender: bool,
    seed: int,
    steps: int,
) -> tuple[float, list[Send]]:
    n_ports = 2 * len(problem.network.rates)
    passages = [problem.passage(send) for send in sends]
    if order == "dfs":
        ends_s = [end_s for end_s, _ in in_order(passages, problem.network)]
        best = max(ends_s, default=0.0), sends
    else:
        end_s, indices = greedy(passages, [send.path for send in sends], n_ports, seed, steps)
        best = end_s, [sends[index] for index in indices]
    if order == "greedy" or best[0] <= goal_s:
        return best
    ways, classes = _classes(problem, sends, passages, any_sender)
    end_s, sequence = depth_first(classes, n_ports, best[0], steps)
    return best if sequence is None else (end_s, [ways[index][k] for index, k in sequence])


def _classes(
    problem: Problem, sends: Sequence[Send], passages: Sequence[Passage], any_sender: bool
) -> tuple[list[list[Send]], list[Class]]:
    ways = []
    members: dict[tuple[int, tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for index, send in enumerate(sends):
        flow = problem.flows[send.flow]
        mine = [send]
        others: list[int] = []
        if any_sender and len(flow.senders) == 1 and len(send.path) > 1:
            others = sorted(set(flow.senders[0]) - {send.path[0]})
        mine += [send._replace(senders=[h], path=[h, *send.path[1:]]) for h in others]
        ways.append(mine)
        key = (send.stop - send.start, tuple(send.path), tuple(others))
        members.setdefault(key, []).append(index)
    classes = []
    for indices in members.values():
        first = indices[0]
        mine = [passages[first], *(problem.passage(way) for way in ways[first][1:])]
        classes.append(Class(indices, mine))
    return ways, classes
