"""The compiled search in plain Python; tests compare the two.

It has the core's name and arguments and, for valid ones, its results to the last bit.
`cpp/include/crossmesh/search.hpp` says what it does and why.
"""

import math
from collections.abc import Sequence

from crossmesh.reference.order import Class, depth_first, floor_s, greedy
from crossmesh.reference.senders import (
    WORTH,
    HostSend,
    SendProblem,
    along_trees,
    balanced,
    naive,
    remote,
    served_at_home,
    shared,
)
from crossmesh.reference.share import Flow, lower_bound
from crossmesh.reference.simulate import BELOW, Network, Passage, in_order

# As in search.cpp.
PARTS = 256
MANY_WORTH = 0.96


def search(
    flows: Sequence[Flow],
    rates: Sequence[float],
    latency_s: float,
    strategy: str,
    n_chunks: int,
    chunk_bytes: int,
    order: str,
    split: bool,
    seed: int,
    steps: int,
) -> list[HostSend]:
    """Who sends which bytes to whom, in which order."""
    flows = [served_at_home(Flow(*flow)) for flow in flows]
    problem = SendProblem(flows, Network(rates, latency_s), strategy, n_chunks, chunk_bytes)
    cut = split and strategy != "signal"
    if order == "naive":
        return naive(problem)
    if order in ("load_balance", "all_at_once"):
        return shared(problem) if cut else balanced(problem)
    best = _Best(order, seed, steps)
    itself = [(i, 0) for i in range(len(flows))]
    best.try_senders(problem, cut, itself)
    bound_s = lower_bound(flows, rates)
    if strategy != "broadcast" or not best.may_gain(bound_s):
        return best.sends
    sends = along_trees(problem, balanced(problem))
    if any(send.route == "tree" for send in sends):
        best.order_chosen(problem, sends, itself)
    other, origins = _apart(problem)
    if len(origins) > len(itself):
        best.try_senders(other, cut, origins)
    if cut and len(itself) <= PARTS and best.may_gain(bound_s, MANY_WORTH):
        other, origins = _in_parts(problem)
        sends = [send._replace(route="relayed") for send in balanced(other)]
        best.order_chosen(other, sends, origins, MANY_WORTH)
    return best.sends


Origin = tuple[int, int]


class _Best:
    def __init__(self, order: str, seed: int, steps: int) -> None:
        self.sends: list[HostSend] = []
        self._end_s = math.inf
        self._how = order, seed, steps

    def may_gain(self, earliest_s: float, worth: float = WORTH) -> bool:
        return earliest_s < self._end_s * worth

    def _order(
        self,
        problem: SendProblem,
        sends: Sequence[HostSend],
        earliest_s: float,
        any_sender: bool,
        origins: Sequence[Origin],
        worth: float = WORTH,
    ) -> None:
        if not self.may_gain(earliest_s, worth):
            return
        order, seed, steps = self._how
        end_s, found = _ordered(problem, sends, order, earliest_s / BELOW, any_sender, seed, steps)
        if end_s < self._end_s * worth:
            self._end_s = end_s
            self.sends = []
            for send in found:
                index, start = origins[send.flow]
                self.sends.append(
                    send._replace(flow=index, start=send.start + start, stop=send.stop + start)
                )

    def order_chosen(
        self,
        problem: SendProblem,
        sends: Sequence[HostSend],
        origins: Sequence[Origin],
        worth: float = WORTH,
    ) -> None:
        passages = [problem.passage(send) for send in sends]
        earliest_s = floor_s(passages, 2 * len(problem.network.rates))
        self._order(problem, sends, earliest_s, False, origins, worth)

    def try_senders(self, problem: SendProblem, cut: bool, origins: Sequence[Origin]) -> None:
        bound_s = lower_bound(problem.flows, problem.network.rates)
        if self.may_gain(bound_s):
            self._order(problem, balanced(problem), bound_s, True, origins)
        if cut and self.may_gain(bound_s):
            self.order_chosen(problem, shared(problem), origins)


