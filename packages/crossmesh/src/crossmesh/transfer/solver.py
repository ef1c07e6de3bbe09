"""`search`: which hosts send which bytes to which other hosts, and in which order.

The search knows hosts and bytes, but no tensors. It minimizes the time of the last arrival (Eq. 1
of Zhuang et al., "On Optimizing the Communication of Model Parallelism", MLSys 2023) in the network
model of their section 3, over

    the senders     Eq. 2, 4         → cpp/include/crossmesh/senders.hpp
    the cuts        beyond the paper → cpp/include/crossmesh/share.hpp
    the order       Eq. 3            → cpp/include/crossmesh/greedy.hpp, depth_first.hpp

The compiled core does the search.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, cast, get_args

from crossmesh.base._native import core
from crossmesh.base.links import Links
from crossmesh.base.task import TaskStrategy
from crossmesh.errors import PlanError

Order = Literal["naive", "load_balance", "dfs", "greedy", "ensemble", "all_at_once"]
"""How senders and order are chosen (sections 3.2 and 5.3.1):

- `naive`: the lowest host that holds the bytes sends them, in the order of the flows.
- `load_balance`: the sending is balanced among hosts (Eq. 4); the order is not optimised.
- `dfs`: depth-first search with pruning over senders and orders.
- `greedy`: the sending is balanced; the next send is always the one that can start first, and the
  search is repeated with randomness.
- `ensemble`: `greedy`, then `dfs` to improve on its result.
- `all_at_once`: the sending is balanced; all sends start together, without an order.
"""

STEPS = 1 << 18
"""The number of ports that a search may look at, which takes some 10 ms [measured: 2 cores of an
AMD EPYC, 2026-11-20; with 16 times as many, one of the tests' first 400 random pairs ends earlier,
by 1 %]."""


class Flow(NamedTuple):
    """Bytes that some hosts need, and the hosts that can send them."""

    n_bytes: int
    """The bytes that each receiver gets."""
    senders: tuple[tuple[int, ...], ...]
    """The hosts that hold each term of a sum; a plain copy has one term."""
    receivers: tuple[int, ...]
    """The host of each device that receives. For a copy, a device whose host holds the bytes gets
    them there, and the search is about the other devices."""
    itemsize: int = 1
    """Cuts are at multiples of this many bytes."""
    chained: bool = True
    """Whether terms are added on the way; if not, all of them go to the last adding host."""


Route = Literal["pipelined", "relayed", "tree"]
"""How the bytes of a broadcast pass its hosts:

- `pipelined`: in chunks, from each host to the next.
- `relayed`: as a whole from each host to the next, so that other sends use the ports meanwhile.
- `tree`: as a whole along a binomial tree.
"""


class HostSend(NamedTuple):
    """Bytes of a flow, with the hosts that they pass."""

    flow: int
    """Index of the flow."""
    part: tuple[int, int]
    """The bytes of the flow that are sent: start and stop."""
    senders: tuple[int, ...]
    """The host that adds each term."""
    path: tuple[int, ...]
    """The hosts that the bytes pass, in order: first the adding hosts, each once, then the
    receiving hosts; if the last adding host receives too, it is not repeated. A copy may have a
    separate send for each host that it must reach."""
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
        flows: The flows, in the order that "naive" keeps.
        links: How fast hosts are. None: all are equally fast, without latency.
        strategy: How bytes reach several receivers.
        order: How to search.
        split: Whether a flow may be split among the hosts that hold it, if the transfer then ends
            at least 1 % earlier; "naive" never splits.
        n_chunks: `K`, the number of chunks of a broadcast.
        chunk_bytes: The fewest bytes of a chunk. 0: no limit.
        seed: Seed of the randomness in "greedy".
        steps: The budget of each of at most eight searches. Unlike a time limit, it gives the same
            result on every machine.

    Returns:
        The sends in their order. Each host gets the bytes that it needs exactly once. A flow that
        stays on its host has a path of one host.

    Raises:
        PlanError: A flow has no term, a term no host, or a flow negative bytes; an item or the
            number of chunks is below 1; the order or the strategy is unknown; a host has no rate;
            the seed or the steps do not fit 64 bits; there are more than 16384 hosts, or all
            receivers together get 2**61 bytes or more.

    Examples:
        The first flow, which two hosts hold, comes from the host that has nothing else to send:

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
            "a seed is from 0, below 2**64, and steps are from 0, below 2**63; "
            f"got seed={seed} and steps={steps}"
        )
    network = _Numbered(flows, links)
    rates, latency_s = network.rates, network.latency_s
    if len(set(rates)) == 1 and 1e-100 <= rates[0] <= 1e100:  # the range that the core accepts
        # With equal rates, compute the same sums, to the last bit, as without rates: then ties are
        # the same too, and so is the plan.
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

    Every host must receive all bytes that it needs; the hosts that hold a flow must send it at
    least once; and each of its copies, one for each receiver, must come from a host that holds or
    gets it. The last two are a fractional load balance, which is solved exactly as a maximum flow.
    The bound leaves out latencies, and that the hosts of a broadcast get a chunk one after the
    other.

    Args:
        flows: The flows.
        links: How fast hosts are. None: all send and receive one byte a second.

    Raises:
        PlanError: As for `search`.

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
    """Flows and rates with the hosts numbered from 0, as the core takes them."""

    def __init__(self, flows: Sequence[Flow], links: Links | None) -> None:
        hosts = {host for flow in flows for term in flow.senders for host in term}
        self._hosts = sorted(hosts.union(*(flow.receivers for flow in flows)))
        rates = links.rates(self._hosts) if links else dict.fromkeys(self._hosts, 1.0)
        self.rates = list(rates.values())
        self.latency_s = links.latency_s if links else 0.0
        number = {host: i for i, host in enumerate(self._hosts)}
        lists: dict[tuple[int, ...], list[int]] = {}  # flows often have the same hosts

        def numbers(hosts: tuple[int, ...]) -> list[int]:
            if hosts not in lists:
                lists[hosts] = [number[host] for host in hosts]
            return lists[hosts]

        self.flows = [
            (
                flow.n_bytes,
                flow.itemsize,
                [numbers(term) for term in flow.senders],
                numbers(flow.receivers),
                flow.chained,
            )
            for flow in flows
        ]

    def names(self, numbers: Iterable[int]) -> tuple[int, ...]:
        return tuple(map(self._hosts.__getitem__, numbers))
