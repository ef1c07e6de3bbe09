"""`search`: which hosts send which bytes to whom, in which order.

Knows hosts and bytes, no tensors. It minimizes the time of the last arrival (Eq. 1 of Zhuang et
al., "On Optimizing the Communication of Model Parallelism", MLSys 2023) by the network model of
their section 3, over

    who sends       Eq. 2, 4         → cpp/include/crossmesh/senders.hpp
    how cut         beyond the paper → cpp/include/crossmesh/share.hpp
    in which order  Eq. 3            → cpp/include/crossmesh/greedy.hpp, depth_first.hpp

The compiled core searches; `reference_search.py` says the same in plain Python.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast, get_args

from crossmesh.base._native import core
from crossmesh.base.links import Links
from crossmesh.base.task import TaskStrategy
from crossmesh.errors import PlanError

Order = Literal["naive", "load_balance", "dfs", "greedy", "ensemble", "all_at_once"]
"""How senders and order are found (sections 3.2 and 5.3.1):

- `naive`: the lowest host sends, in the order given.
- `load_balance`: hosts share the sending (Eq. 4), and nothing is done about the order.
- `dfs`: depth-first search with pruning over senders and orders.
- `greedy`: hosts share the sending; of all sends, the one that can start first does, with retries.
- `ensemble`: `greedy`, then `dfs` for what is better still.
- `all_at_once`: hosts share the sending, and everything starts together: no order at all.
"""

STEPS = 1 << 18
"""Ports that a search may look at, some 10 ms [measured: 2 cores of an AMD EPYC, 2026-11-20; with
16 times as many, one of the tests' first 400 random pairs ends earlier, by 1 %]."""


@dataclass(frozen=True, slots=True)
class Flow:
    """Bytes that some hosts need, and the hosts that can send them."""

    n_bytes: int
    """That each receiver gets."""
    senders: tuple[tuple[int, ...], ...]
    """Hosts that hold each term of a sum; a plain copy has one term."""
    receivers: tuple[int, ...]
    """The host of each device that receives. Of a copy, those on a host that holds it get it there,
    and the search is about the others."""
    itemsize: int = 1
    """A cut is at a multiple of this."""
    chained: bool = True
    """Whether terms are added on the way; if not, all of them go to the last host that adds."""


Route = Literal["pipelined", "relayed", "tree"]
"""How a broadcast passes its hosts: in chunks from each to the next; whole from each to the next,
while others use the ports that wait; or whole along a binomial tree."""


class HostSend(NamedTuple):
    """Bytes of a flow on their way."""

    flow: int
    """Which flow."""
    part: tuple[int, int]
    """Its bytes, start and stop."""
    senders: tuple[int, ...]
    """The host that adds each term."""
    path: tuple[int, ...]
    """Hosts in the order in which the bytes pass: those that add, each once, then those that
    receive; the last that adds may be one of these. A copy may have a send for each host that it
    must reach."""
    route: Route = "pipelined"


def search(
    flows: Sequence[Flow],
    links: Links | None,
    *,
    strategy: TaskStrategy,
    order: Order,
    split: bool,
    n_chunks: int,
    chunk_bytes: int = 0,
    seed: int = 0,
    steps: int = STEPS,
) -> tuple[HostSend, ...]:
    """Choose senders, paths, cuts and one order of all sends.

    Args:
        flows: What has to move, in the order that "naive" keeps.
        links: How fast hosts are; None: all equal, without latency.
        strategy: How bytes reach several receivers.
        order: How to search.
        split: Whether a flow may be cut among the hosts that hold it, if that ends at least 1 %
            earlier; "naive" never cuts.
        n_chunks: `K` of broadcasts.
        chunk_bytes: A chunk has at least as many bytes; 0: whatever they are.
        seed: Of the retries of "greedy".
        steps: A budget for each of at most eight searches; the same on every machine, unlike time.

    Returns:
        Sends in their order; each host gets what it must exactly once. Flows that stay on their
        hosts have a path of one host.

    Raises:
        PlanError: a flow without a term or a term without a host, negative bytes, an item or a
            number of chunks below 1, an unknown order or strategy, a host without rate, a seed or
            steps outside 64 bits, more than 16384 hosts, or 2**61 bytes or more to all receivers.

    Examples:
        What two hosts hold comes from the one that has nothing else to send:

        >>> for send in search(
        ...     [Flow(1000, ((0, 1),), (2,)), Flow(1000, ((0,),), (3,))],
        ...     None,
        ...     strategy="broadcast",
        ...     order="ensemble",
        ...     split=True,
        ...     n_chunks=100,
        ... ):
        ...     print(send)
        HostSend(flow=0, part=(0, 1000), senders=(1,), path=(1, 2), route='pipelined')
        HostSend(flow=1, part=(0, 1000), senders=(0,), path=(0, 3), route='pipelined')
    """
    if order not in get_args(Order):
        raise PlanError(f"an order is {' or '.join(map(repr, get_args(Order)))}; got {order!r}")
    if not (0 <= seed < 2**64 and 0 <= steps < 2**63):
        raise PlanError(
            f"a seed has 64 bits and steps 63, without a sign; got seed={seed} and steps={steps}"
        )
    network = _Numbered(flows, links)
    rates, latency_s = network.rates, network.latency_s
    if len(set(rates)) == 1 and 1e-100 <= rates[0] <= 1e100:  # what the core takes
        # The same sums then, to the last bit, as without rates; so the same ties.
        rates, latency_s = [1.0] * len(rates), latency_s * rates[0]
    try:
        sends = core.search(
            network.flows,
            rates,
            latency_s,
            strategy,
            n_chunks,
            chunk_bytes,
            order,
            split,
            seed,
            steps,
        )
    except ValueError as error:
        raise PlanError(str(error)) from None
    return tuple(
        HostSend(
            flow, (start, stop), network.names(senders), network.names(path), cast(Route, route)
        )
        for flow, start, stop, senders, path, route in sends
    )


def lower_bound_of(flows: Sequence[Flow], links: Links | None) -> float:
    """Seconds that no choice of senders, forwarders, cuts and orders can beat.

    Every host must receive all that it needs; the hosts that hold a flow must send it at least
    once; and of all its copies, one a receiver, each must come from a host that holds or gets it.
    The last two are a fractional load balance, solved exactly as a maximum flow. Latencies, and
    that one host of a broadcast has a chunk later than another, are left out.

    Args:
        flows: What has to move.
        links: How fast hosts are; None: all equal, a byte a second.

    Raises:
        PlanError: like `search`.

    Examples:
        >>> lower_bound_of([Flow(1000, ((0, 1),), (2, 3)), Flow(1000, ((0,),), (3,))], None)
        2000.0
    """
    network = _Numbered(flows, links)
    try:
        return core.lower_bound(network.flows, network.rates)
    except ValueError as error:
        raise PlanError(str(error)) from None


class _Numbered:
    """Flows and rates with hosts numbered from 0, as the core has them."""

    def __init__(self, flows: Sequence[Flow], links: Links | None) -> None:
        hosts = {host for flow in flows for term in flow.senders for host in term}
        self._hosts = sorted(hosts.union(*(flow.receivers for flow in flows)))
        rates = links.rates(self._hosts) if links else dict.fromkeys(self._hosts, 1.0)
        self.rates = list(rates.values())
        self.latency_s = links.latency_s if links else 0.0
        number = {host: i for i, host in enumerate(self._hosts)}
        self.flows = [
            (
                flow.n_bytes,
                flow.itemsize,
                [[number[host] for host in term] for term in flow.senders],
                [number[host] for host in flow.receivers],
                flow.chained,
            )
            for flow in flows
        ]

    def names(self, numbers: Iterable[int]) -> tuple[int, ...]:
        return tuple(self._hosts[number] for number in numbers)
