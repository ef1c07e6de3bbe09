"""The compiled search in plain Python; tests compare the two.

It has the core's name and arguments and, for valid ones, its results to the last bit.
`cpp/include/crossmesh/search.hpp` says what it does and why.
"""

import math
from collections.abc import Sequence

from crossmesh.reference_order import BELOW, Class, depth_first, floor_s, greedy
from crossmesh.reference_senders import (
    Problem,
    Send,
    balanced,
    naive,
    remote,
    served_at_home,
    shared,
)
from crossmesh.reference_share import Flow, lower_bound
from crossmesh.reference_simulate import Network, Passage, in_order

WORTH = 0.99  # as in search.cpp


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
    flows = [served_at_home(Flow(*flow)) for flow in flows]
    problem = Problem(flows, Network(rates, latency_s), strategy, n_chunks)
    cut = split and strategy != "signal"
    if order == "naive":
        return naive(problem)
    if order in ("load_balance", "all_at_once"):
        return shared(problem) if cut else balanced(problem)
    best: tuple[float, list[Send]] = (math.inf, [])
    together = problem, list(range(len(flows)))
    for case, origin in [together, _apart(problem)]:
        if case is not problem and (
            strategy != "broadcast"
            or len(origin) == len(flows)
            or lower_bound(flows, rates) >= best[0] * WORTH
        ):
            break
        for whole in (True, False) if cut else (True,):
            earliest_s = lower_bound(case.flows, rates)
            if earliest_s >= best[0] * WORTH:
                continue
            sends = balanced(case) if whole else shared(case)
            if not whole:
                earliest_s = floor_s([case.passage(send) for send in sends], 2 * len(rates))
            if earliest_s < best[0] * WORTH:
                end_s, sends = _ordered(case, sends, order, earliest_s / BELOW, whole, seed, steps)
                if end_s < best[0] * WORTH:
                    best = end_s, [send._replace(flow=origin[send.flow]) for send in sends]
    return best[1]


def _apart(problem: Problem) -> tuple[Problem, list[int]]:
    """Copies with a flow for each host that they must reach, and of which flow each is."""
    flows: list[Flow] = []
    origin = []
    for index, flow in enumerate(problem.flows):
        hosts = remote(flow)
        alone = len(flow.senders) > 1 or len(hosts) < 2
        flows += [flow] if alone else [flow._replace(receivers=[host]) for host in hosts]
        origin += [index] * (1 if alone else len(hosts))
    return problem._replace(flows=flows), origin


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
        hosts: list[int] = []
        if any_sender and len(flow.senders) == 1 and len(send.path) > 1:
            hosts = sorted(set(flow.senders[0]) - {send.path[0]})
        mine += [send._replace(senders=[h], path=[h, *send.path[1:]]) for h in hosts]
        ways.append(mine)
        key = (send.stop - send.start, tuple(send.path), tuple(hosts))
        members.setdefault(key, []).append(index)
    classes = []
    for indices in members.values():
        first = indices[0]
        others = [problem.passage(way) for way in ways[first][1:]]
        classes.append(Class(indices, [passages[first], *others]))
    return ways, classes
