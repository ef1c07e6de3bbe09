"""Hypothesis strategies and checkers for the search and the simulation (extra `testing`)."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence

from hypothesis import strategies as st

from crossmesh.base.links import Links
from crossmesh.base.task import UnitTask
from crossmesh.transfer.plan import TransferPlan
from crossmesh.transfer.simulate import TimedHop, Timeline
from crossmesh.transfer.solver import Flow, HostSend

CLOSE = 1e-9
"""The relative rounding error that a sum of some thousand times may have [chosen]."""


@st.composite
def flows(
    draw: st.DrawFn,
    *,
    max_flows: int = 6,
    max_hosts: int = 5,
    terms: int = 3,
    overlapping: bool = True,
) -> list[Flow]:
    """Flows of few bytes or of very many, between few hosts.

    Args:
        draw: Passed by Hypothesis.
        max_flows: The most flows.
        max_hosts: The most hosts on each side.
        terms: The most terms of a sum; 1 for plain copies.
        overlapping: Whether a host may both send and receive.
    """
    n_hosts = draw(st.integers(1, max_hosts))
    # Draw little for each flow: Hypothesis takes longer to draw flows than the search takes.
    some = [tuple(h for h in range(n_hosts) if bits >> h & 1) for bits in range(1, 2**n_hosts)]
    shift = 0 if overlapping else 100
    return draw(
        st.lists(
            st.builds(
                Flow,
                st.sampled_from([0, 1, 2, 3, 5, 5, 7, 12, 100, 2**40]),
                st.lists(st.sampled_from(some), min_size=1, max_size=terms).map(tuple),
                st.sampled_from([(), *some, *(2 * hosts for hosts in some)]).map(
                    lambda hosts: tuple(host + shift for host in hosts)
                ),
                st.sampled_from([1, 4]),
                st.booleans() if terms > 1 else st.just(True),
            ),
            max_size=max_flows,
        )
    )


@st.composite
def links_of(draw: st.DrawFn, of: Sequence[Flow]) -> Links:
    """Rates, equal or not, of all hosts of the flows, and a latency."""
    hosts = {host for flow in of for side in (*flow.senders, flow.receivers) for host in side}
    rate = st.sampled_from(draw(st.sampled_from([[1.0], [1.0, 3.0, 0.1, 12.5e9]])))
    latency_s = draw(st.sampled_from([0.0, 1e-5, 0.5]))
    return Links({host: draw(rate) for host in sorted(hosts)}, 1e12, latency_s)


def check_sends(of: Sequence[Flow], sends: Sequence[HostSend]) -> None:
    """Assert that each host that lacks a byte is sent it once, from a host that holds it.

    Also assert that cuts are between items. This checker shares no code with the search.
    """
    parts: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for send in sends:
        flow = of[send.flow]
        assert send.part[0] % flow.itemsize == 0, f"{send} cuts an item"
        assert len(send.senders) == len(flow.senders), f"{send}: one sender for each term"
        for host, term in zip(send.senders, flow.senders, strict=True):
            assert host in term, f"{send}: host {host} does not hold the term"
        n_adders = len(set(send.senders))
        adders, receivers = send.path[:n_adders], send.path[n_adders:]
        assert set(adders) == set(send.senders), f"{send}: the senders come first"
        assert len(set(receivers)) == len(receivers), f"{send}: a host receives twice"
        for host in {adders[-1], *receivers}:
            parts[send.flow, host].append(send.part)
    for index, flow in enumerate(of):
        holding = set(flow.senders[0]) if len(flow.senders) == 1 else set()
        lacking = set(flow.receivers) - holding
        receiving = {host for i, host in parts if i == index}
        # Besides the hosts that lack bytes, only senders may be on the way.
        assert lacking <= receiving <= lacking.union(*flow.senders), f"flow {index}: {receiving}"
        for host in lacking:
            ends = [0, *itertools.chain.from_iterable(sorted(parts[index, host])), flow.n_bytes]
            gapless = all(a == b for a, b in zip(ends[::2], ends[1::2], strict=True))
            assert gapless, f"flow {index} is sent to {host} as {parts[index, host]}"
        assert receiving, f"flow {index} is not sent"


def check_timeline(plan: TransferPlan, timeline: Timeline, links: Links) -> None:
    """Assert that the network can carry out a timeline, and that all bytes move in it.

    Between any two hosts, a task moves as many bytes as its hops between their devices. A port
    serves one task at a time, unless all tasks run at once or it waits for a slower host, and in no
    span of time more bytes than its rate allows. A host does not finish sending bytes before it has
    received them. This checker shares no code with the simulator.
    """
    host_of = dict(plan.hosts)
    assert len(timeline.spans) == len(plan.tasks)
    hops_of: defaultdict[int, list[TimedHop]] = defaultdict(list)
    for hop in timeline.hops:
        hops_of[hop.task].append(hop)
    for task, (start_s, end_s) in zip(plan.tasks, timeline.spans, strict=True):
        _check_bytes(task, hops_of[task.index], host_of)
        assert start_s <= end_s
        for hop in hops_of[task.index]:
            assert start_s <= hop.start_s <= hop.stop_s
            assert hop.stop_s + links.latency_s <= end_s * (1 + CLOSE)
        if plan.order != "all_at_once":
            _check_passing_on(task, hops_of[task.index])

    rates = links.rates(set(host_of.values()))
    on_port: defaultdict[tuple[int, str], list[TimedHop]] = defaultdict(list)
    for hop in timeline.hops:
        on_port[hop.sender, "out"].append(hop)
        on_port[hop.receiver, "in"].append(hop)
    for (host, _), hops in on_port.items():
        if plan.order != "all_at_once":
            _check_exclusive(hops, rates[host])
        _check_rate(hops, rates[host])


def _check_bytes(task: UnitTask, hops: Sequence[TimedHop], host_of: dict[int, int]) -> None:
    expected: Counter[tuple[int, int]] = Counter()
    for sender, receiver, n_bytes in task.hops:
        if host_of[sender] != host_of[receiver]:
            expected[host_of[sender], host_of[receiver]] += n_bytes
    moved: defaultdict[tuple[int, int], float] = defaultdict(float)
    for hop in hops:
        moved[hop.sender, hop.receiver] += hop.n_bytes
    # The shares of an all-gather are whole bytes in the plan, and all equal in the timeline.
    slack = len(task.path) if task.strategy == "global_allgather" else 0
    for pair in {*expected, *moved}:
        difference = abs(expected[pair] - moved[pair])
        assert difference <= slack + CLOSE * expected[pair], (
            f"{task}: {moved} instead of {expected}"
        )


def _check_passing_on(task: UnitTask, hops: Sequence[TimedHop]) -> None:
    if task.strategy == "broadcast" and len(task.terms) == 1:
        got_s = {hop.receiver: hop.stop_s for hop in hops}
        for hop in hops:
            done_s = got_s.get(hop.sender, 0.0)
            assert hop.stop_s >= done_s * (1 - CLOSE), f"{task}: {hop} ends before {done_s}"


def _check_exclusive(hops: Sequence[TimedHop], rate: float) -> None:
    spans: list[tuple[float, float, int]] = []
    for hop in sorted(hops, key=lambda hop: (hop.task, hop.start_s)):
        stop_s = hop.start_s + hop.n_bytes / rate
        if spans and spans[-1][2] == hop.task and hop.start_s <= spans[-1][1]:
            # A task may cross a port several times at once.
            spans[-1] = spans[-1][0], max(spans[-1][1], stop_s), hop.task
        else:
            spans.append((hop.start_s, stop_s, hop.task))
    for (_, stop_s, _), (start_s, _, _) in itertools.pairwise(sorted(spans)):
        assert start_s >= stop_s * (1 - CLOSE), f"two tasks at a time: {hops}"


def _check_rate(hops: Sequence[TimedHop], rate: float) -> None:
    for start_s in {hop.start_s for hop in hops}:
        n_bytes = 0.0
        for hop in sorted(hops, key=lambda hop: hop.stop_s):
            if hop.start_s >= start_s:
                n_bytes += hop.n_bytes
                room = rate * (hop.stop_s - start_s)
                slack = CLOSE * rate * hop.stop_s  # the rounding error of times of this size
                assert n_bytes <= room + slack, f"{n_bytes} bytes by {hop}; room for {room}"