def _apart(problem: SendProblem) -> tuple[SendProblem, list[Origin]]:
    """Copies with a flow for each host that they must reach."""
    flows: list[Flow] = []
    origins = []
    for index, flow in enumerate(problem.flows):
        hosts = remote(flow)
        alone = len(flow.senders) > 1 or len(hosts) < 2
        flows += [flow] if alone else [flow._replace(receivers=[host]) for host in hosts]
        origins += [(index, 0)] * (1 if alone else len(hosts))
    return problem._replace(flows=flows), origins


def _in_parts(problem: SendProblem) -> tuple[SendProblem, list[Origin]]:
    """Flows in parts of about the same size, those of all flows in turn."""
    total = sum(flow.n_bytes for flow in problem.flows)
    part_bytes = max(problem.chunk_bytes, total // PARTS + 1)
    found: list[tuple[float, Origin, int]] = []
    for index, flow in enumerate(problem.flows):
        items = -(-flow.n_bytes // flow.itemsize)
        n = max(1, flow.n_bytes // part_bytes)
        if len(flow.senders) > 1 and n > 1:
            ring = max(1, len(remote(flow)))
            n = -(-n // ring) * ring
        n = min(n, max(1, items))
        for k in range(n):
            start = (items // n * k + min(k, items % n)) * flow.itemsize
            size = (items // n + (k < items % n)) * flow.itemsize
            found.append(((k + 0.5) / n, (index, start), min(size, flow.n_bytes - start)))
    found.sort(key=lambda part: part[0])
    flows = [problem.flows[index]._replace(n_bytes=size) for _, (index, _), size in found]
    return problem._replace(flows=flows), [origin for _, origin, _ in found]


def _ordered(
    problem: SendProblem,
    sends: Sequence[HostSend],
    order: str,
    goal_s: float,
    any_sender: bool,
    seed: int,
    steps: int,
) -> tuple[float, list[HostSend]]:
    n_ports = 2 * len(problem.network.rates)
    passages = [problem.passage(send) for send in sends]
    if order == "dfs":
        ends_s = [end_s for end_s, _ in in_order(passages, problem.network)]
        best = max(ends_s, default=0.0), list(sends)
    else:
        end_s, indices = greedy(passages, [send.path for send in sends], n_ports, seed, steps)
        best = end_s, [sends[index] for index in indices]
    relays = any(passed.relayed for passed in passages)
    if relays and sends[0].route == "relayed":
        in_turn = sorted(sends, key=lambda send: send.flow)
        ends_s = [e for e, _ in in_order([problem.passage(s) for s in in_turn], problem.network)]
        if max(ends_s) < best[0] * BELOW:
            best = max(ends_s), in_turn
    if order == "greedy" or best[0] <= goal_s or relays:
        return best
    ways, classes = _classes(problem, sends, passages, any_sender)
    end_s, sequence = depth_first(classes, n_ports, best[0], steps)
    return best if sequence is None else (end_s, [ways[index][k] for index, k in sequence])


def _classes(
    problem: SendProblem, sends: Sequence[HostSend], passages: Sequence[Passage], any_sender: bool
) -> tuple[list[list[HostSend]], list[Class]]:
    ways = []
    members: dict[tuple[object, ...], list[int]] = {}
    to_each_device = problem.strategy in ("send_recv", "global_allgather")
    for index, send in enumerate(sends):
        flow = problem.flows[send.flow]
        mine = [send]
        hosts: list[int] = []
        if any_sender and len(flow.senders) == 1 and len(send.path) > 1:
            hosts = sorted(set(flow.senders[0]) - {send.path[0]})
        mine += [send._replace(senders=[h], path=[h, *send.path[1:]]) for h in hosts]
        ways.append(mine)
        key = (
            send.stop - send.start,
            tuple(send.path),
            tuple(hosts),
            tuple(send.senders),
            tuple(flow.receivers) if to_each_device else (),
            flow.chained,
        )
        members.setdefault(key, []).append(index)
    classes = []
    for indices in members.values():
        first = indices[0]
        others = [problem.passage(way) for way in ways[first][1:]]
        classes.append(Class(indices, [passages[first], *others]))
    return ways, classes
