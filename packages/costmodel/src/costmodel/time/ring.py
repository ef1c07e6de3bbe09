"""Time of collectives that know one link: rings (AutoDDL, Table 2), the chain, one message.

Let `p` devices form one group and let a link carry `n` bytes in `alpha + n * beta`. Then, after
AutoDDL, Table 2 (`n` is the input of a reduce-scatter and the output of the others, per device):

    all-reduce                              (2p - 1) alpha + 2 (p - 1)/p n beta
    all-gather, reduce-scatter, all-to-all   (p - 1) alpha +   (p - 1)/p n beta

We keep these latency counts, also the all-reduce's `2p - 1`, although its ring, a reduce-scatter
and an all-gather, has `2(p - 1)` steps. A group of one does not communicate: we return 0.0, where
the printed all-reduce would leave one alpha. A device of a ring sends while it receives: each
direction has the link's `both_ways_bytes_per_s` then, half of a half-duplex link.

Other algorithms, and groups on several levels of a network, are in `costmodel.time.choose`.

All functions take numbers, or numpy arrays that broadcast: the result is a float or an array.

Reference:
    AutoDDL, section 3.1 and Table 2 (its ceiling brackets around `(p - 1)/p` are typesetting).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from numpy.typing import NDArray

from costmodel.base.checks import Quantity, checked
from costmodel.hardware.link import Link

Bytes = TypeVar("Bytes", float, NDArray[Any])
"""A number of bytes, or an array of them; times have the same type."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """What the busiest device of a collective does, whatever the link.

    Fields are numbers, or arrays where the group's size is one.
    """

    messages: Any
    """One after the other; each costs the link's latency."""
    exchanged: Any
    """Multiples of the collective's bytes that it sends while it receives as many."""
    one_way: Any = 0
    """Multiples of them that it sends, or receives, while nothing goes the other way."""

    def seconds(self, n_bytes: Bytes, link: Link) -> Bytes:
        """Time at a link that every device has for itself."""
        seconds: Bytes = (
            self.messages * link.latency_s
            + n_bytes * self.exchanged / link.both_ways_bytes_per_s
            + n_bytes * self.one_way / link.bandwidth_bytes_per_s
        )
        return seconds


def once_around(n: Any) -> Rounds:
    """A ring in which every device passes on `n - 1` parts of `n`."""
    return Rounds(n - 1, (n - 1) / n)


def twice_around(n: Any) -> Rounds:
    """The ring of an all-reduce, with the latencies of Table 2."""
    return Rounds((2 * n - 1) * (n > 1), 2 * (n - 1) / n)


def swap(n: Any) -> Rounds:
    """One message from each device and one to each."""
    return Rounds(1 * (n > 1), 1 * (n > 1))


def message(n: Any) -> Rounds:
    """One message from one device to one other."""
    return Rounds(1 * (n > 1), 0, 1 * (n > 1))


def chain(n: Any, n_chunks: Any) -> Rounds:
    """A pipelined broadcast along a chain: a device passes on each chunk as soon as it has it.

    The last of `n` devices gets the first chunk after `n - 1` steps, and one more in each step.
    """
    steps = (n - 2 + n_chunks) * (n > 1)
    # All but the first step and the last have devices that receive one chunk and send another.
    relayed = (steps - 2) * ((n > 2) & (n_chunks > 1))
    return Rounds(steps, relayed / n_chunks, (steps - relayed) / n_chunks)


def all_gather_time(n: Quantity, n_bytes: Bytes, link: Link) -> Bytes:
    """Time until every device of a group holds the shards of all of them.

    Args:
        n: Devices in the group.
        n_bytes: One device's output, that is, all shards together.
        link: Between neighbours of the ring.

    Returns:
        Seconds; 0.0 where `n == 1`.

    Raises:
        QuantityError: `n` is no whole number >= 1, or `n_bytes` negative or not finite.

    Examples:
        >>> all_gather_time(4, 4_000_000, Link(latency_s=0.0, bandwidth_bytes_per_s=1e9))
        0.003
        >>> import numpy as np
        >>> all_gather_time(2, np.array([0, 8e6, 16e6]), Link(1e-3, 1e9))
        array([0.001, 0.005, 0.009])

    Reference:
        AutoDDL, Table 2.
    """
    return once_around(_devices(n)).seconds(_bytes(n_bytes), link)


def reduce_scatter_time(n: Quantity, n_bytes: Bytes, link: Link) -> Bytes:
    """Time until every device of a group holds its shard of the group's sum.

    `n_bytes` is one device's input, a whole addend; the rest is as in `all_gather_time`.
    """
    return once_around(_devices(n)).seconds(_bytes(n_bytes), link)


def all_to_all_time(n: Quantity, n_bytes: Bytes, link: Link) -> Bytes:
    """Time until every device of a group has sent one `n`-th of its shard to each other device.

    `n_bytes` is one device's shard, before or after; the rest is as in `all_gather_time`.
    """
    return once_around(_devices(n)).seconds(_bytes(n_bytes), link)


def all_reduce_time(n: Quantity, n_bytes: Bytes, link: Link) -> Bytes:
    """Time until every device of a group holds the group's whole sum (or maximum, or minimum).

    `n_bytes` is one device's addend, as large as the result; the rest is as in `all_gather_time`.
    """
    return twice_around(_devices(n)).seconds(_bytes(n_bytes), link)


def broadcast_time(n: Quantity, n_bytes: Bytes, link: Link, n_chunks: Quantity = 100) -> Bytes:
    """Time until every device of a group has what one of them had, along a pipelined chain.

    Args:
        n: Devices in the group, with the one that has it.
        n_bytes: What it has.
        link: Between neighbours of the chain.
        n_chunks: Parts that are passed on one by one; about 100 in the experiments of the source.

    Returns:
        Seconds, `(n - 2 + K)(alpha + n_bytes/K beta)` with `K` chunks; 0.0 where `n == 1`.

    Raises:
        QuantityError: As for `all_gather_time`, or `n_chunks` is no whole number >= 1.

    Examples:
        >>> one_gb_a_second = Link(latency_s=0.0, bandwidth_bytes_per_s=1e9)
        >>> broadcast_time(5, 1e9, one_gb_a_second), broadcast_time(5, 1e9, one_gb_a_second, 1)
        (1.03, 4.0)

    Reference:
        Cross-mesh resharding, section 3.1. It counts one step more, `t + A t/K` for `A` receivers:
        the first receiver's chunk as if it came through another.
    """
    n_chunks = checked("n_chunks", n_chunks, least=1, whole=True)
    return chain(_devices(n), n_chunks).seconds(_bytes(n_bytes), link)


def permute_time(n: Quantity, n_bytes: Bytes, link: Link) -> Bytes:
    """Time until every device of a group has sent its `n_bytes` to one and received as many.

    The rest is as in `all_gather_time`.
    """
    return swap(_devices(n)).seconds(_bytes(n_bytes), link)


def point_to_point_time(n_bytes: Bytes, link: Link) -> Bytes:
    """Time of one message of `n_bytes` between two devices: `alpha + n beta` (AutoDDL, 3.1).

    Raises:
        QuantityError: `n_bytes` is negative or not finite.
    """
    return message(2).seconds(_bytes(n_bytes), link)


def _devices(n: Quantity) -> Any:
    return checked("n", n, least=1, whole=True)


def _bytes(n_bytes: Bytes) -> Bytes:
    amount: Any = checked("n_bytes", n_bytes)
    same_type: Bytes = amount
    return same_type
